"""Handles that take their device memory from a MemPool, on a double of cuDSS and of the driver."""

import pytest
from abi import build_library
from machines import Machine
from programs.shared.libraries import LIBRARIES


@pytest.fixture
def machine(tmp_path):
    """Return a machine with cuDSS."""
    machine = Machine("cuda", tmp_path)
    machine.build()
    machine.install("cudss")
    return machine


@pytest.fixture(params=["0", "1"], ids=["plain", "virtual"])
def run(machine, request):
    """Run a program there, without and with virtual memory."""

    def run(name, *arguments, **variables):
        machine.run(f"library_memory/{name}", *arguments, FAKE_VMM=request.param, **variables)

    return run


def test_a_library_s_memory_is_counted_and_used_again(run):
    run("handlers.py", "memory_is_counted_and_used_again")


def test_handles_of_threads_leases_and_new_ones_take_it(run):
    run("handlers.py", "those_of_threads_leases_and_new_ones_take_it")


def test_what_an_owner_sets_is_gone_at_the_next(run):
    run("handlers.py", "what_an_owner_sets_is_gone_at_the_next")


def test_what_an_owner_has_set_is_taken_off_first(run):
    run("handlers.py", "what_an_owner_has_set_is_taken_off_first")


def test_a_handle_that_has_memory_of_a_pool_can_give_it_back_ever_after(run):
    run("handlers.py", "one_that_has_memory_of_a_pool_can_give_it_back_ever_after")


def test_without_it_the_next_owner_gets_the_library_s_own(run):
    run("handlers.py", "without_it_the_next_owner_gets_the_library_s_own")


def test_memory_goes_back_to_where_it_came_from_whenever_it_changes(run):
    run("lifetimes.py", "memory_goes_back_to_where_it_came_from_whenever_it_changes")


def test_an_object_that_keeps_the_handler_it_was_made_with_can_free_by_it_for_ever(run):
    run("lifetimes.py", "an_object_can_free_by_the_handler_it_was_made_with_for_ever")


def test_a_pool_is_kept_as_long_as_a_library_takes_from_it(run):
    run("lifetimes.py", "a_pool_is_kept_as_long_as_a_library_takes_from_it")


def test_a_limit_or_a_full_device_fails_the_call_and_nothing_else(run):
    run("taking.py", "a_limit_or_a_full_device_fails_the_call_and_nothing_else", FAKE_MEMORY_MIB="1024")


def test_it_is_neither_the_thread_s_scope_nor_changed_by_it(run):
    run("taking.py", "the_thread_s_scope_is_neither_used_nor_changed")


def test_memory_is_freed_in_the_order_of_the_stream_that_frees(run):
    run("taking.py", "memory_is_freed_in_the_order_of_the_stream_that_frees")


def test_threads_take_and_give_at_once_while_it_changes(run):
    run("taking.py", "threads_take_and_give_at_once_while_it_changes")


def test_threads_that_end_leave_their_memory_and_their_handles(run):
    run("lifetimes.py", "threads_that_end_leave_their_memory_and_their_handles")


@pytest.mark.parametrize("then", ["none", "pool"])
def test_a_handle_that_is_destroyed_gives_its_own_back_though_its_stream_is_gone(run, then):
    run("lifetimes.py", "a_handle_that_is_destroyed_gives_its_own_back_though_its_stream_is_gone", then)


def test_a_handle_that_is_used_as_the_process_ends_crashes_nothing(machine):
    told = machine.run("library_memory/lifetimes.py", "a_handle_is_used_as_the_process_ends", FAKE_VMM="1")
    assert told == "frees True\nallocates True\n"


def test_a_forked_child_gets_a_status(machine):
    machine.run("library_memory/lifetimes.py", "a_forked_child_gets_a_status", FAKE_VMM="1")


def test_pinned_memory_is_gpupools_by_its_handler(run):
    run("pinned.py", "is_gpupools_and_waits_for_the_stream_that_frees")


def test_pinned_memory_by_its_handler_is_nothing_in_a_forked_child(run):
    run("pinned.py", "is_nothing_in_a_forked_child")


def test_a_refusal_names_the_function_and_loses_no_handle(machine):
    machine.run("library_memory/taking.py", "a_refusal_names_the_function_and_loses_no_handle")


def test_what_cannot_be_told_says_so(machine):
    build_library("cudss", machine.site_packages / LIBRARIES["cudss"].file, without="SET_MEMORY")
    machine.install("cusparse")
    machine.run("library_memory/unable.py", FAKE_VMM="1")


def test_arguments_that_cannot_be_right(machine):
    machine.run("library_memory/taking.py", "arguments_that_cannot_be_right", FAKE_VMM="1")
