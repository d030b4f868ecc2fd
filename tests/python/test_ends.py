"""The end of things, as whole processes: by exit code and output, on the legacy and on per-thread default streams."""

import pytest
from forks import run_program, start_program

# The legacy default stream and the per-thread one.
STREAMS = [1, 2]

# How the process ends, its exit code, and what it prints.
ENDS = {
    "with_daemon_threads_that_hold_everything": (0, ""),
    "with_threads_that_end_after_the_main_thread": (0, ""),
    "with_a_pool_whose_segments_are_told_of": (0, ""),
    "with_calls_that_are_refused": (0, "OutOfMemory\nOutOfMemory\nLibraryError\n"),
    "with_use_at_exit": (0, "at exit 2\n"),
    "while_another_thread_creates": (0, ""),
    "by_an_exception_inside_a_lease": (3, ""),
    "at_once": (4, ""),
}


# Where a daemon thread is as the process ends.
CALLABLES = [
    "in_cuda_stream",
    "in_a_property",
    "in_create",
    "in_create_of_a_lease",
    "in_set_stream",
    "in_destroy",
    "in_the_number_that_create_returned",
    "in_the_end_of_what_create_returned",
    "in_a_stream_source",
    "in_on_oom",
    "in_the_answer_of_on_oom",
    "in_on_segment",
    "in_on_segment_of_what_goes",
    "in_on_segment_of_what_is_there",
    "in_an_unraisable_hook",
    "in_an_allocators_malloc",
    "in_an_allocators_free",
    "in_a_number_of_bytes",
    "in_a_timeout",
    "in_a_message",
    "after_each_wait_for_a_handle",
    "after_each_call_that_needs_no_gil",
]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends_quietly_and_destroys_nothing(end, stream):
    status, output = ENDS[end]
    done = start_program("process/ends.py", end, stream)
    assert (done.returncode, done.stdout, done.stderr) == (status, output, "")


@pytest.mark.parametrize("place", CALLABLES)
def test_a_process_ends_quietly_with_a_daemon_thread(place):
    run_program("process/ends_in_callables.py", place)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_forked_child_is_told_and_its_parent_goes_on(stream):
    done = start_program("process/ends.py", "after_a_fork", stream)
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent goes on\n", "")


def test_every_public_call_is_refused_in_a_forked_child_or_is_told_not_to_be():
    run_program("process/forked_calls.py")


@pytest.mark.parametrize("is_used", ["used", "unused"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_multiprocessing(method, is_used):
    run_program("process/workers.py", method, is_used)


def test_a_second_interpreter_in_the_process_is_refused():
    run_program("process/second_interpreter.py")
