"""Processes on one device that know of each other, and give memory back before one fails.

`GPUPOOL_KILLS` says how many of them are killed at random moments, and `GPUPOOL_TEST_ROUNDS` how many times as much is
done at random.
"""

import contextlib
import json
import os
import re
import socket
from pathlib import Path

import gpupool
import pytest
from abi import build_nvml
from forks import run_program
from machines import Machine
from processes import start_python, succeeded
from running import functions_of, run_example

KILLS = int(os.environ.get("GPUPOOL_KILLS", "8"))
ROUNDS = int(os.environ.get("GPUPOOL_TEST_ROUNDS", "1"))
THOROUGH = pytest.mark.thorough
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may be another user")
# What is made to fail.
CALLS = (
    *("Bind", "ExchangeCaptureMode", "StreamQuery", "EventCreate", "EventRecord", "EventQuery", "StreamCaptureStatus"),
    *("MemoryUnmap", "ExtentRelease", "ContextSynchronize", "HostAllocate", "CopyToHost", "StreamSynchronize"),
)
# As bytes in the environment need not be text.
NOT_UTF8 = os.fsdecode(b"\xff\xfe")
# Programs that run on a GPU as well.
GPU_PROGRAMS = Path(__file__).parents[1] / "gpu" / "programs" / "neighbours"
TWO_DEVICES = GPU_PROGRAMS / "two_devices.py"
# The device of all processes of a test.
SMALL = str(64 << 20)
# The same where much of the memory is written again and again.
SMALLER = str(16 << 20)
# For what asks one that gives nothing, which is waited for as long as is allowed.
SOON = {"GPUPOOL_NEIGHBOUR_DEADLINE_MS": "1000"}
# What cases need of the environment.
VARIABLES = {
    "nobody_is_asked_by_one_that_is_no_neighbour": {"GPUPOOL_NEIGHBOURS": "0"},
    "a_stopped_one_is_passed_by": SOON,
    "a_pool_at_work_stays_awake": SOON,
    "a_pool_beside_a_capture_stays_awake": SOON,
    "many_of_ones_own_that_never_answer_hide_nobody": SOON,
    # One that never answers is waited for an eighth of it.
    "a_child_that_keeps_a_neighbours_socket_is_none": {"GPUPOOL_NEIGHBOUR_DEADLINE_MS": "16000"},
    "what_the_environment_says_holds_until_a_call": {
        "GPUPOOL_NEIGHBOUR_NAME": "by name",
        "GPUPOOL_NEIGHBOUR_GUARANTEE": str(3 << 20),
        "GPUPOOL_NEIGHBOUR_MOST": str(5 << 20),
        "GPUPOOL_NEIGHBOUR_PRIORITY": "-7",
    },
    "a_limit_of_the_system_counts_as_the_devices_size": {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=3G,0=40MB"},
    "turns_whose_peaks_do_not_fit_together": {"GPUPOOL_HOST_MEMORY": SMALLER},
}


@pytest.fixture
def together(tmp_path):
    """Return variables for processes that have one device, and meet nobody else."""
    folders = {name: tmp_path / name for name in ("device", "neighbours")}
    for folder in folders.values():
        folder.mkdir()
    return {
        "GPUPOOL_HOST_MEMORY": SMALL,
        "GPUPOOL_HOST_SHARED": str(folders["device"]),
        "GPUPOOL_NEIGHBOURS": str(folders["neighbours"]),
        # On a busy machine nobody is passed by that is not stopped.
        "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "4000",
    }


@pytest.mark.parametrize("case", functions_of("neighbours/give.py"))
def test_a_process_without_memory_is_given_what_others_can_do_without(together, case):
    run_program("neighbours/give.py", case, **{**together, **VARIABLES.get(case, {})})


@pytest.mark.parametrize("case", functions_of("neighbours/meet.py"))
def test_neighbours_know_what_others_hold_as_long_as_these_live(together, case):
    # Who waited for a process that is gone would wait too long.
    together["GPUPOOL_NEIGHBOUR_DEADLINE_MS"] = "40000"
    run_program("neighbours/meet.py", case, **{**together, **VARIABLES.get(case, {})})


@pytest.mark.parametrize("case", functions_of("neighbours/turns.py"))
def test_claims_wait_for_their_turn(together, case):
    run_program("neighbours/turns.py", case, **{**together, **VARIABLES.get(case, {})})


@pytest.mark.timeout(220 + 5 * KILLS)
@pytest.mark.parametrize("kills", [KILLS, pytest.param(30, marks=THOROUGH)])
def test_a_process_killed_at_any_moment_leaves_nothing_behind(together, kills):
    # Who waited for one that is gone, or for what one at work has in use, would wait too long.
    variables = {**together, "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "40000"}
    run_program("neighbours/killed.py", "killed_at_any_moment", kills, timeout=60 + 5 * kills, **variables)


MIB = 1 << 20
# The control group that programs of this process are in, and NVML's largest number, which is no limit.
GROUP = re.compile(r"^0::(/.*)$", re.MULTILINE).search(Path("/proc/self/cgroup").read_text())
NO_LIMIT = str(2**64 - 1)


@pytest.mark.parametrize(
    ("variables", "macros", "told"),
    [
        # Of the limit the group has used 64 MiB, and NVML's library was there before anybody asked.
        ({}, (), (256 * MIB, 192 * MIB, True)),
        ({"FAKE_GROUP": "/sys/fs/cgroup/another"}, (), (None, 1024 * MIB, True)),
        ({"FAKE_HARD_LIMIT": NO_LIMIT}, (), (None, 1024 * MIB, True)),
        ({"FAKE_HARD_LIMIT": "0"}, (), (None, 1024 * MIB, True)),
        ({"FAKE_FAIL": "nvmlInit_v2=3"}, (), (None, 1024 * MIB, True)),
        ({"FAKE_FAIL": "nvmlDeviceGetHandleByUUID=3"}, (), (None, 1024 * MIB, True)),
        ({"FAKE_FAIL": "nvmlDeviceGetMemoryLimits_v1=999"}, (), (None, 1024 * MIB, True)),
        # An older one is not begun.
        ({}, ("-DWITHOUT_MEMORY_LIMITS",), (None, 1024 * MIB, False)),
    ],
    ids=(
        *("a limit", "another group", "no limit", "of 0 bytes", "nvmlInit_v2 fails", "by UUID fails", "limits fail"),
        "older",
    ),
)
def test_a_limit_of_nvml_counts_as_the_devices_size(together, tmp_path, variables, macros, told):
    """A process is told what it can have on a driver of 1 GiB with NVML."""
    if GROUP is None:
        pytest.skip("needs control groups of version 2")
    build_nvml(tmp_path / "driver", *macros)
    group = f"/sys/fs/cgroup{GROUP[1]}".rstrip("/")
    nvml = {"FAKE_GROUP": group, "FAKE_GROUP_USED": str(64 * MIB), "FAKE_HARD_LIMIT": str(256 * MIB), **variables}
    neighbours = together["GPUPOOL_NEIGHBOURS"]
    found = json.loads(Machine("cuda", tmp_path).run("neighbours/limited.py", GPUPOOL_NEIGHBOURS=neighbours, **nvml))
    assert (found["limit"], found["available"], found["is_loaded_by_joining"]) == told


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("GPUPOOL_NEIGHBOURS", value) for value in ("on", "2", "folder", NOT_UTF8)),
        ("GPUPOOL_NEIGHBOUR_NAME", NOT_UTF8),
        *(("GPUPOOL_NEIGHBOUR_GUARANTEE", value) for value in ("-1", "1 GiB", str(2**63))),
        *(("GPUPOOL_NEIGHBOUR_MOST", value) for value in ("-1", "1 GiB", str(2**63))),
        *(("GPUPOOL_NEIGHBOUR_PRIORITY", value) for value in ("low", str(2**31), "1.5")),
        *(("GPUPOOL_NEIGHBOUR_DEADLINE_MS", value) for value in ("0", "-1", "soon")),
    ],
)
def test_a_variable_that_cannot_be_right_is_named(together, variable, value):
    run_program("neighbours/refused.py", "a_variable", variable, **{**together, variable: value})


@pytest.mark.parametrize(("case", "guarantee"), [("a_guarantee_above_the_most", 5), ("a_guarantee_of_the_most", 4)])
def test_a_guarantee_in_the_environment_is_not_above_the_most(together, case, guarantee):
    limits = {"GPUPOOL_NEIGHBOUR_GUARANTEE": str(guarantee), "GPUPOOL_NEIGHBOUR_MOST": "4"}
    run_program("neighbours/refused.py", case, **together, **limits)


def bind(place):
    with contextlib.chdir(place.parent), socket.socket(socket.AF_UNIX) as one:
        one.bind(place.name)


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.touch, bind, lambda place: None], ids=["fifo", "file", "socket", "nothing"]
)
def test_what_is_no_directory_is_named(together, tmp_path, make):
    place = tmp_path / "nowhere"
    make(place)
    together["GPUPOOL_NEIGHBOURS"] = str(place)
    run_program("neighbours/refused.py", "a_directory", **together)


# What only root can do, or what takes until a process looks by itself.
MARKS = {
    "another_user": [NEEDS_ROOT],
    "names_of_another_user_hide_nobody": [NEEDS_ROOT],
    "one_that_asks_nobody_is_found_again": [THOROUGH],
}


def marked(name):
    """Return the cases of a program, with marks."""
    return [pytest.param(case, marks=MARKS.get(case, ())) for case in functions_of(name)]


@pytest.mark.parametrize("case", marked("neighbours/strangers.py"))
def test_strangers_get_nothing_and_harm_no_other(together, case):
    run_program("neighbours/strangers.py", case, **together)


@pytest.mark.parametrize("case", marked("neighbours/sandboxed.py"))
def test_who_cannot_be_asked_is_not_taken_for_nobody(together, case):
    Path(together["GPUPOOL_NEIGHBOURS"]).chmod(0o777)
    if run_program("neighbours/sandboxed.py", case, **{**together, **VARIABLES.get(case, {})}):
        pytest.skip("needs seccomp")


@pytest.mark.parametrize("case", functions_of("neighbours/once.py"))
def test_what_is_claimed_is_granted_once(together, case):
    # Some wait for one that is stopped.
    run_program("neighbours/once.py", case, **{**together, **SOON})


@pytest.mark.timeout(60 * ROUNDS)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=THOROUGH)])
def test_holders_of_claims_hold_no_more_than_the_device_has(together, seed):
    variables = {**together, "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "100"}
    run_program(
        "neighbours/random_claims.py",
        "hold_no_more_than_there_is",
        seed,
        60 * ROUNDS,
        timeout=60 * ROUNDS,
        **variables,
    )


@pytest.mark.timeout(60 * ROUNDS)
@pytest.mark.parametrize(("case", "count"), [("questions", 20_000), ("answers", 1_000)])
def test_packets_made_at_random_harm_nobody(together, case, count):
    variables = {**together, "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "100"}
    run_program("neighbours/packets.py", case, 1, count * ROUNDS, timeout=60 * ROUNDS, **variables)


@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_of_the_driver_while_memory_is_given_loses_nothing(together, call):
    run_program(
        "neighbours/faults.py",
        "whatever_call_fails_nothing_is_lost",
        call,
        **{**together, "GPUPOOL_HOST_MEMORY": SMALLER},
    )


@pytest.mark.parametrize("operations", [50, pytest.param(150, marks=THOROUGH)])
def test_four_processes_without_memory_for_all_keep_every_word(together, operations):
    run_program(GPU_PROGRAMS / "soak.py", int(SMALL) >> 20, operations, 0, **together)


@pytest.mark.parametrize("case", functions_of(TWO_DEVICES))
def test_neighbours_on_two_devices_give_where_memory_is_short(together, case):
    run_program(TWO_DEVICES, case, **{**together, "GPUPOOL_HOST_DEVICES": "2", "GPUPOOL_HOST_MEMORY": str(256 << 20)})


def test_the_example_has_two_workers_whose_peaks_take_turns():
    first, *turns, last = run_example("two_workers", "--mib", "64", GPUPOOL_NEIGHBOUR_DEADLINE_MS="4000")
    assert first.startswith("turn 0: B gave 0 MiB to A, which has 64 MiB now; ")
    told = [
        re.fullmatch(r"turn \d: (.) gave (\d+) MiB to (.), which has (\d+) MiB now; . keeps (\d+) MiB", turn)
        for turn in turns
    ]
    assert [(each[1], each[3]) for each in told] == [("A", "B"), ("B", "A"), ("A", "B")]
    for each in told:
        given, has, keeps = (int(each[place]) for place in (2, 4, 5))
        assert (given + keeps, has) == (64, 64)
        # Not below the guarantee.
        assert given >= 48
        assert keeps >= 4
    assert last == "all 4 peaks were right, in 72 MiB for both"


def test_the_bench_has_all_that_it_measures_on_a_gpu_but_the_driver():
    bench = Path(__file__).parents[2] / "benches" / "neighbours.py"
    small = ("--mib", "32", "--rounds", "1", "--trainings", "1", "--steps", "2")
    done = start_python(bench, *small, folders=[Path(gpupool.__file__).parents[1]], GPUPOOL_RUNTIME="host")
    free, asleep, *trainings = map(json.loads, succeeded(done).splitlines())
    assert (free["work"], free["given_mib"]) == ("free memory", 32)
    assert (asleep["work"], asleep["words_right"]) == ("a pool that sleeps for it", True)
    assert [each["work"].split(": ")[0] for each in trainings] == ["two trainings"] * 3
