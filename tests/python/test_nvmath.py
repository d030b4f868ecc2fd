"""gpupool.nvmath with the real nvmath-python: its workspaces on simulated devices, its cuDSS bindings on a double."""

import logging
import os
import sysconfig
from contextlib import nullcontext
from types import SimpleNamespace

import forks
import gpupool
import pytest
from abi import build_library
from machines import Machine
from running import PLACES, functions_of

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


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Return a machine."""
    return Machine("cuda", tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def libraries(machine):
    """Install the libraries that nvmath uses on that machine; return the variables that name them."""
    names = ("cublaslt", "cublas", "cudss", "cutensor")
    return {f"GPUPOOL_{name.upper()}_PATH": str(machine.install(name)) for name in names}


@pytest.fixture
def run(machine, libraries, monkeypatch):
    """Run a program that finds nvmath imported on that machine."""
    # NumPy's library has no threads then, which a fork would not have either.
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    # The folders of wheels are those of gpupool's import, so the libraries are named.
    variables = {**dict.fromkeys(PLACES), **machine.variables, **libraries, "FAKE_VMM": "1"}

    def run(function, *arguments, **more):
        program = "frameworks/nvmath_handles.py"
        forks.run_program(program, function, *arguments, modules=("nvmath.bindings.cudss",), **{**variables, **more})

    return run


def test_options_lend_a_handle_and_take_it_back(run):
    run("are_lent_and_taken_back")
    run("come_with_gpupool_s_memory")


@pytest.mark.parametrize(
    "function", functions_of("frameworks/nvmath_handles.py", "are_lent_and_taken_back", "come_with_gpupool_s_memory")
)
def test_handles_for_nvmath(run, function):
    run(function)


def test_a_handle_that_got_a_threading_layer_is_not_lent_again(run, tmp_path):
    layer = tmp_path / "libcudss_mtlayer_gomp.so.0"
    layer.touch()

    def are_retired(number, name, asked_for, in_environment):
        variables = {"CUDSS_THREADING_LIB": in_environment}
        run("with_a_threading_layer_are_retired", name, asked_for, number, **variables)

    are_retired(1, "cudss", layer, None)
    are_retired(1, "cudss", "none", str(layer))
    are_retired(0, "cudss", "nothing", str(layer))
    are_retired(0, "cudss", "none", "nothing")
    are_retired(0, "cudss", "none", None)
    are_retired(0, "cublaslt", "none", str(layer))


def test_two_copies_of_a_library_are_refused(machine, libraries, tmp_path):
    # Which of them nvmath loads is decided as it is imported.
    packages = os.pathsep.join([str(machine.site_packages), sysconfig.get_path("purelib")])
    theirs, ours = (build_library("cudss", tmp_path / folder / "libcudss.so.1") for folder in ("one", "two"))
    variables = {"FAKE_VMM": "1", "PYTHONPATH": packages, "GPUPOOL_CUDSS_PATH": str(ours.parent)}
    machine.run("frameworks/nvmath_copies.py", theirs, ours, **variables)
