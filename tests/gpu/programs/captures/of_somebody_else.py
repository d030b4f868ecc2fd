"""Handing handles over spoils no capture that nobody told gpupool of, on a stream that only its owner knows."""

import sys
from concurrent.futures import ThreadPoolExecutor

import cupy
import gpupool


def main(name):
    pool = getattr(gpupool, name)
    step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")

    def use(_):
        # A stream that is gone when the next thread gets the handle.
        stream = cupy.cuda.Stream(non_blocking=True)
        with pool.lease(stream) as lease:
            assert int(lease) != 0, "no handle"
        return stream.ptr

    with cupy.cuda.Stream(non_blocking=True) as stream:
        x, y = cupy.arange(1000.0), cupy.zeros(1000)
        step(x, y)
        y.fill(0)
        use(0)
        stream.synchronize()
        stream.begin_capture(mode=cupy.cuda.runtime.streamCaptureModeGlobal)
        step(x, y)
        with ThreadPoolExecutor(1) as executor:
            list(executor.map(use, range(3)))
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        assert (y.get() == 2 * x.get() + 1).all(), "replayed work is wrong"


if __name__ == "__main__":
    main(*sys.argv[1:])
