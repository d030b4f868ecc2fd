"""Numba's arrays in gpupool's memory: the real Numba over a double of the driver, and over simulated streams."""

import contextlib
import gc

import gpupool
import pytest
from framework_machine import framework_machine
from gpupool import _native
from running import run_program

MIB = 1 << 20

NUMBA = """
import numpy as np
from numba import cuda

def manager():
    return cuda.current_context().memory_manager

def bytes_array(nbytes, **named):
    return cuda.device_array(nbytes, np.uint8, **named)
"""
ENABLED = "gpupool.numba.enable()\n" + NUMBA


@pytest.fixture
def run(tmp_path, run_python):
    """Return what runs code with Numba."""
    pytest.importorskip("numba_cuda")
    return framework_machine(tmp_path, run_python)


def test_arrays_are_gpupools_memory_until_they_and_their_views_die(run):
    run(
        ENABLED
        + """
array = cuda.to_device(np.arange(1000.0))
assert live() == 1 and gpupool.memory_stats().requested_bytes == 8000
assert (array.copy_to_host() == np.arange(1000.0)).all()
assert array.__cuda_array_interface__["data"][0] % 512 == 0
view = array[10:20]
del array
assert live() == 1
assert (view.copy_to_host() == np.arange(10.0, 20.0)).all()
del view
# Numba's own list of what waits to be freed.
assert (live(), len(manager().deallocations)) == (1, 1)
manager().deallocations.clear()
assert (live(), len(manager().deallocations)) == (0, 0)
assert cuda.device_array(0).size == 0 and live() == 0
"""
    )


def test_it_is_found_by_its_name_in_the_environment(run):
    code = NUMBA + "array = cuda.to_device(np.arange(10))\nprint(type(manager()).__module__, live())"
    assert run(code, NUMBA_CUDA_MEMORY_MANAGER="gpupool.numba") == "gpupool._numba 1\n"


def test_scopes_of_pools_are_honoured(run):
    run(
        ENABLED
        + """
pool, other = gpupool.MemPool(), gpupool.MemPool()
with gpupool.use_mem_pool(pool):
    inside = bytes_array(MIB)
    with gpupool.numba.using(other):
        innermost = bytes_array(MIB)
outside = bytes_array(MIB)
assert [p.stats().live_blocks for p in (pool, other)] == [1, 1] and live() == 3

def work(_):
    with gpupool.use_mem_pool(pool.token()):
        return bytes_array(MIB)

with ThreadPoolExecutor(4) as executor:
    arrays = list(executor.map(work, range(8)))
assert pool.stats().live_blocks == 9
"""
    )


def test_using_enables_first(run):
    run(
        """
pool = gpupool.MemPool()
with gpupool.numba.using(pool):
    from numba import cuda
    array = cuda.device_array(1000)
assert pool.stats().requested_bytes == 8000
"""
    )


def test_it_is_chosen_before_the_first_use_and_may_be_chosen_again(run):
    run(
        ENABLED
        + """
gpupool.numba.enable()
gpupool.numba.disable()
gpupool.numba.disable()
array = cuda.device_array(10)
assert type(manager()).__name__ == "NumbaCUDAMemoryManager" and live() == 0
message = str(error_of(gpupool.numba.enable))
assert "before the first use of numba.cuda" in message and "numba.cuda.close()" in message, message
gpupool.numba.disable()
"""
    )
    run(
        ENABLED
        + """
array = cuda.device_array(10)
gpupool.numba.enable()
assert type(error_of(gpupool.numba.disable)) is gpupool.Error
"""
    )


def test_out_of_memory_is_numbas_error_and_comes_after_the_dead_were_freed(run):
    run(
        ENABLED
        + """
from cuda.bindings import driver as bindings
from numba.cuda.cudadrv.driver import CudaAPIError

array = bytes_array(10 * MIB)
error = error_of(bytes_array, 60 * MIB)
del array
assert type(error) is CudaAPIError and error.code == bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY
assert "default memory pool" in str(error) and isinstance(error.__cause__, gpupool.OutOfMemory)
manager().deallocations.clear()
array = bytes_array(40 * MIB)
del array
assert len(manager().deallocations) == 1
array = bytes_array(42 * MIB)
del array
# Somebody else needs the memory.
assert len(manager().deallocations) == 1
buffer = gpupool.empty(50 * MIB)
assert len(manager().deallocations) == 0
del buffer
with cuda.defer_cleanup():
    array = bytes_array(40 * MIB)
    del array
    assert type(error_of(bytes_array, 41 * MIB)) is CudaAPIError
    assert len(manager().deallocations) == 1
array = bytes_array(41 * MIB)
""",
        FAKE_MEMORY_MIB="64",
        NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO="1",
    )


def test_what_died_is_freed_behind_one_fence_when_there_is_enough_of_it(run):
    run(
        ENABLED
        + """
fences = lambda: calls("cuCtxRecordEvent")
arrays = [bytes_array(MIB // 4) for _ in range(7)]
arrays.clear()
array = bytes_array(1000)
assert (fences(), live()) == (0, 8)
del array
array = bytes_array(MIB)
del array
array = bytes_array(MIB)
assert (fences(), live()) == (1, 1)
# Less than what is asked for is not worth a fence, and eleven of the smallest are.
del array
array = bytes_array(8 * MIB)
assert fences() == 1
arrays = [bytes_array(1000) for _ in range(11)]
arrays.clear()
assert (fences(), live()) == (2, 2)
"""
    )


def test_a_loop_takes_no_more_memory_than_it_needs(run):
    run(
        ENABLED
        + """
for step in range(100):
    array = bytes_array(20 * MIB)
assert gpupool.memory_stats().peak_reserved_bytes <= 42 * MIB, gpupool.memory_stats()
"""
    )


def test_captures_are_left_alone(run):
    run(
        ENABLED
        + """
pool, stream = gpupool.MemPool(), gpupool.Stream()
array = bytes_array(4 * MIB)
set_capture(stream, 1)
with pool.capture(stream) as memory:
    graphs = bytes_array(4 * MIB)
    del array, graphs
    arrays = [bytes_array(MIB) for _ in range(20)]
    manager().deallocations.clear()
    arrays.clear()
assert is_capturing(stream) and calls("cuCtxRecordEvent") == 0
assert pool.stats().live_blocks == 21 and live() == 22
set_capture(stream, 0)
array = bytes_array(4 * MIB)
assert live() == 1 and calls("cuCtxRecordEvent") > 0
memory.reset()
pool.trim()
assert pool.stats().reserved_bytes == 0
"""
    )


def test_memory_info_counts_what_is_cached_as_free(run):
    run(
        ENABLED
        + """
array = bytes_array(10 * MIB)
free, total = cuda.current_context().get_memory_info()
assert total == 1024 * MIB and free == total - 10 * MIB
del array
manager().deallocations.clear()
assert cuda.current_context().get_memory_info().free == total
"""
    )


def test_ipc_is_for_segments(run):
    run(
        ENABLED
        + """
error = error_of(bytes_array(100).get_ipc_handle)
assert isinstance(error, NotImplementedError) and "segments=True" in str(error), error
with gpupool.use_mem_pool(gpupool.MemPool(segments=True)):
    first, second = bytes_array(100), bytes_array(100)
addresses = [array.__cuda_array_interface__["data"][0] for array in (first, second)]
handles = [cuda.current_context().get_ipc_handle(array.gpu_data) for array in (first, second)]
assert calls("cuIpcGetMemHandle") == 2
assert handles[1].offset - handles[0].offset == addresses[1] - addresses[0] != 0
"""
    )


def test_threads(run):
    run(
        ENABLED
        + """
def work(number):
    arrays = []
    for step in range(50):
        arrays.append(cuda.to_device(np.full(1000 + 3 * step, number)))
        if step % 3 == 0:
            arrays.pop(0)
    return all((array.copy_to_host() == number).all() for array in arrays)

with ThreadPoolExecutor(16) as executor:
    assert all(executor.map(work, range(32)))
manager().deallocations.clear()
assert live() == 0
"""
    )


def test_devices_have_memory_of_their_own(run):
    run(
        ENABLED
        + """
with cuda.gpus[1]:
    array = bytes_array(MIB)
assert (live(), gpupool.memory_stats(1).live_blocks) == (0, 1)
assert gpupool.current_device() == 0
"""
    )


ORDERS = {
    "gpupool first": "import gpupool\ngpupool.numba.enable()\n" + NUMBA,
    "numba first": "from numba import cuda\n" + NUMBA + "import gpupool\ngpupool.numba.enable()\n",
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_exits_cleanly_with_live_arrays(run, order):
    code = """
import threading
alive = [cuda.to_device(np.arange(1000)) for _ in range(30)]
view = alive[0][3:4]
thread = threading.Thread(target=lambda: alive.append(bytes_array(100)))
thread.start()
thread.join()
print("end")
"""
    assert run(order + code, prelude="") == "end\n"


def test_a_forked_child_frees_nothing(run):
    code = """
arrays = [bytes_array(4 * MIB) for _ in range(20)]
sys.stdout.flush()
child = os.fork()
if child == 0:
    arrays.clear()
    sys.exit()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert live() == 20
"""
    # Python warns of forks in processes with threads, of which OpenBLAS has some.
    run("import warnings\nwarnings.simplefilter('ignore')\n" + ENABLED + code)


def test_simulated_memory_is_refused(run):
    run(
        ENABLED
        + """
error = error_of(cuda.device_array, 10)
assert type(error) is gpupool.RuntimeUnavailable and "unset GPUPOOL_RUNTIME" in str(error), error
""",
        GPUPOOL_RUNTIME="host",
    )


def test_numba_is_imported_when_used():
    run_program("importing/leaves_alone.py", "these_modules", "numba", "numba", "numba_cuda", "cuda")


def test_a_missing_or_old_numba_is_named(tmp_path):
    def is_named(said):
        run_program("importing/missing.py", "numba_cuda", said, PYTHONPATH=str(tmp_path))

    (tmp_path / "numba_cuda.py").write_text('__version__ = "0.19.1"\n')
    is_named("numba_cuda 0.19.1 is too old: 0.30 is needed")
    (tmp_path / "numba_cuda.py").write_text("raise ImportError('not today')\n")
    is_named("numba_cuda cannot be imported: not today")


class Device:
    """A device of Numba's, as far as its memory manager asks."""

    id = 0


class Context:
    """A context of Numba's, as far as its memory manager asks."""

    device = Device()
    waits = 0

    def synchronize(self):
        """Count it."""
        self.waits += 1


@pytest.fixture
def manager(monkeypatch, nothing_left):
    """Return Numba's memory manager on simulated streams, whose work is done when told to."""
    pytest.importorskip("numba_cuda")
    _numba = pytest.importorskip("gpupool._numba", exc_type=ImportError)
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
    from gpupool import _numba

    busy, other = gpupool.Stream(), gpupool.Stream()
    numbers = []

    def fence_and_die(stream):
        done = _native.fence(stream)
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


def test_a_driver_without_fences_is_waited_for(manager):
    memory = manager.memalloc(4 * MIB)
    _native.host_inject("EventRecord")
    del memory
    memory = manager.memalloc(4 * MIB)
    assert manager.context.waits == 1
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
