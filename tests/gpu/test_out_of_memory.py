"""Handles while the device's memory is full: idle ones make room, and where none are, the error says who holds it.

Each test is a process of its own, and fills the device. So nothing else may run on it meanwhile.
"""

import pytest
from gpu_helpers import pool_or_skip, run_program

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("how", ["handle", "lease"])
@pytest.mark.parametrize("what", ["idle_ones_make_room", "the_error_says_who_holds_it"])
def test_a_handle_where_memory_is_full(what, how):
    pool_or_skip("cublas")
    pool_or_skip("cusolver")
    run_program("full_device.py", what, how)
