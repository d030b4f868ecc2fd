"""gpupool.nvmath with the real nvmath-python: its workspaces on simulated devices, its cuDSS bindings on a double."""

import logging
import os
import sysconfig
from contextlib import nullcontext
from types import SimpleNamespace

import gpupool
import pytest
from abi import build_library
from machines import Machine
from running import run_bare_program, run_program

nvmath = pytest.importorskip("nvmath")
LOGGER = logging.getLogger("test_nvmath")
MIB = 1 << 20


class StandInStream:
    """What a cuda.core.Stream is to an allocator and a workspace, on a simulated stream."""

    def __init__(self):
        self.stream, self.waits = gpupool.Stream(0), []

    def __cuda_stream__(self):
        return self.stream.__cuda_stream__()

    def wait(self, event):
        self.waits.append(event)


@pytest.fixture
def workspace(monkeypatch):
    """Make nvmath's own user of allocators, without its call that makes a CUDA device current."""
    module = pytest.importorskip("nvmath._internal.workspace")
    monkeypatch.setattr(module.utils, "device_ctx", lambda device_id: nullcontext())
    return lambda: module.Workspace(gpupool.nvmath.MemoryManager(0, LOGGER), LOGGER)


def test_nvmath_accepts_the_manager_in_its_options():
    manager = gpupool.nvmath.MemoryManager(1, LOGGER)
    assert isinstance(manager, nvmath.BaseCUDAMemoryManagerAsync)
    assert not isinstance(manager, nvmath.BaseCUDAMemoryManager)
    for options in (
        nvmath.linalg.advanced.MatmulOptions,
        nvmath.linalg.generic.MatmulOptions,
        nvmath.linalg.generic.DirectSolverOptions,
        nvmath.sparse.generic.MatmulOptions,
    ):
        assert options(allocator=manager).allocator is manager


@pytest.mark.usefixtures("nothing_left")
def test_a_workspace_is_gpupool_s_memory_and_is_used_again(workspace):
    stream, before = StandInStream(), gpupool.memory_stats(0).live_bytes
    holder = SimpleNamespace(obj=stream, ctx=nullcontext())
    space = workspace()
    space.set_size(3 * MIB)
    with space.allocate_perhaps(holder, get_last_event=None) as held:
        address = held.raw_ptr
        assert address != 0
        assert gpupool.memory_stats(0).live_bytes - before == 3 * MIB
    space.set_size(MIB)
    with space.allocate_perhaps(holder, get_last_event=None) as held:
        assert held.raw_ptr == address
    space.release("the last event")
    assert stream.waits == ["the last event"]
    assert gpupool.memory_stats(0).live_bytes == before
    # Freed on its stream, the next workspace there gets the same memory.
    other = workspace()
    other.set_size(3 * MIB)
    with other.allocate_perhaps(holder, get_last_event=None) as held:
        assert held.raw_ptr == address
    other.release(None)
    empty = workspace()
    with empty.allocate_perhaps(holder, get_last_event=None) as held:
        assert held.raw_ptr == 0


@pytest.mark.usefixtures("nothing_left")
def test_the_thread_s_scope_and_the_pool_s_limit_count(workspace):
    pool, holder = gpupool.MemPool(limit=8 * MIB, device=0), SimpleNamespace(obj=StandInStream(), ctx=nullcontext())
    space = workspace()
    space.set_size(6 * MIB)
    with gpupool.use_mem_pool(pool), space.allocate_perhaps(holder, get_last_event=None):
        assert pool.stats().live_bytes == 6 * MIB
    more = workspace()
    more.set_size(6 * MIB)
    with gpupool.use_mem_pool(pool), pytest.raises(MemoryError) as raised:
        more.allocate_perhaps(holder, get_last_event=None).__enter__()
    assert isinstance(raised.value, gpupool.OutOfMemory)
    assert raised.value.requested_bytes == 6 * MIB
    space.release(None)
    assert pool.stats().live_bytes == 0


def test_the_logger_is_told(caplog):
    manager = gpupool.nvmath.MemoryManager(0, LOGGER)
    stream = StandInStream()
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        buffer = manager.memalloc_async(512, stream)
    assert caplog.messages == [f"gpupool: 512 bytes at {buffer.ptr:#x} on stream {stream.stream.ptr:#x}"]
    assert gpupool.nvmath.MemoryManager(0).memalloc_async(512, stream).nbytes == 512


def test_a_pool_whose_handles_nvmath_does_not_take_is_refused():
    with (
        pytest.raises(gpupool.InvalidValue, match=r"no cublas handles; give gpupool\.cudss or gpupool\.cublaslt"),
        gpupool.nvmath.options(gpupool.cublas),
    ):
        pass


def test_importing_it_imports_no_nvmath():
    run_program("importing/leaves_alone.py", "these_modules", "nvmath.options", "nvmath", "cuda")


@pytest.mark.parametrize(("version", "said"), [(None, "cannot be imported"), ("0.8.1", "0.8.1 is too old")])
def test_without_nvmath_it_says_what_is_missing(tmp_path, version, said):
    if version:
        (tmp_path / "nvmath.py").write_text(f"__version__ = {version!r}")
    expected = (f"nvmath {said}", "pip install 'nvmath-python>=0.9'")
    run_bare_program("importing/missing.py", "nvmath", *expected, PYTHONPATH=str(tmp_path))


PRELUDE = """
from nvmath.bindings import cudss
from nvmath.linalg.advanced import MatmulOptions
from nvmath.sparse.advanced import DirectSolverOptions

pool, stream = gpupool.cudss, gpupool.Stream(0)
scope = gpupool.stream(stream)
scope.__enter__()
double = ctypes.CDLL(pool.path)
double.double_stream_of.restype = ctypes.c_void_p

def has_own_memory(handle):
    return not cudss.set_async_workspace_allocator(handle, 0)
"""


@pytest.fixture
def machine(tmp_path, run_bare_python):
    machine = Machine("cuda", tmp_path, run_bare_python)
    machine.build()
    for name in ("cublaslt", "cublas", "cudss"):
        machine.install(name)
    return machine


@pytest.fixture
def run(machine):
    """Run code, after what is to come first, where the packages of this interpreter are to be found too."""
    packages = os.pathsep.join([str(machine.site_packages), sysconfig.get_path("purelib")])

    def run(code, first="", **variables):
        return machine.run(first + PRELUDE + code, FAKE_VMM="1", PYTHONPATH=packages, **variables)

    return run


def test_options_lend_a_handle_and_take_it_back(run):
    run(
        """
with gpupool.nvmath.options(pool, stream, blocking=True) as options:
    handle = options["handle"]
    assert DirectSolverOptions(**options) == DirectSolverOptions(handle=handle, blocking=True)
    assert double.double_stream_of(ctypes.c_void_p(handle)) == stream.ptr
    assert pool.stats().leased == 1
try:
    with gpupool.nvmath.options(pool, stream) as options:
        assert options == {"handle": handle}
        raise ArithmeticError
except ArithmeticError:
    pass
stats = pool.stats()
assert (stats.created, stats.leased, stats.idle, stats.retired) == (1, 0, 1, 0)

mine = gpupool.nvmath.MemoryManager(0)
with gpupool.nvmath.options(gpupool.cublaslt, sm_count_target=4) as options:
    assert isinstance(MatmulOptions(**options).allocator, gpupool.nvmath.MemoryManager)
    assert options["allocator"].device_id == 0 and options["sm_count_target"] == 4
with gpupool.nvmath.options(gpupool.cublaslt, device=1, allocator=mine) as options:
    assert options["allocator"] is mine
with gpupool.nvmath.options(gpupool.cublaslt, device=1) as options:
    assert options["allocator"].device_id == 1
"""
    )


def test_a_process_may_end_within_the_block(run):
    run("lent = gpupool.nvmath.options(pool, stream)\nassert lent.__enter__()['handle'] != 0")


def test_nvmath_leaves_the_pool_s_memory_alone_and_its_own_goes_with_the_lease(run):
    run(
        """
with gpupool.nvmath.options(pool, stream) as options:
    assert not has_own_memory(options["handle"]) and has_own_memory(options["handle"])
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
with gpupool.nvmath.options(pool, stream) as options:
    handle = ctypes.c_void_p(options["handle"])
    assert has_own_memory(handle.value)
    place = ctypes.c_void_p()
    assert double.double_allocate(handle, ctypes.byref(place), ctypes.c_size_t(1 << 20)) == 0
    assert mine.stats().live_bytes == 1 << 20
    assert double.double_free(handle, place, ctypes.c_size_t(1 << 20)) == 0
assert pool.stats().created == 1
"""
    )


def test_a_handle_that_got_a_threading_layer_is_not_lent_again(run, tmp_path):
    layer = tmp_path / "libcudss_mtlayer_gomp.so.0"
    layer.touch()
    lend = (
        "with gpupool.nvmath.options(pool, stream, multithreading_lib={library!r}): pass\nprint(pool.stats().retired)\n"
    )
    assert run(lend.format(library=str(layer))) == "1\n"
    assert run(lend.format(library=None), CUDSS_THREADING_LIB=str(layer)) == "1\n"
    assert run(lend.format(library="nothing"), CUDSS_THREADING_LIB=str(layer)) == "0\n"
    assert run(lend.format(library=None), CUDSS_THREADING_LIB="nothing") == "0\n"
    assert run(lend.format(library=None).replace("cudss", "cublaslt"), CUDSS_THREADING_LIB=None) == "0\n"


def test_threads_share_handles(run):
    run(
        """
from concurrent.futures import ThreadPoolExecutor

turns = threading.Semaphore(2)

def work(number):
    with turns, gpupool.nvmath.options(pool, gpupool.Stream(0)) as options:
        cudss.set_stream(options["handle"], stream.ptr)
        return options["handle"]

with ThreadPoolExecutor(16) as executor:
    handles = set(executor.map(work, range(200)))
# Two work at once; a third may be giving its handle back.
assert len(handles) <= 3 and pool.stats().leased == 0
"""
    )


def test_two_copies_of_a_library_are_refused(run, tmp_path):
    for folder in ("one", "two"):
        build_library("cudss", tmp_path / folder / "libcudss.so.1")
    code = f"""
error = error_of(lambda: gpupool.nvmath.options(pool, stream).__enter__())
assert "gpupool has loaded {tmp_path}/two/libcudss.so.1 and nvmath {tmp_path}/one/libcudss.so.1" in error, error
assert "GPUPOOL_CUDSS_PATH={tmp_path}/one/libcudss.so.1" in error and pool.stats().created == 0
"""
    run(code, first=f"ctypes.CDLL('{tmp_path}/one/libcudss.so.1')\n", GPUPOOL_CUDSS_PATH=str(tmp_path / "two"))
