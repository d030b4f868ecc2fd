"""Tests that need a GPU and CuPy; without them the whole folder is skipped.

Several processes, of pytest-xdist, share the device: before a test begins it takes as many gibibytes as its marker
`device_memory` says, or waits for them where others have them. What its process has cached goes back with them. Tests
marked `many_driver_calls` take turns: eight at once, each with seven threads in the driver, take minutes instead of
seconds, since the driver has one lock for all processes.
"""

import contextlib
import functools
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import gpupool
import pytest
from gpupool import _native
from memory_tokens import Tokens, count_tokens, needed

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
sys.path[:0] = [str(HERE), str(EXAMPLES)]


def is_one_of_several() -> bool:
    """Return whether other processes run tests beside this one."""
    return "PYTEST_XDIST_WORKER" in os.environ


@functools.cache
def smallest_device() -> int:
    """Return the bytes of the GPU that has the least memory, or 0 where there is no GPU."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # That there is no GPU.
            if gpupool.runtime() != "cuda":
                return 0
            return min(_native.device_info(device)["total_bytes"] for device in range(gpupool.device_count()))
    except gpupool.Error:
        return 0


def tokens_of(config: pytest.Config, name: str, count: int) -> Tokens:
    """Return so many tokens, which all processes of this run take turns with."""
    # xdist has a folder in which each of its processes has one.
    return Tokens(Path(config.option.basetemp).parent / name, count)


@functools.cache
def memory(config: pytest.Config) -> Tokens:
    """Return the tokens of the devices' memory."""
    processes = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    return tokens_of(config, "device_memory", count_tokens(smallest_device(), processes))


@functools.cache
def driver(config: pytest.Config) -> Tokens:
    """Return the one token of those that keep the driver busy."""
    return tokens_of(config, "driver", 1)


def give_back_what_is_cached() -> None:
    """Give back the memory that frameworks in this process keep for later."""
    gc.collect()
    # After a test that broke the context nothing can be given back, and that test has said so.
    with contextlib.suppress(Exception):
        if torch := sys.modules.get("torch"):
            torch.cuda.empty_cache()
        if cupy := sys.modules.get("cupy"):
            cupy.get_default_memory_pool().free_all_blocks()
        gpupool.empty_cache()


# Around a test's time limit too, which the wait for memory does not count to.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Have the memory that a test says it needs, where others run beside it."""
    is_waiting = is_one_of_several() and HERE in item.path.parents and not item.get_closest_marker("alone")
    if not is_waiting or not smallest_device():
        return (yield)
    with contextlib.ExitStack() as turns:
        if item.get_closest_marker("many_driver_calls"):
            turns.enter_context(driver(item.config).taken(1))
        turns.enter_context(memory(item.config).taken(needed(item)))
        try:
            return (yield)
        finally:
            give_back_what_is_cached()


@pytest.fixture(scope="session", autouse=True)
def gpu():
    """Skip every test here if there is no GPU."""
    # Imported late, since it is found through the path above.
    from gpu_helpers import cupy

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # That there is no GPU.
            runtime = gpupool.runtime()
    except gpupool.Error as error:
        pytest.skip(str(error))
    if runtime != "cuda":
        pytest.skip(f"needs a GPU; the runtime here is {runtime}")
    if cupy is None:
        pytest.skip("needs CuPy")


@pytest.fixture(autouse=True)
def alone(request, gpu):
    """Skip what wants the device for itself where tests run in several processes."""
    if is_one_of_several() and request.node.get_closest_marker("alone"):
        pytest.skip("wants the device for itself: run it with -m alone, in one process")


@pytest.fixture(autouse=True)
def ignore_deprecations():
    """Let other people's packages deprecate what they like; pyproject.toml makes warnings errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


@pytest.fixture(autouse=True)
def current_device(gpu):
    """See that no test, and nothing that gpupool does in it, leaves another device current than it found."""
    before = gpupool.current_device()
    yield
    assert gpupool.current_device() == before


@pytest.fixture
def examples():
    """Return the folder of the examples."""
    return EXAMPLES
