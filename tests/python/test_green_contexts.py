"""Streams of green contexts on doubles of the driver and of cuBLAS, on machines with one device and with two."""

import pytest
from running import functions_of

PROGRAM = "platforms/green_contexts.py"
REFUSED = ("a_destroyed_one_s_stream_is_refused", "one_of_a_program_s_own_context_is_refused")


@pytest.fixture
def machine(machine_of):
    return machine_of("cublaslt", "cublas")


@pytest.mark.parametrize("virtual_memory", ["0", "1"])
@pytest.mark.parametrize("devices", ["1", "2"])
@pytest.mark.parametrize("what", functions_of(PROGRAM, *REFUSED, "an_old_driver_cannot_tell"))
def test_a_stream_is_its_device_s(machine, what, devices, virtual_memory):
    machine.run(PROGRAM, what, FAKE_DEVICES=devices, FAKE_VMM=virtual_memory)


@pytest.mark.parametrize("what", REFUSED)
def test_a_stream_that_is_no_device_s_is_refused(machine, what):
    machine.run(PROGRAM, what)


def test_a_driver_before_cuda_12_5_cannot_tell_whose_a_stream_is(machine):
    machine.build("-DWITHOUT_GREEN_CONTEXTS")
    machine.run(PROGRAM, "an_old_driver_cannot_tell")
    machine.run(PROGRAM, "handles_and_leases_are_its_device_s", FAKE_DEVICES="1")
