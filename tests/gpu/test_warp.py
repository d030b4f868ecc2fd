"""Warp's arrays in gpupool's memory: kernels, streams and graphs of the real Warp."""

import gc
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import gpupool
import numpy as np
import pytest
from gpu_helpers import import_or_skip, run_program, run_python

pytestmark = pytest.mark.device_memory(gib=3)

MIB = 1 << 20


@pytest.fixture(scope="module")
def kernels():
    """Return kernels that fill an array, add two, and copy one slowly."""
    import_or_skip("warp")
    import warp_kernels

    return warp_kernels


@pytest.fixture
def wp(kernels):
    """Return Warp, whose arrays are gpupool's for the test."""
    import warp

    gpupool.warp.enable()
    with warp.ScopedDevice("cuda:0"):
        yield warp
        warp.synchronize_device()
    gpupool.warp.disable()
    gc.collect()


def live():
    gc.collect()
    return gpupool.memory_stats(0).live_blocks


def ints(wp, size):
    return wp.empty(size, dtype=wp.int32)


def test_arrays_are_filled_added_and_read(wp, kernels):
    before = live()
    one, other = wp.array(np.arange(MIB, dtype=np.int32)), ints(wp, MIB)
    assert live() == before + 2
    wp.launch(kernels.fill, dim=MIB, inputs=[other, 3])
    out = ints(wp, MIB)
    wp.launch(kernels.add, dim=MIB, inputs=[one, other, out])
    assert (out.numpy() == np.arange(MIB) + 3).all()
    del one, other, out
    assert live() == before


def test_threads_have_arrays_of_their_own(wp, kernels):
    # `numpy()` makes the legacy default stream the current one of the device, which all threads share, and then the one
    # that it found: two that overlap leave the default stream, on which Warp refuses to capture.
    reading = threading.Lock()

    def work(number):
        for step in range(40):
            size = 1000 + 9973 * ((7 * step + number) % 40)
            with wp.ScopedDevice("cuda:0"):
                array, out = ints(wp, size), ints(wp, size)
                wp.launch(kernels.fill, dim=size, inputs=[array, number])
                wp.launch(kernels.add, dim=size, inputs=[array, array, out])
                with reading:
                    assert (out.numpy() == 2 * number).all()
        return True

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(8)))


def test_an_array_may_die_while_a_kernel_of_another_stream_uses_it(wp, kernels):
    other = wp.Stream()
    for turn in range(20):
        source, out = ints(wp, MIB), ints(wp, MIB)
        wp.launch(kernels.fill, dim=MIB, inputs=[source, turn])
        wp.synchronize_device()
        wp.launch(kernels.slow_copy, dim=MIB, inputs=[source, out, 20_000], stream=other)
        address = source.ptr
        del source
        others = [ints(wp, MIB) for _ in range(3)]
        assert address in [array.ptr for array in others], "the memory was not used again"
        for array in others:
            wp.launch(kernels.fill, dim=MIB, inputs=[array, -1])
        wp.synchronize_device()
        assert (out.numpy() == turn).all(), f"memory in use was given to another in turn {turn}"
        del others, array, out


def test_a_stream_may_be_gone_when_its_array_dies(wp, kernels):
    for turn in range(20):
        with wp.ScopedStream(wp.Stream()):
            array = ints(wp, MIB)
            wp.launch(kernels.fill, dim=MIB, inputs=[array, turn])
        gc.collect()
        wp.synchronize_device()
        assert (array.numpy() == turn).all()


def test_a_graph_keeps_the_memory_of_its_arrays(wp, kernels):
    before = live()
    source, out = ints(wp, MIB), ints(wp, MIB)
    wp.launch(kernels.fill, dim=MIB, inputs=[source, 1])
    with wp.ScopedCapture() as capture:
        for _ in range(10):
            doubled = ints(wp, MIB)
            wp.launch(kernels.add, dim=MIB, inputs=[source, source, doubled])
            # In place of the one that dies.
            wp.launch(kernels.add, dim=MIB, inputs=[doubled, source, out])
        del doubled
    # Others' arrays, which must not be where the graph writes.
    others = [ints(wp, MIB) for _ in range(20)]
    for array in others:
        wp.launch(kernels.fill, dim=MIB, inputs=[array, 7])
    for turn in range(10):
        wp.launch(kernels.fill, dim=MIB, inputs=[source, turn])
        wp.capture_launch(capture.graph)
        assert (out.numpy() == 3 * turn).all()
    assert all((array.numpy() == 7).all() for array in others)
    capture.graph = None
    del source, out, others, array
    assert live() == before


def test_arrays_die_and_are_made_beside_a_capture(wp, kernels):
    kept = ints(wp, MIB)
    arrays = [ints(wp, MIB) for _ in range(10)]
    with wp.ScopedCapture() as capture:
        arrays.clear()
        gc.collect()
        wp.launch(kernels.fill, dim=MIB, inputs=[kept, 5])
    wp.capture_launch(capture.graph)
    assert (kept.numpy() == 5).all()


def test_forked_streams_allocate_in_a_capture(wp, kernels):
    main, other = wp.get_stream(), wp.Stream()
    out = ints(wp, MIB)
    with wp.ScopedCapture() as capture:
        first = ints(wp, MIB)
        wp.launch(kernels.fill, dim=MIB, inputs=[first, 1])
        with wp.ScopedStream(other):
            second = ints(wp, MIB)
            wp.launch(kernels.fill, dim=MIB, inputs=[second, 2])
        main.wait_stream(other)
        wp.launch(kernels.add, dim=MIB, inputs=[first, second, out])
        del first, second
    for _ in range(3):
        wp.capture_launch(capture.graph)
        assert (out.numpy() == 3).all()


def test_a_capture_in_the_scope_of_a_pool(wp, kernels):
    pool = gpupool.MemPool()
    with gpupool.warp.using(pool), pool.capture(wp.get_stream()) as memory, wp.ScopedCapture() as capture:
        array = ints(wp, MIB)
        wp.launch(kernels.fill, dim=MIB, inputs=[array, 9])
    wp.capture_launch(capture.graph)
    assert (array.numpy() == 9).all()
    assert pool.stats().live_blocks == 1
    capture.graph = None
    memory.reset()
    del array
    gc.collect()
    assert pool.stats().live_blocks == 0


def test_out_of_memory_is_warps_error(wp):
    pool = gpupool.MemPool(limit=64 * MIB)
    with gpupool.warp.using(pool):
        array = ints(wp, 8 * MIB)
        with pytest.raises(RuntimeError, match="Failed to allocate") as raised:
            ints(wp, 16 * MIB)
        assert isinstance(raised.value.__cause__, gpupool.OutOfMemory)
        del array


def test_arrays_are_passed_to_cupy_and_back(wp, kernels):
    cupy = import_or_skip("cupy")
    array = ints(wp, MIB)
    wp.launch(kernels.fill, dim=MIB, inputs=[array, 4])
    wp.synchronize_device()
    assert int(cupy.asarray(array).sum()) == 4 * MIB
    assert (wp.from_dlpack(cupy.full(10, 6, cupy.int32)).numpy() == 6).all()


def test_warps_own_sample_gives_the_same(wp):
    def velocities():
        example = example_navier_stokes.Example(quiet=True, resolution=10)
        for _ in range(5):
            example.step()
        return example._u_field.dof_values.numpy()

    example_navier_stokes = pytest.importorskip("warp.examples.fem.example_navier_stokes")
    with wp.ScopedAllocator("cuda:0", None):
        own = velocities()
    np.testing.assert_allclose(velocities(), own, atol=1e-4)


@pytest.mark.parametrize("first", ["gpupool", "warp"])
def test_exits_cleanly_with_live_arrays_and_graphs(kernels, first):
    run_program("ends/with_frameworks.py", first, "warp_arrays")


def test_the_example_gives_right_results(kernels, examples):
    output = run_python(str(examples / "warp_smoke.py"))
    errors = re.search(r"^largest error +(\S+) +(\S+)$", output, re.MULTILINE)
    assert errors, output
    assert max(map(float, errors.groups())) < 1e-4, output
