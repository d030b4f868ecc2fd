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
from running import functions_of

KILLS = int(os.environ.get("GPUPOOL_KILLS", "8"))
ROUNDS = int(os.environ.get("GPUPOOL_TEST_ROUNDS", "1"))
THOROUGH = pytest.mark.thorough
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may be another user")
# What is made to fail.
CALLS = (
    *("Bind", "ExchangeCaptureMode", "StreamQuery", "EventCreate", "EventRecord", "EventQuery", "StreamCaptureStatus"),
    *("MemoryUnmap", "ExtentRelease", "ContextSynchronize", "HostAllocate", "CopyToHost", "StreamSynchronize"),
)
# What needs more of the environment.
WITH_VARIABLES = (
    "what_the_environment_says_holds_until_a_call",
    "a_limit_of_the_system_counts_as_the_devices_size",
)
# As bytes in the environment need not be text.
NOT_UTF8 = os.fsdecode(b"\xff\xfe")
# What asks one that gives nothing, as long as is allowed.
WAITED_FOR = ("a_stopped_one_is_passed_by", "a_pool_at_work_stays_awake", "a_pool_beside_a_capture_stays_awake")
# Programs that run on a GPU as well.
GPU_PROGRAMS = Path(__file__).parents[1] / "gpu" / "programs" / "neighbours"
TWO_DEVICES = GPU_PROGRAMS / "two_devices.py"
# The device of all processes of a test.
SMALL = str(64 << 20)
# The same where much of the memory is written again and again.
SMALLER = str(16 << 20)


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
    if case == "nobody_is_asked_by_one_that_is_no_neighbour":
        together["GPUPOOL_NEIGHBOURS"] = "0"
    if case in WAITED_FOR:
        together["GPUPOOL_NEIGHBOUR_DEADLINE_MS"] = "1000"
    run_program("neighbours/give.py", case, **together)


@pytest.mark.parametrize("case", functions_of("neighbours/meet.py", *WITH_VARIABLES))
def test_neighbours_know_what_others_hold_as_long_as_these_live(together, case):
    # Who waited for a process that is gone would wait too long. One that never answers is waited for an eighth of it.
    deadline = "16000" if case == "a_child_that_keeps_a_neighbours_socket_is_none" else "40000"
    run_program("neighbours/meet.py", case, **{**together, "GPUPOOL_NEIGHBOUR_DEADLINE_MS": deadline})


@pytest.mark.parametrize("case", functions_of("neighbours/turns.py"))
def test_claims_wait_for_their_turn(together, case):
    if case == "turns_whose_peaks_do_not_fit_together":
        together["GPUPOOL_HOST_MEMORY"] = SMALLER
    run_program("neighbours/turns.py", case, **together)


@pytest.mark.timeout(220 + 5 * KILLS)
@pytest.mark.parametrize("kills", [KILLS, pytest.param(30, marks=THOROUGH)])
def test_a_process_killed_at_any_moment_leaves_nothing_behind(together, kills):
    # Who waited for one that is gone, or for what one at work has in use, would wait too long.
    variables = {**together, "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "40000", "GPUPOOL_KILLS": str(kills)}
    run_program("neighbours/killed.py", timeout=60 + 5 * kills, **variables)


def test_the_environment_says_what_no_call_has(together):
    said = {
        "GPUPOOL_NEIGHBOUR_NAME": "by name",
        "GPUPOOL_NEIGHBOUR_GUARANTEE": str(3 << 20),
        "GPUPOOL_NEIGHBOUR_MOST": str(5 << 20),
        "GPUPOOL_NEIGHBOUR_PRIORITY": "-7",
    }
    run_program("neighbours/meet.py", "what_the_environment_says_holds_until_a_call", **together, **said)


def test_a_limit_of_the_system_counts_as_the_devices_size(together):
    limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=3G,0=40MB"}
    run_program("neighbours/meet.py", "a_limit_of_the_system_counts_as_the_devices_size", **together, **limit)


MIB = 1 << 20
# The control group that programs of this process are in, and NVML's largest number, which is no limit.
GROUP = re.compile(r"^0::(/.*)$", re.MULTILINE).search(Path("/proc/self/cgroup").read_text())
NO_LIMIT = str(2**64 - 1)


def limits_told(folder, neighbours, **variables):
    """Return what a process is told of its limit, and can have, on a driver of 1 GiB with NVML."""
    nvml = {"FAKE_GROUP_USED": str(64 * MIB), "FAKE_HARD_LIMIT": str(256 * MIB), "GPUPOOL_NEIGHBOURS": neighbours}
    return json.loads(Machine("cuda", folder).run("neighbours/limited.py", **{**nvml, **variables}))


@pytest.fixture
def group():
    """Return the directory of this process's control group."""
    if GROUP is None:
        pytest.skip("needs control groups of version 2")
    return f"/sys/fs/cgroup{GROUP[1]}".rstrip("/")


def test_a_limit_of_nvml_counts_as_the_devices_size(together, tmp_path, group):
    build_nvml(tmp_path / "driver")
    told = limits_told(tmp_path, together["GPUPOOL_NEIGHBOURS"], FAKE_GROUP=group)
    # Of the limit the group has used 64 MiB, and NVML's library was there before anybody asked.
    assert told == {"limit": 256 * MIB, "available": 192 * MIB, "is_loaded_by_joining": True}


@pytest.mark.parametrize(
    "variables",
    [
        {"FAKE_GROUP": "/sys/fs/cgroup/another"},
        {"FAKE_HARD_LIMIT": NO_LIMIT},
        {"FAKE_HARD_LIMIT": "0"},
        *({"FAKE_FAIL": f"{name}=3"} for name in ("nvmlInit_v2", "nvmlDeviceGetHandleByUUID")),
        {"FAKE_FAIL": "nvmlDeviceGetMemoryLimits_v1=999"},
    ],
    ids=lambda variables: "-".join(map("=".join, variables.items())).replace("/", " "),
)
def test_nvml_that_tells_of_no_limit(together, tmp_path, group, variables):
    build_nvml(tmp_path / "driver")
    told = limits_told(tmp_path, together["GPUPOOL_NEIGHBOURS"], **{"FAKE_GROUP": group, **variables})
    assert (told["limit"], told["available"]) == (None, 1024 * MIB)


def test_an_older_nvml_has_no_limits_and_is_not_begun(together, tmp_path, group):
    build_nvml(tmp_path / "driver", "-DWITHOUT_MEMORY_LIMITS")
    told = limits_told(tmp_path, together["GPUPOOL_NEIGHBOURS"], FAKE_GROUP=group)
    assert told == {"limit": None, "available": 1024 * MIB, "is_loaded_by_joining": False}


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


@pytest.mark.parametrize("kind", ["fifo", "file", "socket"])
def test_what_is_no_directory_is_named(together, tmp_path, kind):
    place = tmp_path / "nowhere"
    {"fifo": os.mkfifo, "file": Path.touch, "socket": bind}[kind](place)
    together["GPUPOOL_NEIGHBOURS"] = str(place)
    run_program("neighbours/refused.py", "a_directory", **together)


def bind(place):
    with contextlib.chdir(place.parent), socket.socket(socket.AF_UNIX) as one:
        one.bind(place.name)


def test_a_directory_that_is_not_there_is_named(together, tmp_path):
    together["GPUPOOL_NEIGHBOURS"] = str(tmp_path / "nowhere")
    run_program("neighbours/refused.py", "a_directory", **together)


@pytest.mark.parametrize(
    "case",
    [
        *functions_of("neighbours/strangers.py", "another_user"),
        pytest.param(
            "another_user", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
        ),
    ],
)
def test_strangers_get_nothing_and_harm_no_other(together, case):
    run_program("neighbours/strangers.py", case, **together)


# What only root can do, or what takes until a process looks by itself.
SANDBOXED = {
    "names_of_another_user_hide_nobody": [NEEDS_ROOT],
    "one_that_asks_nobody_is_found_again": [THOROUGH],
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=SANDBOXED.get(case, ())) for case in functions_of("neighbours/sandboxed.py")],
)
def test_who_cannot_be_asked_is_not_taken_for_nobody(together, case):
    Path(together["GPUPOOL_NEIGHBOURS"]).chmod(0o777)
    if case == "many_of_ones_own_that_never_answer_hide_nobody":
        together["GPUPOOL_NEIGHBOUR_DEADLINE_MS"] = "1000"
    if run_program("neighbours/sandboxed.py", case, **together):
        pytest.skip("needs seccomp")


@pytest.mark.parametrize("case", functions_of("neighbours/once.py"))
def test_what_is_claimed_is_granted_once(together, case):
    # Some wait for one that is stopped.
    run_program("neighbours/once.py", case, **{**together, "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "1000"})


@pytest.mark.timeout(60 * ROUNDS)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=THOROUGH)])
def test_holders_of_claims_hold_no_more_than_the_device_has(together, seed):
    variables = {**together, "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "100"}
    run_program("neighbours/random_claims.py", seed, 60 * ROUNDS, timeout=60 * ROUNDS, **variables)


@pytest.mark.timeout(60 * ROUNDS)
@pytest.mark.parametrize(("case", "count"), [("questions", 20_000), ("answers", 1_000)])
def test_packets_made_at_random_harm_nobody(together, case, count):
    variables = {**together, "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "100"}
    run_program("neighbours/packets.py", case, 1, count * ROUNDS, timeout=60 * ROUNDS, **variables)


@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_of_the_driver_while_memory_is_given_loses_nothing(together, call):
    run_program("neighbours/faults.py", call, **{**together, "GPUPOOL_HOST_MEMORY": SMALLER})


@pytest.mark.parametrize("operations", [50, pytest.param(150, marks=THOROUGH)])
def test_four_processes_without_memory_for_all_keep_every_word(together, operations):
    run_program(GPU_PROGRAMS / "soak.py", int(SMALL) >> 20, operations, 0, **together)


@pytest.mark.parametrize("case", functions_of(TWO_DEVICES))
def test_neighbours_on_two_devices_give_where_memory_is_short(together, case):
    run_program(TWO_DEVICES, case, **{**together, "GPUPOOL_HOST_DEVICES": "2", "GPUPOOL_HOST_MEMORY": str(256 << 20)})


def test_the_example_has_two_workers_whose_peaks_take_turns():
    example = Path(__file__).parents[2] / "examples" / "two_workers.py"
    variables = {"GPUPOOL_RUNTIME": "host", "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "4000"}
    done = start_python(example, "--mib", "64", folders=[Path(gpupool.__file__).parents[1]], **variables)
    first, *turns, last = succeeded(done).splitlines()
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
