"""Numba's arrays in gpupool's memory: the real Numba over a double of the driver, and over simulated streams."""

import contextlib
import gc

import gpupool
import pytest
from framework_machine import framework_machine
from gpupool import _native
from running import functions_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return what runs a program with Numba."""
    pytest.importorskip("numba_cuda")
    return framework_machine(tmp_path_factory.mktemp("numba"), "asyncio", "numpy", "numba", "cuda.core")


CASES = [
    (f"numba/{program}.py", function)
    for program, *left_out in (
        ("arrays", "are_freed_before_memory_runs_out"),
        ("pinned",),
        ("choice", "by_its_name_in_the_environment", "not_with_simulated_memory"),
        ("shared",),
    )
    for function in functions_of(f"numba/{program}.py", *left_out)
]


@pytest.mark.parametrize(("program", "function"), CASES)
def test_numba(run, program, function):
    run(program, function)


def test_it_is_found_by_its_name_in_the_environment(run):
    run("numba/choice.py", "by_its_name_in_the_environment", NUMBA_CUDA_MEMORY_MANAGER="gpupool.numba")


def test_simulated_memory_is_refused(run):
    run("numba/choice.py", "not_with_simulated_memory", GPUPOOL_RUNTIME="host")


def test_out_of_memory_is_numbas_error_and_comes_after_the_dead_were_freed(run):
    variables = {"FAKE_MEMORY_MIB": "64", "NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO": "1"}
    run("numba/arrays.py", "are_freed_before_memory_runs_out", **variables)


@pytest.mark.parametrize("first", ["gpupool", "numba"])
def test_exits_cleanly_with_live_arrays(run, first):
    run("frameworks/ends.py", "numba", first)


class Device:
    """A device of Numba's, as far as its memory manager asks."""

    id = 0


class Context:
    """A context of Numba's, as far as its memory manager asks."""

    device = Device()
    waits = 0
    pushed = 0

    def push(self):
        """Make it current."""
        self.pushed += 1

    def pop(self):
        """Make what was current before so again."""
        self.pushed -= 1

    def synchronize(self):
        """Count it."""
        assert self.pushed == 1
        self.waits += 1


@pytest.fixture
def manager(monkeypatch, nothing_left):
    """Return Numba's memory manager on simulated streams, whose work is done when told to."""
    pytest.importorskip("numba_cuda")
    _numba = pytest.importorskip("gpupool._frameworks.numba_manager", exc_type=ImportError)
    monkeypatch.setattr(_numba, "runtime", lambda: "cuda")
    monkeypatch.setitem(_numba.driver.driver.__dict__, "cuMemGetInfo", lambda: (1 << 30, 2 << 30))
    # Numba makes it when it starts the driver.
    monkeypatch.setattr(_numba.driver, "_logger", _numba.driver.make_logger(), raising=False)
    manager = _numba.MemoryManager(context=Context())
    manager.initialize()
    yield manager
    gc.collect()
    manager.reset()


def address_of(memory):
    return int(memory.device_pointer)


def test_memory_is_used_again_behind_all_that_used_it(manager):
    first, second = gpupool.Stream(), gpupool.Stream()
    memory = manager.memalloc(4 * MIB)
    address = address_of(memory)
    number = _native.host_submit(first)
    del memory
    memory = manager.memalloc(4 * MIB)
    assert address_of(memory) == address
    # The host did not wait, and whichever stream uses the memory next does.
    assert not first.query()
    after = _native.host_submit(second)
    _native.host_complete(second, after)
    assert not second.query()
    _native.host_complete(first, number)
    _native.host_complete(second, after)
    assert second.query()


def test_what_dies_after_a_fence_waits_for_the_next_one(manager, monkeypatch):
    from gpupool._frameworks import numba_manager as _numba

    busy, other = gpupool.Stream(), gpupool.Stream()
    numbers = []

    def fence_and_die(stream, delay):
        done = _native.fence(stream, delay)
        if memories:
            # As the garbage collector, or another thread, may do at any time.
            numbers.append(_native.host_submit(busy))
            memories.clear()
        return done

    monkeypatch.setattr(_numba, "fence", fence_and_die)
    memories = [manager.memalloc(MIB)]
    memory = manager.memalloc(4 * MIB)
    del memory
    manager.deallocations.clear()
    # Numba frees in one go what is in its list by then, the late one too.
    assert gpupool.memory_stats().live_blocks == 0
    after = _native.host_submit(other)
    _native.host_complete(other, after)
    assert not other.query()
    _native.host_complete(busy, *numbers)
    _native.host_complete(other, after)
    assert other.query()


def test_a_driver_that_refuses_a_fence_is_waited_for(manager):
    memory = manager.memalloc(4 * MIB)
    _native.host_inject("EventRecordContext")
    del memory
    memory = manager.memalloc(4 * MIB)
    assert (manager.context.waits, manager.context.pushed) == (1, 0)
    assert memory.size == 4 * MIB
    assert gpupool.memory_stats().live_blocks == 1


def test_a_limit_of_a_pool_is_out_of_memory_too(manager):
    from numba.cuda.cudadrv.driver import CudaAPIError

    pool = gpupool.MemPool(limit=8 * MIB)
    with gpupool.use_mem_pool(pool):
        memory = manager.memalloc(6 * MIB)
        del memory
        with manager.defer_cleanup(), pytest.raises(CudaAPIError, match="limit"):
            manager.memalloc(7 * MIB)
        memory = manager.memalloc(7 * MIB)
    assert memory.size == 7 * MIB
    assert pool.stats().live_blocks == 1


def test_an_ended_manager_is_not_asked_for_memory(manager):
    memory = manager.memalloc(MIB)
    del memory
    manager.reset()
    assert gpupool.memory_stats().live_blocks == 0
    with contextlib.suppress(gpupool.OutOfMemory):
        gpupool.empty(1 << 45)


def test_pinned_memory_is_used_again_after_all_that_used_it(manager, monkeypatch):
    monkeypatch.setattr(gpupool.numba._pinned_choice.numba, "for_all", True)
    busy, other = gpupool.Stream(), gpupool.Stream()
    memory = manager.memhostalloc(32 * MIB)
    address = memory.host_pointer
    number = _native.host_submit(busy)
    del memory
    memory = manager.memhostalloc(32 * MIB)
    assert memory.host_pointer != address
    # Neither the host nor other streams wait for the one that used it.
    after = _native.host_submit(other)
    _native.host_complete(other, after)
    assert other.query()
    assert not busy.query()
    _native.host_complete(busy, number)
    del memory
    again = [manager.memhostalloc(32 * MIB) for _ in range(2)]
    assert address in [memory.host_pointer for memory in again]
    assert gpupool.pinned_stats().live_blocks == 2
    del again
