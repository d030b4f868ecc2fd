"""Trimming spares handles while the driver tells of a capture: on a stream that waits for the legacy default stream."""

import cupy
import gpupool


def main():
    pools = [gpupool.cublas, gpupool.cusolver]
    for pool in pools:
        pool.warm(2)
    x, y = cupy.arange(1000.0), cupy.zeros(1000)
    step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")
    step(x, y)
    y.fill(0)
    with cupy.cuda.Stream() as stream:
        cupy.cuda.runtime.deviceSynchronize()
        stream.begin_capture(mode=cupy.cuda.runtime.streamCaptureModeGlobal)
        step(x, y)
        trimmed = [pool.trim() for pool in pools]
        assert trimmed == [0, 0], f"trim destroyed {trimmed} handles during the capture"
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        assert (y.get() == 2 * x.get() + 1).all(), "replayed work is wrong"
    idle = [pool.stats().idle for pool in pools]
    assert idle == [2, 2], f"after the capture {idle} handles are idle"
    trimmed = [pool.trim() for pool in pools]
    assert trimmed == [2, 2], f"trim destroyed {trimmed} handles after the capture"


if __name__ == "__main__":
    main()
