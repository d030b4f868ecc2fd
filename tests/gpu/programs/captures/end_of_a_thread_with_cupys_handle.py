"""A capture survives the end of a thread in which CuPy had a handle: CuPy's own would be destroyed as it ends."""

import threading

import cupy
import gpupool


def main():
    gpupool.cupy.enable(handles=True)
    step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "gpupool_step")
    other = cupy.cuda.Stream(non_blocking=True)
    products = []

    with cupy.cuda.Stream(non_blocking=True) as stream:
        a, x, y = cupy.eye(64), cupy.arange(1000.0), cupy.zeros(1000)

        def multiply():
            with other:
                products.append(a @ a)

        def in_thread():
            thread = threading.Thread(target=multiply)
            thread.start()
            thread.join()

        step(x, y)
        stream.synchronize()
        # Loads the kernels, which no capture survives.
        in_thread()
        cupy.cuda.Device().synchronize()
        y.fill(0)
        stream.synchronize()
        stream.begin_capture(mode=cupy.cuda.runtime.streamCaptureModeGlobal)
        step(x, y)
        in_thread()
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        other.synchronize()
        assert (y.get() == 2 * x.get() + 1).all(), "replayed work is wrong"
        assert len(products) == 2, "a thread's product is missing"
        assert all((product.get() == a.get()).all() for product in products), "a thread's product is wrong"
    created = gpupool.cublas.stats().created
    assert created == 1, f"{created} handles were made for two threads, one after the other"


if __name__ == "__main__":
    main()
