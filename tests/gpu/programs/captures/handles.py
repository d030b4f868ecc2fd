"""What is done with handles while a stream is captured: the capture survives, and its graph computes what it should."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import cupy
import gpupool

step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")


@contextmanager
def captured(stream, mode="Global"):
    """Capture two steps on a stream, with the block between them, and replay them."""
    with stream:
        x, y, z = cupy.arange(1000.0), cupy.zeros(1000), cupy.zeros(1000)
        # Compiles the kernel and loads it.
        step(x, z)
        z.fill(0)
        stream.synchronize()
        stream.begin_capture(mode=getattr(cupy.cuda.runtime, "streamCaptureMode" + mode))
        step(x, y)
        yield
        step(y, z)
        graph = stream.end_capture()
        stream.synchronize()
        assert not z.get().any(), "captured work ran at once"
        for _ in range(3):
            graph.launch(stream)
            stream.synchronize()
            assert (z.get() == 4 * x.get() + 3).all(), "replayed work is wrong"
            x += 1


def in_other_thread(function, *arguments):
    """Call a function in a thread that ends before the capture does, and gives its handle back."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *arguments).result()


def lease(pool, stream):
    with pool.lease(stream) as lent:
        assert int(lent) != 0, f"no lease of {pool.name}"


def the_first_is_asked_for(name, mode, what):
    pool, other_stream = getattr(gpupool, name), cupy.cuda.Stream(non_blocking=True)
    # Some libraries wait for the device when a handle is destroyed, which no capture survives. So trimming spares
    # theirs, as far as gpupool knows of the capture, and it knows of its own streams.
    spares = what == "trim" and name not in ("cudnn", "cusparse")
    own_stream = gpupool.Stream() if spares else None
    stream = cupy.cuda.ExternalStream(own_stream.ptr) if spares else cupy.cuda.Stream(non_blocking=True)
    if what == "trim":
        assert pool.warm(3) == 3, "three handles were not made in advance"
    with captured(stream, mode):
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
    # The pool works on.
    handle = pool.handle(stream)
    assert what != "here" or handle == first, "after the capture the thread's handle is another"
    # cuBLASLt's handles are stateless: the library answers the same address to all.
    theirs = in_other_thread(pool.handle)
    assert theirs != handle or name == "cublaslt", "two threads have the same handle"
    assert pool.stats().failures == 0, f"a creation failed: {pool.stats()}"


def many_threads_ask_for_them(names, mode):
    """Have first handles, leases and trims in many threads."""
    pools = [getattr(gpupool, name) for name in names.split(",")]
    ready, done, own = threading.Barrier(18), threading.Event(), gpupool.Stream()

    def ask(number):
        ready.wait()
        stream = gpupool.Stream()
        first = number % len(pools)
        for pool in pools[first:] + pools[:first]:
            assert pool.handle(stream) != 0, f"no handle of {pool.name}"
            lease(pool, stream)

    def trim():
        ready.wait()
        while not done.is_set():
            for pool in pools:
                pool.trim()

    # All threads end before the capture does.
    with captured(cupy.cuda.ExternalStream(own.ptr), mode), ThreadPoolExecutor(17) as executor:
        trimming, *asking = [executor.submit(trim), *(executor.submit(ask, number) for number in range(16))]
        try:
            ready.wait()
            for pool in pools:
                lease(pool, own)
            for each in asking:
                each.result()
        finally:
            done.set()
        trimming.result()
    leased = [pool.stats().leased for pool in pools]
    assert leased == [0] * len(pools), f"{leased} handles are lent still"


def they_are_handed_over(name):
    """Hand handles over beside a capture that nobody told gpupool of, on a stream that only its owner knows."""
    pool = getattr(gpupool, name)

    def use(_):
        # A stream that is gone when the next thread gets the handle.
        lease(pool, cupy.cuda.Stream(non_blocking=True))

    use(0)
    with captured(cupy.cuda.Stream(non_blocking=True)), ThreadPoolExecutor(1) as executor:
        list(executor.map(use, range(3)))


def they_are_trimmed():
    """Trim while the driver tells of a capture, on a stream that waits for the legacy one: it spares them."""
    pools = [gpupool.cublas, gpupool.cusolver]
    for pool in pools:
        pool.warm(2)
    cupy.cuda.runtime.deviceSynchronize()
    with captured(cupy.cuda.Stream()):
        trimmed = [pool.trim() for pool in pools]
        assert trimmed == [0, 0], f"trim destroyed {trimmed} handles during the capture"
    idle = [pool.stats().idle for pool in pools]
    assert idle == [2, 2], f"after the capture {idle} handles are idle"
    trimmed = [pool.trim() for pool in pools]
    assert trimmed == [2, 2], f"trim destroyed {trimmed} handles after the capture"


def a_thread_with_one_of_cupys_ends():
    """CuPy's own would be destroyed as the thread ends."""
    gpupool.cupy.enable(handles=True)
    a, other, products = cupy.eye(64), cupy.cuda.Stream(non_blocking=True), []
    cupy.cuda.runtime.deviceSynchronize()

    def multiply():
        with other:
            products.append(a @ a)

    # Loads the kernels, which no capture survives.
    in_other_thread(multiply)
    cupy.cuda.runtime.deviceSynchronize()
    with captured(cupy.cuda.Stream(non_blocking=True)):
        in_other_thread(multiply)
    other.synchronize()
    assert len(products) == 2, "a thread's product is missing"
    assert all((product.get() == a.get()).all() for product in products), "a thread's product is wrong"
    created = gpupool.cublas.stats().created
    assert created == 1, f"{created} handles were made for two threads, one after the other"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
