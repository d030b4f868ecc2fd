"""Streams of green contexts on doubles of the driver and of cuBLAS, on machines with one device and with two."""

import pytest
from forks import Machine


@pytest.fixture
def machine(tmp_path):
    """Return a machine with cuBLAS."""
    machine = Machine("cuda", tmp_path)
    machine.install("cublaslt")
    machine.install("cublas")
    return machine


@pytest.fixture
def check(machine):
    """Run one of the programs about green contexts there."""
    return lambda *arguments, **variables: machine.run("platforms/green_contexts.py", *arguments, **variables)


@pytest.mark.parametrize("virtual_memory", ["0", "1"])
@pytest.mark.parametrize("devices", ["1", "2"])
@pytest.mark.parametrize(
    "what",
    [
        "handles_and_leases_are_its_device_s",
        "one_that_is_current_is_left_so",
        "memory_is_its_device_s",
        "a_capture_survives",
        "a_destroyed_one_takes_no_memory_along",
        "a_destroyed_one_ends_its_capture",
    ],
)
def test_a_stream_is_its_device_s(check, what, devices, virtual_memory):
    check(what, FAKE_DEVICES=devices, FAKE_VMM=virtual_memory)


def test_a_stream_of_a_destroyed_one_is_refused(check):
    check("a_destroyed_one_s_stream_is_refused")


def test_a_stream_of_a_context_of_a_program_s_own_is_refused(check):
    check("one_of_a_program_s_own_context_is_refused")


def test_a_driver_before_cuda_12_5_cannot_tell_whose_a_stream_is(machine, check):
    machine.build("-DWITHOUT_GREEN_CONTEXTS")
    check("an_old_driver_cannot_tell")
    check("handles_and_leases_are_its_device_s", FAKE_DEVICES="1")
