"""The first handle of a process is asked for while a stream is captured, in one of these ways; the capture survives."""

import sys
from concurrent.futures import ThreadPoolExecutor

import cupy
import gpupool


def in_other_thread(function, *arguments):
    """Call a function in a thread that ends before the capture does, and gives its handle back."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *arguments).result()


def main(name, mode, what):
    pool = getattr(gpupool, name)
    mode = getattr(cupy.cuda.runtime, "streamCaptureMode" + mode)
    step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")
    other_stream = cupy.cuda.Stream(non_blocking=True)
    # Some libraries wait for the device when a handle is destroyed, which no capture survives. So trimming spares
    # theirs, as far as gpupool knows of the capture, and it knows of its own streams.
    spares = what == "trim" and name not in ("cudnn", "cusparse")
    own_stream = gpupool.Stream() if spares else None

    with cupy.cuda.ExternalStream(own_stream.ptr) if spares else cupy.cuda.Stream(non_blocking=True) as stream:
        x, y, z = cupy.arange(1000.0), cupy.zeros(1000), cupy.zeros(1000)
        # Compiles the kernel and loads it.
        step(x, z)
        z.fill(0)
        if what == "trim":
            assert pool.warm(3) == 3, "three handles were not made in advance"
        stream.synchronize()

        stream.begin_capture(mode=mode)
        step(x, y)
        if what == "here":
            first = pool.handle(stream)
            assert pool.handle(stream) == first, "during the capture the thread's handle changed"
        elif what == "thread":
            assert in_other_thread(pool.handle, other_stream) != 0, "no handle for another thread"
        elif what == "default stream":
            assert in_other_thread(pool.handle) != 0, "no handle on the default stream"
        elif what == "warm":
            assert in_other_thread(pool.warm, 2) == 2, "two handles were not made in advance"
        elif what == "trim":
            expected = 0 if spares else 3
            trimmed = in_other_thread(pool.trim)
            assert trimmed == expected, f"trim destroyed {trimmed} handles during the capture, not {expected}"
        step(y, z)
        graph = stream.end_capture()

        stream.synchronize()
        assert not z.get().any(), "captured work ran at once"
        for _ in range(3):
            graph.launch(stream)
            stream.synchronize()
            assert (z.get() == 4 * x.get() + 3).all(), "replayed work is wrong"
            x += 1

        # The pool works on.
        handle = pool.handle(stream)
        assert what != "here" or handle == first, "after the capture the thread's handle is another"
        # cuBLASLt's handles are stateless: the library answers the same address to all.
        theirs = in_other_thread(pool.handle)
        assert theirs != handle or name == "cublaslt", "two threads have the same handle"
        assert pool.stats().failures == 0, f"a creation failed: {pool.stats()}"


if __name__ == "__main__":
    main(*sys.argv[1:])
