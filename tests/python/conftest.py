"""The tests of this folder run on simulated devices, whatever the machine has."""

import gc
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Before gpupool chooses a runtime, which it does at the first call that needs a device.
os.environ["GPUPOOL_RUNTIME"] = "host"
os.environ["GPUPOOL_HOST_DEVICES"] = "2"

import gpupool
from forks import Machine
from gpupool import _native
from programs.shared.libraries import CUDA_LIBRARIES
from waiting import wait_until

# `make test &` of a script starts with SIGINT ignored, and the programs that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where neighbours meet: those of a test meet none of another run's, nor of this machine's.
_runtime_folder = tempfile.TemporaryDirectory(prefix="gpupool-tests-")
os.environ["XDG_RUNTIME_DIR"] = _runtime_folder.name

if not hasattr(_native, "host_inject"):
    pytest.exit("gpupool was built without the feature fault-injection; `make .venv/built` builds it for tests", 1)


def pytest_collection_finish() -> None:
    """Leave what all tests have imported out of every later collection of garbage, of which there is one a test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    """Leave no simulated fault to the next test."""
    yield
    _native.host_clear_faults()
    _native.simulate_costly_handles(0.0, 1 << 20)


@pytest.fixture(autouse=True)
def _no_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no GPUPOOL_HOST_MEMORY to the next test: commands set it for their process."""
    # Noted as unset, so that it is afterwards.
    monkeypatch.setenv("GPUPOOL_HOST_MEMORY", "")
    monkeypatch.delenv("GPUPOOL_HOST_MEMORY")


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Start the test without cached memory, and check that it leaves none."""
    gc.collect()
    gpupool.empty_cache()
    before = gpupool.memory_stats()
    yield
    gpupool.set_per_process_memory_fraction(1.0)
    # Threads that were joined may still be giving back what they hold, and other processes what was shared with them.
    wait_until(lambda: not more_than(before), f"no more was left than before the test: {before}")


def more_than(before: gpupool.typing.MemoryStats) -> bool:
    """Return whether more is held than then, once what can go has gone."""
    gc.collect()
    gpupool.empty_cache()
    after = gpupool.memory_stats()
    # Less, where a failed test left something to this one.
    return (
        after.live_blocks > before.live_blocks
        or after.reserved_bytes > before.reserved_bytes
        or after.pools > before.pools
    )


@pytest.fixture
def make_pool() -> Iterator[Callable[..., gpupool.HandlePool]]:
    """Make pools of numbered handles, and close them after the test."""
    pools = []

    def make(**functions: object) -> gpupool.HandlePool:
        count = iter(range(0x1000, 0x2000))
        defaults = {"create": lambda: next(count), "destroy": lambda handle: None}
        pool = gpupool.HandlePool("test", **{**defaults, **functions})
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def machine_of(tmp_path: Path) -> Callable[..., Machine]:
    """Make a machine that has libraries of one platform."""

    def make(*names: str) -> Machine:
        machine = Machine("cuda" if names[0] in CUDA_LIBRARIES else "hip", tmp_path)
        for name in names:
            machine.install(name)
        return machine

    return make
