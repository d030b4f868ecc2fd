"""The order of streams between a buffer and its DLPack consumers, which the double of a driver checks."""

import sys

import pytest
from forks import Machine
from running import functions_of

PROGRAM = "platforms/dlpack.py"
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


@pytest.mark.parametrize("case", functions_of(PROGRAM))
def test_producers_and_consumers_wait_for_each_other(tmp_path, case):
    machine = Machine("cuda", tmp_path)
    if case == "the_threads_own_stream_is_not_another_threads" and not HAS_GIL:
        pytest.skip("free-threaded Python ends an object where it was made")
    if case == "without_events_of_the_device_one_wait_serves_all":
        machine.build("-DWITHOUT_CONTEXT_EVENTS", "-DWITHOUT_GREEN_CONTEXTS")
    machine.run(PROGRAM, case)


@pytest.mark.parametrize(
    ("case", "stream"),
    [
        ("nothing_waits", "same"),
        ("nothing_waits", "none"),
        ("a_default_stream_is_a_consumer_like_others", "none"),
        ("a_default_stream_is_a_consumer_like_others", "legacy"),
        ("a_default_stream_is_a_consumer_like_others", "per-thread"),
        ("another_threads_per_thread_stream_is_waited_for", "per-thread"),
        ("another_threads_per_thread_stream_is_waited_for", "another"),
        ("another_threads_per_thread_stream_is_waited_for", "of the array interface"),
    ],
)
def test_consumers_name_their_streams(tmp_path, case, stream):
    Machine("cuda", tmp_path).run(PROGRAM, case, stream)
