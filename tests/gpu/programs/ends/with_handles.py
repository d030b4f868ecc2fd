"""A process ends cleanly with live handles, whoever has them."""

import atexit
import ctypes
import sys
import threading

import gpupool
from library_handles import pools, take
from waiting import wait_for

# What lives until the interpreter lets it go.
kept = []


def start_four(work, daemon):
    """Start threads that do this, one after the other has taken its handles."""
    for _ in range(4):
        taken = threading.Event()
        threading.Thread(target=work, args=(taken,), daemon=daemon).start()
        wait_for(taken, "a thread has its handles")
    take()


def of_the_main_thread():
    take()


def of_threads_that_end_after_the_main_thread():
    def work(taken):
        take()
        taken.set()
        threading.main_thread().join()
        take()

    start_four(work, daemon=False)


def of_threads_that_never_end():
    def work(taken):
        take()
        taken.set()
        threading.Event().wait()

    start_four(work, daemon=True)


def of_threads_at_work():
    def work(taken):
        while True:
            take()
            taken.set()

    start_four(work, daemon=True)


def taken_at_exit():
    atexit.register(take)
    take()


def that_are_idle():
    for pool in pools:
        pool.warm(2)
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()


def of_a_pool_of_one_s_own():
    library = ctypes.CDLL(gpupool.cublas.path)
    library.cublasCreate_v2.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
    library.cublasDestroy_v2.argtypes = [ctypes.c_void_p]
    library.cublasSetStream_v2.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def create():
        handle = ctypes.c_void_p()
        status = library.cublasCreate_v2(ctypes.byref(handle))
        assert status == 0, f"cublasCreate_v2 answered {status}"
        return handle.value

    pool = gpupool.HandlePool("my cuBLAS", create, library.cublasDestroy_v2, library.cublasSetStream_v2)
    pools.append(pool)
    stream = gpupool.Stream()
    kept.extend([library, pool, stream])
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    with gpupool.stream(stream):
        take()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
