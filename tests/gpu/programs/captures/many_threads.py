"""A capture survives first handles, leases and trims in many threads."""

import sys
import threading

import cupy
import gpupool


def main(names, mode):
    mode = getattr(cupy.cuda.runtime, "streamCaptureMode" + mode)
    pools = [getattr(gpupool, name) for name in names.split(",")]
    step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")
    failed, ready, trimmed = [], threading.Barrier(18), threading.Event()

    def ask(number):
        try:
            ready.wait()
            stream = gpupool.Stream()
            first = number % len(pools)
            for pool in pools[first:] + pools[:first]:
                assert pool.handle(stream) != 0, f"no handle of {pool.name}"
                with pool.lease(stream) as lease:
                    assert int(lease) != 0, f"no lease of {pool.name}"
        except BaseException as error:
            failed.append(error)

    def trim():
        ready.wait()
        while not trimmed.is_set():
            for pool in pools:
                pool.trim()

    captured = gpupool.Stream()
    with cupy.cuda.ExternalStream(captured.ptr) as stream:
        x, y, z = cupy.arange(1000.0), cupy.zeros(1000), cupy.zeros(1000)
        step(x, z)
        z.fill(0)
        stream.synchronize()
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        trimmer = threading.Thread(target=trim)
        stream.begin_capture(mode=mode)
        for thread in [*threads, trimmer]:
            thread.start()
        step(x, y)
        ready.wait()
        for pool in pools:
            with pool.lease(captured) as lease:
                assert int(lease) != 0, f"no lease of {pool.name} on the captured stream"
        for thread in threads:
            thread.join()
        trimmed.set()
        trimmer.join()
        step(y, z)
        graph = stream.end_capture()
        assert not failed, f"threads failed: {failed}"
        for _ in range(3):
            graph.launch(stream)
            stream.synchronize()
            assert (z.get() == 4 * x.get() + 3).all(), "replayed work is wrong"
            x += 1
    leased = [pool.stats().leased for pool in pools]
    assert leased == [0] * len(pools), f"{leased} handles are lent still"


if __name__ == "__main__":
    main(*sys.argv[1:])
