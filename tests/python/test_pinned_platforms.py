"""Pinned memory over ABI doubles of the drivers: the true bindings, and every way in which a driver can refuse."""

import pytest
from forks import Machine
from running import functions_of


@pytest.fixture(params=["cuda", "hip"])
def machine(request, tmp_path):
    return Machine(request.param, tmp_path)


@pytest.fixture
def cuda(tmp_path):
    return Machine("cuda", tmp_path)


# Extents of the host's nodes, or segments alone.
EXTENTS = pytest.mark.parametrize("extents", ["0", "1"], ids=["segments", "extents"])


def variables(extents):
    return {"FAKE_VMM": extents, "FAKE_HOST_VMM": extents}


@EXTENTS
def test_it_can_be_written_and_comes_back(machine, extents):
    machine.run("platforms/pinned.py", "it_can_be_written_and_comes_back", **variables(extents))


def test_large_needs_are_registered_in_one_piece(cuda):
    names = ("cuMemHostRegister_v2", "cuMemHostUnregister")
    cuda.run("platforms/pinned.py", "large_needs_are_registered_in_one_piece", *names, **variables("1"))


def test_where_devices_have_other_addresses_for_registered_memory_the_driver_allocates_it(cuda):
    names = ("cuMemHostAlloc", "cuMemFreeHost")
    program = ("platforms/pinned.py", "large_needs_are_registered_in_one_piece")
    cuda.run(*program, *names, FAKE_IN_PLACE="0", **variables("1"))


@EXTENTS
def test_no_context_is_made_on_a_device_that_is_not_used(cuda, extents):
    cuda.run("platforms/pinned.py", "no_context_is_made_where_none_is_used", **variables(extents))


CALLS = {
    ("cuda", "0"): ["cuMemHostRegister_v2", "cuMemHostUnregister"],
    ("cuda", "1"): ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemHostRegister_v2"],
    ("hip", "0"): ["hipHostMalloc", "hipHostFree"],
}


@EXTENTS
def test_nothing_is_lost_when_the_driver_refuses(machine, extents):
    status = {"cuda": "CUDA_ERROR_INVALID_VALUE", "hip": "hipErrorInvalidValue"}[machine.platform]
    functions = CALLS.get((machine.platform, extents), CALLS["hip", "0"])
    program = ("platforms/pinned.py", "nothing_is_lost_when_the_driver_refuses")
    machine.run(*program, status, *functions, **variables(extents))


@EXTENTS
def test_memory_that_cannot_be_locked_is_told_with_the_limit(machine, extents):
    functions = {"cuda": ["cuMemHostRegister_v2", "cuMemCreate"][: 1 + int(extents)], "hip": ["hipHostMalloc"]}
    program = ("platforms/pinned.py", "that_cannot_be_locked_is_told")
    machine.run(*program, *functions[machine.platform], **variables(extents))


@pytest.mark.parametrize(
    "function",
    functions_of(
        "platforms/pinned.py",
        "it_can_be_written_and_comes_back",
        "no_context_is_made_where_none_is_used",
        "without_word_of_graphs_it_is_not_used_again",
    ),
)
def test_extents_of_the_host(cuda, function):
    cuda.run("platforms/pinned.py", function, **variables("1"))


def test_where_graphs_are_not_told_of_their_memory_is_not_used_again(machine):
    machine.build("-DWITHOUT_GRAPH_OBJECTS")
    machine.run("platforms/pinned.py", "without_word_of_graphs_it_is_not_used_again", **variables("1"))
