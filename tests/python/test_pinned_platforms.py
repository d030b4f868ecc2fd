"""Pinned memory over ABI doubles of the drivers: the true bindings, and every way in which a driver can refuse."""

import pytest
from forks import Machine
from running import functions_of

PROGRAM = "platforms/pinned.py"
EVERYWHERE = [
    "it_can_be_written_and_comes_back",
    "nothing_is_lost_when_the_driver_refuses",
    "that_cannot_be_locked_is_told",
]
WITHOUT_GRAPHS = "without_word_of_graphs_it_is_not_used_again"


def run(machine, case, extents, **variables):
    """Run a case with extents of the host's nodes, 1, or segments alone, 0."""
    machine.run(PROGRAM, case, FAKE_VMM=extents, FAKE_HOST_VMM=extents, **variables)


@pytest.fixture(params=["cuda", "hip"])
def machine(request, tmp_path):
    return Machine(request.param, tmp_path)


EXTENTS = pytest.mark.parametrize("extents", ["0", "1"], ids=["segments", "extents"])


@EXTENTS
@pytest.mark.parametrize("case", EVERYWHERE)
def test_pinned_memory(machine, case, extents):
    run(machine, case, extents)


@EXTENTS
def test_no_context_is_made_on_a_device_that_is_not_used(tmp_path, extents):
    run(Machine("cuda", tmp_path), "no_context_is_made_where_none_is_used", extents)


@pytest.mark.parametrize(
    "case", functions_of(PROGRAM, *EVERYWHERE, "no_context_is_made_where_none_is_used", WITHOUT_GRAPHS)
)
def test_extents_of_the_host(tmp_path, case):
    run(Machine("cuda", tmp_path), case, "1")


def test_where_devices_have_other_addresses_for_registered_memory_the_driver_allocates_it(tmp_path):
    run(Machine("cuda", tmp_path), "large_needs_are_registered_in_one_piece", "1", FAKE_IN_PLACE="0")


def test_where_graphs_are_not_told_of_their_memory_is_not_used_again(machine):
    machine.build("-DWITHOUT_GRAPH_OBJECTS")
    run(machine, WITHOUT_GRAPHS, "1")
