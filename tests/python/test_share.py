"""Buffers that other processes use."""

import os
from pathlib import Path

import gpupool
import pytest
from forks import Machine, run_program
from processes import start_python, succeeded

# A device without room for two large buffers.
SMALL = str(64 << 20)


@pytest.mark.parametrize(
    "how",
    [
        "by_tokens",
        "in_the_middle_of_a_page",
        "by_multiprocessing",
        "by_nothing_else",
        "what_attaches_its_own",
        "what_is_attached_is_not_shared_on",
        "what_was_attached_twice",
    ],
)
def test_a_buffer_is_the_same_memory_in_other_processes(how):
    run_program("share/travels.py", how)


@pytest.mark.parametrize(
    "case",
    [
        "freed_by_a_process",
        "left_by_a_process",
        "left_by_a_killed_process",
        "freed_here_last",
        "attached_twice",
        "never_read",
        "sent_and_freed",
        "recalled",
        "owner_ends_first",
        "owner_whose_child_keeps_its_socket_ends",
        "child_of_an_attached_process",
        "sleep_is_refused",
        "a_thousand",
    ],
)
def test_a_shared_block_stays_as_long_as_any_process_uses_it(case):
    run_program("share/lifetimes.py", case, GPUPOOL_HOST_MEMORY=SMALL)


@pytest.mark.parametrize(
    "case",
    [
        "what_the_owner_submitted_comes_first",
        "a_dead_owner_is_not_waited_for",
        "what_the_others_submitted_comes_before_its_next_use",
        "what_was_recorded_on_another_stream_counts",
        "a_killed_process_has_no_work_left",
        "captures_are_refused_and_not_spoilt",
    ],
)
def test_work_of_both_sides_comes_in_order(case):
    run_program("share/order.py", case, GPUPOOL_HOST_MEMORY=SMALL)


@pytest.mark.parametrize(
    "case",
    [
        "rubbish",
        "stalling",
        "many_that_are_silent",
        "guesses",
        "extents_that_have_gone_back_are_not_given",
        "an_answer_that_is_not_waited_for_holds_nothing",
        "what_was_let_go_by_a_connection_that_is_ended_is_let_go",
        "tokens_of_elsewhere",
        "tokens_that_say_more_than_is_there",
        "nothing_is_left_in_the_file_system",
        "owners_that_lie_harm_nobody",
        "an_owner_that_tells_of_more_than_it_names_is_asked_no_more",
        "an_owner_that_names_mappings_without_an_end_delays_no_other",
        pytest.param(
            "another_user", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
        ),
    ],
)
def test_strangers_get_nothing_and_harm_no_other(case):
    run_program("share/strangers.py", case)


@pytest.mark.parametrize(
    "case",
    [
        "it_is_attached_again_without_a_mapping",
        "the_owner_uses_the_memory_at_once",
        "a_new_buffer_where_one_was_needs_no_mapping",
        "two_buffers_in_one_extent_have_one_mapping",
        "an_extents_number_that_comes_again_is_another_extent",
        "what_is_given_back_is_unmapped",
        "what_lacks_memory_waits_for_other_processes",
        "what_a_pool_had_is_unmapped_as_it_ends",
        "what_the_owner_cannot_release_is_another_region",
        "freed_while_it_is_attached",
        "a_pool_that_sleeps_has_its_memory_back",
        "what_sleeps_and_wakes_unheard_is_not_used",
        "sleep_that_is_refused_leaves_it",
        "an_owner_that_ends_leaves_nothing",
        "a_process_that_is_killed_is_not_waited_for",
        "a_forked_child_leaves_it_alone",
        "a_process_without_room_for_files_attaches",
        "a_process_without_room_for_an_event_holds_nothing",
        "whatever_call_fails_it_ends",
    ],
)
def test_what_is_let_go_stays_mapped_until_its_owner_gives_it_back(case):
    run_program("share/idle.py", case, GPUPOOL_HOST_MEMORY=SMALL)


@pytest.mark.parametrize("case", ["a_stopped_process_holds_up_no_other", "the_oldest_go_first"])
def test_many_regions_stay_mapped(case):
    run_program("share/idle.py", case)


def test_what_is_let_go_stays_mapped_for_each_device():
    run_program("share/idle.py", "on_two_devices", GPUPOOL_HOST_DEVICES="2")


@pytest.mark.parametrize(
    "case", ["while_attaching", "while_attaching_what_is_mapped", "while_sharing", "while_letting_go"]
)
def test_what_fails_leaves_both_processes_as_they_were(case):
    run_program("share/faults.py", case)


@pytest.mark.parametrize("case", ["attached_before_and_after", "attached_for_another_device"])
def test_peers_use_attached_memory(case):
    run_program("share/peers.py", case, GPUPOOL_HOST_DEVICES="3")


@pytest.mark.parametrize("case", ["the_owner_ends_first", "who_attached_it_ends_first"])
def test_memory_that_a_peer_uses_comes_back_whoever_ends_first(case):
    run_program("share/peers.py", case, GPUPOOL_HOST_DEVICES="2", GPUPOOL_HOST_MEMORY=str(16 << 20))


def test_c_programs_share_any_pointer():
    run_program("share/c_functions.py")


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
    example = Path(__file__).parents[2] / "examples" / "relay_between_frameworks.py"
    said = succeeded(
        start_python(example, "--mib", "4", GPUPOOL_RUNTIME="host", folders=[Path(gpupool.__file__).parents[1]])
    )
    assert said.splitlines()[-1] == "NumPy -> NumPy -> NumPy: every number is right"
