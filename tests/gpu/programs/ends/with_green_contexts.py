"""A green context ends although gpupool has handles and memory of its streams: what the driver says, and what holds."""

import ctypes
import gc
import sys

import cupy
import gpupool
from long_kernel import spin
from partitions import driver, halves, made

MIB = 1 << 20
SPIN_CYCLES = 400_000_000

at = ctypes.c_void_p


def sync():
    cupy.cuda.runtime.deviceSynchronize()


def on(stream):
    return cupy.cuda.ExternalStream(stream)


def outcome(function, *arguments):
    """Return what a call of gpupool's answers, an error as text."""
    try:
        return function(*arguments)
    except gpupool.Error as error:
        return f"{type(error).__name__}: {error}"


def tell(what, answer):
    print(f"{what}: {answer}", flush=True)


def total(array):
    sync()
    return int(array.sum(dtype=cupy.int64))


def loaded():
    """Load every kernel that is used, which may wait for one that is busy."""
    spin(1)
    array, other = cupy.zeros(1024, dtype=cupy.uint8), cupy.zeros(1024, dtype=cupy.uint8)
    array.fill(1)
    other[:] = array
    assert total(array) == 1024, "kernels give wrong results"


def busy_copy(stream, source, result):
    """Copy on a stream, after a kernel that takes long."""
    with on(stream):
        spin(SPIN_CYCLES)
        result[:] = source


def goes_on(stream):
    """Check that other streams work, and that what is free goes back."""
    buffer = gpupool.empty(16 * MIB, stream)
    with on(stream.ptr):
        view = cupy.asarray(buffer)
        view.fill(3)
    assert total(view) == 48 * MIB, "memory of another stream is wrong"
    del view, buffer
    gc.collect()
    for _ in range(3):
        sync()
        tell("given back", outcome(gpupool.empty_cache))
    stats = gpupool.memory_stats(0)
    assert (stats.live_blocks, stats.reserved_bytes) == (0, 0), f"memory is left: {stats}"
    assert gpupool.cublas.handle(stream) != 0, "no handle is to be had"


def idle():
    """It ends once its work is done."""
    alive, (part, _) = gpupool.Stream(), halves()
    stream = part.stream()
    handle = gpupool.cublas.handle(stream)
    buffer = gpupool.empty(8 * MIB, stream)
    gpupool.empty(32 * MIB, stream).free()
    sync()
    part.destroy()
    tell("a handle on its stream", outcome(gpupool.cublas.handle, stream))
    tell("memory on its stream", outcome(lambda: gpupool.empty(MIB, stream).free()))
    part.destroy_streams()
    buffer.free()
    assert gpupool.cublas.handle(alive) == handle, "the thread has another handle"
    goes_on(alive)


def check_copied(result, alive):
    """Check that what was copied from freed memory is right, though another stream wants more than is free."""
    others = [gpupool.empty(8 * MIB, alive) for _ in range(4)]
    with on(alive.ptr):
        for other in others:
            cupy.asarray(other).fill(2)
    tell("right bytes", f"{total(result)} of {8 * MIB}")
    assert total(result) == 8 * MIB, "memory was used again while a kernel of a green context that is gone read it"
    del others, other
    goes_on(alive)


def ends_while_busy(part, alive, end):
    stream = part.stream()
    buffer, result = gpupool.empty(8 * MIB, stream), cupy.zeros(8 * MIB, dtype=cupy.uint8)
    view = cupy.asarray(buffer)
    view.fill(1)
    sync()
    busy_copy(stream, view, result)
    del view
    end()
    tell("freeing", outcome(buffer.free))
    check_copied(result, alive)


def busy():
    """It ends while a kernel of it runs, then its stream."""
    alive, (part, _) = gpupool.Stream(), halves()
    ends_while_busy(part, alive, lambda: (part.destroy(), part.destroy_streams()))


def streams_first():
    """Its stream ends while a kernel runs there, then it."""
    alive, (part, _) = gpupool.Stream(), halves()
    ends_while_busy(part, alive, lambda: (part.destroy_streams(), part.destroy()))


def recorded():
    """Memory of another stream, which it used, is freed once it is gone."""
    alive, (part, _) = gpupool.Stream(), halves()
    stream = part.stream()
    buffer, result = gpupool.empty(8 * MIB, alive), cupy.zeros(8 * MIB, dtype=cupy.uint8)
    view = cupy.asarray(buffer)
    view.fill(1)
    sync()
    busy_copy(stream, view, result)
    del view
    buffer.record_stream(stream)
    part.destroy()
    part.destroy_streams()
    tell("freeing", outcome(buffer.free))
    check_copied(result, alive)


def captured():
    """It ends during a capture of its stream."""
    alive, (part, _) = gpupool.Stream(), halves()
    stream, pool, graph = part.stream(), gpupool.MemPool(), at()
    assert driver.cuStreamBeginCapture_v2(at(stream), 2) == 0, "no capture was begun"
    with pool.capture(stream) as memory:
        gpupool.empty(MIB, stream).free()
        part.destroy()
        tell("trimming", outcome(gpupool.cublas.trim))
        tell("memory on another stream", outcome(lambda: gpupool.empty(MIB, alive).free()))
    tell("cuStreamEndCapture", driver.cuStreamEndCapture(at(stream), ctypes.byref(graph)))
    tell("cuStreamDestroy", driver.cuStreamDestroy_v2(at(stream)))
    part.streams.clear()
    memory.reset()
    del pool
    goes_on(alive)


def current_default_stream():
    """Tell what the default stream is while a green context is current, and that it is left current."""
    alive, (part, _) = gpupool.Stream(), halves()
    primary, converted = made("cuCtxGetCurrent"), made("cuCtxFromGreenCtx", at(part.green))
    assert driver.cuCtxSetCurrent(at(converted)) == 0, "it cannot be made current"
    try:
        assert gpupool.current_device() == 0, "its device is not the current one"
        handle = gpupool.cublas.handle(alive)
        gpupool.empty(MIB, alive).free()
        assert made("cuCtxGetCurrent") == converted, "another context is current than before"
        context, green = at(), at()
        status = driver.cuStreamGetCtx_v2(None, ctypes.byref(context), ctypes.byref(green))
        tell("the default stream's contexts", (status, context.value == primary, green.value == part.green))
        spin(SPIN_CYCLES)
        tell("the green context's default stream (600: busy)", driver.cuStreamQuery(None))
        assert driver.cuCtxSetCurrent(at(primary)) == 0, "the primary context cannot be made current"
        tell("the primary context's default stream (600: busy)", driver.cuStreamQuery(None))
    finally:
        driver.cuCtxSetCurrent(at(primary))
    sync()
    assert gpupool.cublas.handle(alive) == handle, "the thread has another handle"
    part.close()
    goes_on(alive)


if __name__ == "__main__":
    # Also makes the primary context current.
    loaded()
    gpupool.cublas.handle(gpupool.Stream())
    sync()
    globals()[sys.argv[1]]()
