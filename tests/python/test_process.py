"""What happens at the end of threads, interpreters and processes, and after a fork."""

import pytest
from running import functions_of, run_program, start_program


def test_exit_is_clean_with_handles_everywhere():
    done = start_program("process/ends.py", "with_handles_everywhere")
    # Nothing is destroyed when the process ends.
    assert (done.returncode, done.stdout, done.stderr) == (0, "at exit True\n", "")


def test_exit_is_clean_with_pinned_memory_everywhere():
    done = start_program("process/pinned_at_exit.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("function", functions_of("process/forks.py"))
def test_a_forked_child(function):
    run_program("process/forks.py", function)


def test_a_forked_child_gets_a_status_from_every_c_function():
    run_program("process/forked_c_calls.py")


def test_exit_inside_a_lease_and_after_the_pools_is_clean():
    done = start_program("process/ends.py", "inside_a_lease_and_after_the_pools")
    assert (done.returncode, done.stdout, done.stderr) == (3, "at exit True\n", "")
