"""The order of streams between a buffer and its DLPack consumers, which the double of a driver checks."""

import sys

import pytest
from forks import Machine


@pytest.fixture
def check(tmp_path):
    """Run one of the programs about DLPack on a machine with a driver."""
    machine = Machine("cuda", tmp_path)

    def run(*arguments, without=()):
        if without:
            machine.build(*(f"-DWITHOUT_{part}" for part in without))
        machine.run("platforms/dlpack.py", *arguments)

    return run


def test_a_consumer_waits_for_the_producer_and_the_memory_for_the_consumer(check):
    check("a_consumer_waits_for_the_producer_and_the_memory_for_the_consumer")


@pytest.mark.parametrize("stream", ["same", "none"])
def test_nothing_waits_where_there_is_one_stream_or_order_is_the_consumers(check, stream):
    check("nothing_waits", stream)


def test_a_consumers_stream_may_be_gone_when_the_memory_is_freed(check):
    check("a_consumers_stream_may_be_gone_when_the_memory_is_freed")


def test_a_driver_without_events_of_the_device_is_waited_for_once(check):
    check("without_events_of_the_device_one_wait_serves_all", without=["CONTEXT_EVENTS", "GREEN_CONTEXTS"])


def test_a_stream_that_is_recorded_too_may_be_a_consumers(check):
    check("a_stream_that_is_recorded_too_may_be_a_consumers")


@pytest.mark.parametrize("stream", ["none", "legacy", "per-thread"])
def test_default_streams_are_consumers_like_others(check, stream):
    check("a_default_stream_is_a_consumer_like_others", stream)


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="free-threaded Python ends an object where it was made"
)
def test_the_threads_own_stream_is_not_another_threads(check):
    check("the_threads_own_stream_is_not_another_threads")


@pytest.mark.parametrize("consumer", ["per-thread", "another", "of the array interface"])
def test_another_threads_per_thread_stream_is_waited_for(check, consumer):
    check("another_threads_per_thread_stream_is_waited_for", consumer)


@pytest.mark.parametrize(
    "what",
    [
        "a_capture_waits_for_no_work_outside_of_it",
        "no_work_outside_of_a_capture_waits_for_it",
        "captures_do_not_wait_for_one_another",
        "streams_of_one_capture_wait_for_one_another",
    ],
)
def test_no_wait_crosses_the_boundary_of_a_capture(check, what):
    check(what)


def test_a_stream_of_another_device_is_refused(check):
    check("a_stream_of_another_device_is_refused")
