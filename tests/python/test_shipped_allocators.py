"""What the libraries of PyTorch's allocator may need that come with gpupool, and how they are built."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from pytorch.fetch import VERSIONS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def allocators():
    spec = importlib.util.spec_from_file_location("allocators", ROOT / "tests" / "package" / "allocators.py")
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_what_systems_with_an_old_glibc_have_is_let_through(allocators, tmp_path):
    library = tmp_path / "allocator.so"
    library.write_bytes(b"\0".join([b"", b"GLIBC_2.28", b"GLIBCXX_3.4.25", b"CXXABI_1.3.11", b"GCC_3.0", b""]))
    allocators.check(library)


@pytest.mark.parametrize("needed", ["GLIBC_2.29", "GLIBC_2.34", "GLIBCXX_3.4.26", "CXXABI_1.3.13", "GCC_12.0.0"])
def test_what_they_lack_is_refused(allocators, tmp_path, needed):
    library = tmp_path / "allocator.so"
    library.write_bytes(b"\0GLIBC_2.2.5\0" + needed.encode() + b"\0")
    with pytest.raises(allocators.WrongLibrary, match=rf"allocator\.so needs {re.escape(needed)}, which .* lack"):
        allocators.check(library)


def test_a_large_one_is_refused(allocators, tmp_path):
    library = tmp_path / "allocator.so"
    library.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(allocators.WrongLibrary, match="has 1048577 bytes, and may have 1048576"):
        allocators.check(library)


def test_the_guide_tells_the_versions():
    text = (ROOT / "docs" / "pytorch.md").read_text()
    assert f"brings those for PyTorch {VERSIONS[0]} to {VERSIONS[-1]}." in " ".join(text.split())
