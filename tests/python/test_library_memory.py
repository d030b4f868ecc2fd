"""Handles that take their device memory from a MemPool, on a double of cuDSS and of the driver."""

import pytest
from abi import build_library
from programs.shared.libraries import LIBRARIES
from running import functions_of


@pytest.fixture
def machine(machine_of):
    return machine_of("cudss")


@pytest.fixture(params=["0", "1"], ids=["plain", "virtual"])
def run(machine, request):
    """Run a program there, without and with virtual memory."""

    def run(name, *arguments, **variables):
        machine.run(f"library_memory/{name}", *arguments, FAKE_VMM=request.param, **variables)

    return run


@pytest.mark.parametrize("function", functions_of("library_memory/handlers.py"))
def test_with_a_handler(run, function):
    run("handlers.py", function)


@pytest.mark.parametrize(
    "function",
    functions_of("library_memory/lifetimes.py", "a_handle_is_used_as_the_process_ends", "a_forked_child_gets_a_status"),
)
def test_lifetimes(run, function):
    run("lifetimes.py", function)


@pytest.mark.parametrize(
    "function",
    functions_of(
        "library_memory/taking.py", "a_refusal_names_the_function_and_loses_no_handle", "arguments_that_cannot_be_right"
    ),
)
def test_taking(run, function):
    run("taking.py", function, FAKE_MEMORY_MIB="1024")


@pytest.mark.parametrize("then", ["none", "pool"])
def test_a_handle_that_is_destroyed_gives_its_own_back_though_its_stream_is_gone(run, then):
    run("lifetimes.py", "a_handle_that_is_destroyed_gives_its_own_back_though_its_stream_is_gone", then)


def test_a_handle_that_is_used_as_the_process_ends_crashes_nothing(machine):
    told = machine.run("library_memory/lifetimes.py", "a_handle_is_used_as_the_process_ends", FAKE_VMM="1")
    assert told == "frees True\nallocates True\n"


def test_a_forked_child_gets_a_status(machine):
    machine.run("library_memory/lifetimes.py", "a_forked_child_gets_a_status", FAKE_VMM="1")


@pytest.mark.parametrize("function", functions_of("library_memory/pinned.py"))
def test_pinned_memory_by_its_handler(run, function):
    run("pinned.py", function)


def test_what_cannot_be_told_says_so(machine):
    build_library("cudss", machine.site_packages / LIBRARIES["cudss"].file, without="SET_MEMORY")
    machine.install("cusparse")
    machine.run("library_memory/unable.py", "main", FAKE_VMM="1")


def test_a_refusal_names_the_function_and_loses_no_handle(machine):
    machine.run("library_memory/taking.py", "a_refusal_names_the_function_and_loses_no_handle")


def test_arguments_that_cannot_be_right(machine):
    machine.run("library_memory/taking.py", "arguments_that_cannot_be_right", FAKE_VMM="1")


# What the library answers if a handler is to be taken off: it does so, as cuStateVec's documentation says, or refuses,
# as cuTensorNet may, whose documentation says nothing.
STAYS = ("a_handler_that_stays_ends_the_handle", "an_owners_handler_is_told_where_it_cannot_go")


@pytest.mark.parametrize("function", functions_of("library_memory/quantum.py"))
@pytest.mark.parametrize("name", ["custatevec", "cutensornet"])
def test_memory_for_the_time_of_a_call(machine_of, name, function):
    machine = machine_of(name)
    if function in STAYS:
        build_library(name, machine.site_packages / LIBRARIES[name].file, handler_stays=7)
    machine.run("library_memory/quantum.py", function, name, FAKE_VMM="1")
