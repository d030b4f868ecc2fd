"""Buffers that other processes use."""

import os

import pytest
from forks import Machine, run_program
from running import functions_of, run_example

# A device without room for two large buffers.
SMALL = str(64 << 20)


@pytest.mark.parametrize("how", functions_of("share/travels.py"))
def test_a_buffer_is_the_same_memory_in_other_processes(how):
    run_program("share/travels.py", how)


@pytest.mark.parametrize("case", functions_of("share/lifetimes.py"))
def test_a_shared_block_stays_as_long_as_any_process_uses_it(case):
    run_program("share/lifetimes.py", case, GPUPOOL_HOST_MEMORY=SMALL)


@pytest.mark.parametrize("case", functions_of("share/order.py"))
def test_work_of_both_sides_comes_in_order(case):
    run_program("share/order.py", case, GPUPOOL_HOST_MEMORY=SMALL)


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[NEEDS_ROOT] if case == "another_user" else [])
        for case in functions_of("share/strangers.py")
    ],
)
def test_strangers_get_nothing_and_harm_no_other(case):
    run_program("share/strangers.py", case)


# Cases that need a larger device, or more than one.
OTHER_DEVICES = {
    "a_stopped_process_holds_up_no_other": {"GPUPOOL_HOST_MEMORY": None},
    "the_oldest_go_first": {"GPUPOOL_HOST_MEMORY": None},
    "on_two_devices": {"GPUPOOL_HOST_MEMORY": None, "GPUPOOL_HOST_DEVICES": "2"},
}


@pytest.mark.parametrize("case", functions_of("share/idle.py"))
def test_what_is_let_go_stays_mapped_until_its_owner_gives_it_back(case):
    run_program("share/idle.py", case, **{"GPUPOOL_HOST_MEMORY": SMALL, **OTHER_DEVICES.get(case, {})})


@pytest.mark.parametrize("case", functions_of("share/faults.py"))
def test_what_fails_leaves_both_processes_as_they_were(case):
    run_program("share/faults.py", case)


# Where there is no room for two of them.
FULL = {"GPUPOOL_HOST_DEVICES": "2", "GPUPOOL_HOST_MEMORY": str(16 << 20)}


@pytest.mark.parametrize("case", functions_of("share/peers.py"))
def test_peers_use_attached_memory_which_comes_back_whoever_ends_first(case):
    run_program("share/peers.py", case, **(FULL if case.endswith("ends_first") else {"GPUPOOL_HOST_DEVICES": "3"}))


def test_c_programs_share_any_pointer():
    run_program("share/c_functions.py", "main")


@pytest.mark.parametrize("platform", ["cuda", "hip"])
@pytest.mark.parametrize("how", ["by_tokens", "by_multiprocessing", "what_was_attached_twice"])
def test_the_drivers_calls_share_memory_too(platform, how, tmp_path):
    machine = Machine(platform, tmp_path)
    machine.run("share/travels.py", how, FAKE_VMM="1", FAKE_RDMA="1")


def test_memory_that_the_driver_does_not_export_is_refused(tmp_path):
    machine = Machine("cuda", tmp_path)
    for variables in ({"FAKE_SHAREABLE": "0"}, {"FAKE_REFUSES_SHAREABLE": "1"}, {"FAKE_VMM": "0"}):
        machine.run("share/refused.py", "not_exported", **{"FAKE_VMM": "1", **variables})


def test_memory_that_cannot_be_shared_is_refused_by_name():
    run_program("share/refused.py", "by_name")


def test_the_example_has_processes_that_pass_an_array_on():
    assert run_example("relay_between_frameworks", "--mib", "4")[-1] == "NumPy -> NumPy -> NumPy: every number is right"
