"""cuda.core's memory from gpupool: the real package over a double of the driver."""

import gpupool
import pytest
from framework_machine import framework_machine
from gpupool import _native
from running import functions_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return what runs a program that finds cuda.core imported."""
    pytest.importorskip("cuda.core")
    return framework_machine(tmp_path_factory.mktemp("driver"), "cuda.core")


@pytest.mark.parametrize("function", functions_of("frameworks/cuda_core_buffers.py"))
def test_buffers(run, function):
    run("frameworks/cuda_core_buffers.py", function)


@pytest.mark.parametrize("function", functions_of("frameworks/cuda_core_resources.py", "refuses_what_cannot_be"))
def test_a_resource(run, function):
    run("frameworks/cuda_core_resources.py", function)


def test_out_of_memory_and_foreign_streams_are_refused(run):
    run("frameworks/cuda_core_resources.py", "refuses_what_cannot_be", FAKE_MEMORY_MIB="64")


@pytest.mark.parametrize("function", functions_of("frameworks/cuda_core_pinned.py"))
def test_pinned_buffers(run, function):
    run("frameworks/cuda_core_pinned.py", function)


@pytest.mark.parametrize("order", [("gpupool", "cuda.core"), ("cuda.core", "gpupool")])
def test_exits_cleanly_with_live_buffers(tmp_path, order):
    pytest.importorskip("cuda.core")
    framework_machine(tmp_path)("frameworks/ends.py", "cuda_core", *order)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_refused_free_leaves_the_memory_to_be_freed(is_shared):
    memory = _native.CudaCoreMemory(lambda pointer, size, resource, stream: pointer, gpupool.Stream, 0, None)
    stream, foreign = gpupool.Stream(0), gpupool.Stream(1)
    pointer = memory.allocate(512, stream=stream)
    buffer = memory.device_buffer(pointer) if is_shared else None
    with pytest.raises(gpupool.InvalidValue, match="device 1"):
        memory.deallocate(pointer, 512, stream=foreign)
    memory.deallocate(pointer, 512, stream=stream)
    with pytest.raises(gpupool.InvalidValue, match="freed before"):
        memory.deallocate(pointer, 512, stream=stream)
    del buffer
