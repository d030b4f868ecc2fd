"""What keeps a wheel from being published, of what auditwheel tells of it."""

import pytest
from package import audit

GOOD = {
    "sym_tag": "manylinux_2_28_x86_64",
    "versioned_symbols": {"libc.so.6": ["GLIBC_2.27", "GLIBC_2.28"]},
    "unsupported_isa": False,
    "external_libs": {"libc10.so": None, "librmm.so": None},
}


def test_a_wheel_that_is_what_its_name_says_is_let_through():
    assert audit.wrong(GOOD, "manylinux_2_28_x86_64") == []


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"sym_tag": "manylinux_2_34_x86_64"}, "its symbols are those of manylinux_2_34_x86_64"),
        ({"sym_tag": "manylinux_2_28_aarch64"}, "its name says manylinux_2_28_x86_64"),
        ({"unsupported_isa": True}, "it takes instructions"),
        ({"external_libs": {"libc10.so": None, "libcudart.so.13": None}}, "it needs libcudart.so.13, which"),
    ],
)
def test_any_other_is_not(told, sentence):
    (found,) = audit.wrong({**GOOD, **told}, "manylinux_2_28_x86_64")
    assert sentence in found
