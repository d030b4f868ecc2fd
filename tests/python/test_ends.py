"""The end of things, as whole processes: by exit code and output, on the legacy and on per-thread default streams."""

import pytest
from forks import run_program, start_program
from running import cases_of, functions_of

# How the process ends and what it prints, where that is not well and without a word.
ENDS = {
    "with_calls_that_are_refused": (0, "OutOfMemory\nOutOfMemory\nLibraryError\n"),
    "with_use_at_exit": (0, "at exit 2\n"),
    "with_handles_everywhere": (0, "at exit True\n"),
    "by_an_exception_inside_a_lease": (3, ""),
    "inside_a_lease_and_after_the_pools": (3, "at exit True\n"),
    "at_once": (4, ""),
    "after_a_fork": (0, "parent goes on\n"),
}


# On the legacy default stream and the per-thread one.
@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("end", functions_of("process/ends.py"))
def test_a_process_ends_quietly_and_destroys_nothing(end, stream):
    done = start_program("process/ends.py", end, stream)
    assert (done.returncode, done.stdout, done.stderr) == (*ENDS.get(end, (0, "")), "")


@pytest.mark.parametrize("place", cases_of("process/ends_in_callables.py"))
def test_a_process_ends_quietly_with_a_daemon_thread(place):
    run_program("process/ends_in_callables.py", "main", place)


def test_a_child_that_was_forked_before_the_first_use_is_as_good_as_its_parent():
    run_program("process/forks.py")


@pytest.mark.parametrize("program", ["forked_calls", "forked_c_calls"])
def test_every_public_call_is_refused_in_a_forked_child_or_is_told_not_to_be(program):
    run_program(f"process/{program}.py", "main")


@pytest.mark.parametrize("is_used", ["used", "unused"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_multiprocessing(method, is_used):
    run_program("process/workers.py", "main", method, is_used)


def test_a_second_interpreter_in_the_process_is_refused():
    run_program("process/second_interpreter.py", "main")
