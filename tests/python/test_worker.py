"""What a worker is to have: one description, done and undone as a whole in the worker's own process."""

import json
import os
import pickle
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy
import pytest
from gpupool import worker
from gpupool.worker import Settings, SetUpFailed
from running import run_bare_program, run_program
from waiting import wait_for

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_set_up():
    """Leave nothing set up, whoever did it."""
    yield
    worker._forget()
    gpupool._native.set_memory_limit(None, None)
    gpupool.simulated.limit = None


@pytest.fixture
def frameworks(monkeypatch):
    """Put stand-ins in the place of two adapters, and return the list of what was called."""
    calls = []
    for name in ("cupy", "numba"):
        module = types.ModuleType(f"gpupool.{name}")
        module.enable = lambda name=name: calls.append(f"enable {name}")
        module.disable = lambda name=name: calls.append(f"disable {name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enable": "cupy"}, r"give \['cupy'\]"),
        ({"enable": ["tensorflow"]}, "'tensorflow' is not a framework .*torch"),
        ({"enable": 1}, "enable is a list of names, not 1"),
        ({"enable": None}, "enable is a list of names, not None"),
        ({"enable": [[]]}, r"\[\] is not a framework"),
        ({"memory_fraction": 1.5}, "memory_fraction=1.5 is no fraction"),
        ({"memory_fraction": -0.5}, "memory_fraction=-0.5 is no fraction"),
        ({"memory_fraction": float("nan")}, "memory_fraction=nan is no fraction"),
        ({"memory_fraction": float("inf")}, "memory_fraction=inf is no fraction"),
        ({"memory_fraction": "half"}, "memory_fraction='half' is no fraction"),
        ({"memory_fraction": True}, "memory_fraction=True is no fraction"),
        ({"memory_fraction": [1]}, r"memory_fraction=\[1\] is no fraction"),
        ({"memory_fraction": numpy.True_}, r"memory_fraction=np.True_ is no fraction"),
        ({"memory_fraction": numpy.float32(2)}, r"memory_fraction=np.float32\(2.0\) is no fraction"),
        ({"memory_fraction": numpy.array([0.5, 1])}, r"memory_fraction=array\(\[0.5, 1. \]\) is no fraction"),
        ({"memory_bytes": numpy.float64(1)}, r"memory_bytes must be a whole number .*, not np.float64\(1.0\)"),
        ({"warm": {"cublas": numpy.True_}}, "not np.True_"),
        ({"memory_bytes": 2**64}, f"memory_bytes must be a whole number from 0 to 2.*, not {2**64}"),
        (
            {"handle_limits": {"simulated": 2**70}},
            rf"handle_limits\['simulated'\] must be a whole number .*, not {2**70}",
        ),
        ({"warm": {"simulated": 2**63}}, rf"warm\['simulated'\] must be a whole number .*, not {2**63}"),
        ({"warm": {5: 1}}, "no pool 5"),
        ({"warm": None}, "warm gives a number for each name of a pool.*None"),
        ({"memory_bytes": -1}, "memory_bytes must be a whole number from 0 .*, not -1"),
        ({"memory_bytes": 0.5}, "memory_bytes must be a whole number from 0 .*, not 0.5"),
        ({"handle_limits": {"cublas": 0}}, r"handle_limits\['cublas'\] must be a whole number from 1 .*, not 0"),
        ({"handle_limits": {"blas": 2}}, "no pool 'blas'; .*cublas"),
        ({"handle_limits": {"empty": 2}}, "no pool 'empty'"),
        ({"handle_limits": ["cublas"]}, "a number for each name"),
        ({"warm": {"cublas": True}}, "not True"),
        ({"warm": {"cublas": "2"}}, "not '2'"),
        ({"guarantee": -1}, "guarantee must be a whole number from 0 .*, not -1"),
        ({"guarantee": 2, "most": 1}, "guarantee=2 is above most=1: lower the guarantee, or raise the most"),
        ({"most": "1 GiB"}, "most must be a whole number from 0 .*, not '1 GiB'"),
        ({"most": 2**63}, f"most must be a whole number from 0 to 2.*, not {2**63}"),
        ({"priority": 0.5}, "priority must be a whole number from -2147483648 .*, not 0.5"),
        ({"priority": 2**31}, rf"priority must be a whole number .* to 2\*\*31 - 1, not {2**31}"),
        ({"priority": True}, "not True"),
        ({"name": 5}, "name=5 is no text"),
    ],
)
def test_settings_that_cannot_be_right_are_refused_where_they_are_made(settings, message):
    with pytest.raises(gpupool.InvalidValue, match=message):
        Settings(**settings)


def test_settings_survive_pickle_and_json():
    settings = Settings(
        enable=["cupy"],
        memory_fraction=0.0,
        memory_bytes=0,
        handle_limits={"simulated": 3},
        warm={"simulated": 0},
        guarantee=0,
        most=0,
        priority=0,
        name="trainer",
    )
    assert Settings.from_json(settings.to_json()) == settings == pickle.loads(pickle.dumps(settings))
    assert Settings().to_json() == "{}"


def test_an_iterator_is_a_list_of_names():
    assert Settings(enable=iter(["cupy", "numba"])).enable == ("cupy", "numba")
    with pytest.raises(gpupool.InvalidValue, match="'tensorflow' is not a framework"):
        Settings(enable=iter(["cupy", "tensorflow"]))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint64"])
def test_numbers_of_numpy_are_numbers(kind):
    number = getattr(numpy, kind)(1)
    given = {"memory_fraction": number}
    if isinstance(number, numpy.integer):
        given |= dict.fromkeys(("memory_bytes", "guarantee", "most", "priority"), number)
        given |= {name: {"simulated": number} for name in ("warm", "handle_limits")}
    settings = Settings(**given)
    assert settings == Settings(
        **{name: {"simulated": 1} if isinstance(one, dict) else 1 for name, one in given.items()}
    )
    assert type(settings.memory_fraction) is float
    assert Settings.from_json(settings.to_json()) == settings


def test_settings_do_not_change_with_what_they_were_made_from():
    limits = {"simulated": 3}
    settings = Settings(handle_limits=limits)
    limits["simulated"] = 4
    assert settings.handle_limits == {"simulated": 3}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "null",
        "7",
        '{"memory_fractoin": 1}',
        '{"enable": 1}',
        '{"memory_fraction": "half"}',
        '{"memory_fraction": NaN}',
        '{"memory_bytes": 1e400}',
        '{"memory_bytes": ' + "9" * 5000 + "}",
        "[" * 50_000,
        '{"warm":' * 10_000,
        os.fsdecode(b"\xff\xfe"),
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_an_environment_that_is_wrong_fails_with_the_variable_and_what_is_wrong(monkeypatch, text):
    monkeypatch.setenv("GPUPOOL_WORKER", text)
    with pytest.raises(SetUpFailed, match="reading the settings failed: InvalidValue: GPUPOOL_WORKER: "):
        worker.set_up()
    assert "GPUPOOL_WORKER" in worker.stats()["failure"]


def test_without_arguments_the_environment_says_what_to_do(monkeypatch):
    monkeypatch.setenv("GPUPOOL_WORKER", Settings(handle_limits={"simulated": 3}).to_json())
    worker.set_up()
    assert gpupool.simulated.limit == 3
    monkeypatch.delenv("GPUPOOL_WORKER")
    worker.set_up()
    assert gpupool.simulated.limit is None


def test_memory_is_limited_on_every_device_and_no_longer_after_the_end(nothing_left):
    streams = [gpupool.Stream(device) for device in range(2)]
    worker.set_up(Settings(memory_fraction=0.5, memory_bytes=8 * MIB))
    for stream in streams:
        gpupool.empty(4 * MIB, stream).free()
        with pytest.raises(gpupool.OutOfMemory):
            gpupool.empty(16 * MIB, stream)
    worker.tear_down()
    for stream in streams:
        gpupool.empty(16 * MIB, stream).free()


def test_frameworks_are_enabled_in_order_once_and_disabled_in_reverse(frameworks):
    settings = Settings(enable=["numba", "cupy"])
    worker.set_up(settings)
    worker.set_up(Settings(enable=("numba", "cupy")))
    assert frameworks == ["enable numba", "enable cupy"]
    worker.tear_down()
    worker.tear_down()
    assert frameworks[2:] == ["disable cupy", "disable numba"]


def test_other_settings_replace_the_former_ones(frameworks):
    worker.set_up(Settings(enable=["numba"], handle_limits={"simulated": 3}))
    worker.set_up(Settings(enable=["cupy"]))
    assert frameworks == ["enable numba", "disable numba", "enable cupy"]
    assert gpupool.simulated.limit is None


def test_what_fails_is_named_and_all_is_undone(frameworks, monkeypatch):
    def fail():
        raise RuntimeError("no such luck")

    monkeypatch.setattr(sys.modules["gpupool.cupy"], "enable", fail)
    gpupool.simulated.limit = 7
    with pytest.raises(
        SetUpFailed, match=r"node 5 \(process \d+ on .*\): enabling cupy failed: .*no such luck"
    ) as caught:
        worker.set_up(
            Settings(enable=["numba", "cupy"], handle_limits={"simulated": 3}, memory_bytes=MIB), worker="node 5"
        )
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), SetUpFailed)
    assert frameworks == ["enable numba", "disable numba"]
    assert gpupool.simulated.limit == 7
    assert gpupool._native.set_memory_limit(None, None) == (None, None)
    assert (worker.stats()["settings"], worker.stats()["failure"]) == (None, str(caught.value))
    worker.set_up(Settings(enable=["numba"]))
    assert worker.stats()["failure"] is None


def test_handles_that_cannot_be_made_undo_all_too(frameworks):
    with pytest.raises(SetUpFailed, match="making 1 handles of cudnn failed: RuntimeUnavailable"):
        worker.set_up(Settings(enable=["numba"], warm={"cudnn": 1}))
    assert frameworks == ["enable numba", "disable numba"]


def test_several_workers_of_a_process_end_it_with_the_last(frameworks):
    for holder in ("first", "second", "first"):
        worker.set_up(Settings(enable=["cupy"]), holder=holder)
    worker.tear_down("first")
    worker.tear_down("first")
    assert frameworks == ["enable cupy"]
    worker.tear_down("second")
    assert frameworks == ["enable cupy", "disable cupy"]


class WatchedLock:
    """A lock that tells when so many threads have come to it."""

    def __init__(self, count):
        self.lock, self.all_came, self.missing = threading.Lock(), threading.Event(), [None] * count

    def __enter__(self):
        self.missing.pop()
        if not self.missing:
            self.all_came.set()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_threads_that_set_up_at_once_do_it_once(frameworks, monkeypatch):
    lock = WatchedLock(8)
    monkeypatch.setattr(worker, "_lock", lock)

    def enable():
        wait_for(lock.all_came, "all threads have come to the lock")
        frameworks.append("enable cupy")

    monkeypatch.setattr(sys.modules["gpupool.cupy"], "enable", enable)
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda _: worker.set_up(Settings(enable=["cupy"])), range(8)))
    assert frameworks == ["enable cupy"]


def test_handles_are_warmed_once_and_later_if_asked():
    gpupool.simulated.trim()
    settings = Settings(warm={"simulated": 3})
    worker.set_up(settings, before_devices=True)
    assert gpupool.simulated.stats().idle == 0
    worker.warm()
    assert gpupool.simulated.stats().idle == 3
    gpupool.simulated.trim()
    worker.warm()
    worker.set_up(settings)
    assert gpupool.simulated.stats().idle == 0
    worker.tear_down()
    worker.warm()
    assert gpupool.simulated.stats().idle == 0


def test_stats_are_plain_values():
    buffer = gpupool.empty(64)
    gpupool.simulated.handle()
    worker.set_up(Settings(handle_limits={"simulated": 30}))
    stats = json.loads(json.dumps(worker.stats()))
    assert stats["settings"]["handle_limits"] == {"simulated": 30}
    assert stats["memory"]["0"]["live_blocks"] >= 1
    assert stats["handles"]["simulated"]["held"] >= 1
    assert stats["runtime"] == "host"
    buffer.free()


@pytest.mark.parametrize(
    "case",
    [
        "it_is_a_neighbour_on_every_device_until_the_end",
        "before_devices_it_becomes_one_with_the_first_that_it_uses",
        "without_such_a_setting_it_is_none",
    ],
)
def test_a_worker_is_a_neighbour_if_a_setting_makes_it_one(tmp_path, case):
    # Devices of nobody else, and time for slow machines.
    variables = {"GPUPOOL_HOST_SHARED": str(tmp_path), "GPUPOOL_HOST_DEVICES": "2"}
    run_program("process/set_up.py", case, GPUPOOL_NEIGHBOUR_DEADLINE_MS="4000", **variables)


@pytest.mark.parametrize(
    ("what", "variables"),
    [
        # A runtime that cannot be had shows that none is asked for.
        ("limits_start_no_driver_and_hold_for_devices_used_later", {"GPUPOOL_RUNTIME": "nothing"}),
        (
            "any_launcher_can_set_its_workers_up_by_the_variable",
            {"GPUPOOL_WORKER": Settings(memory_fraction=0.25, warm={"simulated": 2}).to_json()},
        ),
        ("a_forked_one_is_set_up_anew_and_fails_clearly_if_its_parent_used_the_gpu", {}),
    ],
)
def test_a_process_of_its_own(what, variables):
    run_program("process/set_up.py", what, **variables)


def test_the_module_for_ray_imports_none_and_says_what_brings_it():
    run_bare_program("importing/leaves_alone.py", "ray")
    run_bare_program("importing/missing.py", "ray", "pip install 'ray>=2.10'")
