"""Processes end cleanly with live handles, and forked children are told what is wrong."""

import pytest
from gpu_helpers import import_or_skip, run_python

TAKE = """
import sys, threading
import gpupool

pools = [gpupool.cudnn, gpupool.cusparse, gpupool.cudss, gpupool.cublas, gpupool.cublaslt, gpupool.cusolver]
pools = [pool for pool in pools if pool.available]
assert pools

def take():
    for pool in pools:
        assert pool.handle() != 0
"""

MAIN_THREAD = """
take()
"""

# These threads end after the main thread's code has.
NON_DAEMON_THREADS = """
def work(taken):
    take()
    taken.set()
    threading.main_thread().join()
    take()

for _ in range(4):
    taken = threading.Event()
    threading.Thread(target=work, args=(taken,)).start()
    assert taken.wait(60)
take()
"""

# These threads never end: the process ends around them.
DAEMON_THREADS = """
def work(taken):
    take()
    taken.set()
    threading.Event().wait()

for _ in range(4):
    taken = threading.Event()
    threading.Thread(target=work, args=(taken,), daemon=True).start()
    assert taken.wait(60)
take()
"""

BUSY_DAEMON_THREADS = """
def work(taken):
    while True:
        take()
        taken.set()

for _ in range(4):
    taken = threading.Event()
    threading.Thread(target=work, args=(taken,), daemon=True).start()
    assert taken.wait(60)
take()
"""

AT_EXIT = """
import atexit
atexit.register(take)
take()
"""

IDLE_HANDLES = """
for pool in pools:
    pool.warm(2)
thread = threading.Thread(target=take)
thread.start()
thread.join()
"""

OWN_POOL = """
import ctypes
library = ctypes.CDLL(gpupool.cublas.path)
library.cublasCreate_v2.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
library.cublasDestroy_v2.argtypes = [ctypes.c_void_p]
library.cublasSetStream_v2.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

def create():
    handle = ctypes.c_void_p()
    assert library.cublasCreate_v2(ctypes.byref(handle)) == 0
    return handle.value

pool = gpupool.HandlePool("my cuBLAS", create, library.cublasDestroy_v2, library.cublasSetStream_v2)
pools.append(pool)
stream = gpupool.Stream()
thread = threading.Thread(target=take)
thread.start()
thread.join()
with gpupool.stream(stream):
    take()
"""

CASES = {
    "main thread": MAIN_THREAD,
    "threads": NON_DAEMON_THREADS,
    "daemon threads": DAEMON_THREADS,
    "busy daemon threads": BUSY_DAEMON_THREADS,
    "at exit": AT_EXIT,
    "idle handles": IDLE_HANDLES,
    "own pool": OWN_POOL,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_exits_cleanly(case):
    run_python("-c", TAKE + case)


FRAMEWORKS = """
def use_cupy():
    import cupy
    a = cupy.eye(64)
    assert float((a @ a).sum()) == 64

def use_torch():
    import torch
    a = torch.eye(64, device="cuda")
    assert float((a @ a).sum()) == 64

for name in sys.argv[1].split("-"):
    {"gpupool": take, "cupy": use_cupy, "torch": use_torch}[name]()
thread = threading.Thread(target=take)
thread.start()
thread.join()
take()
"""


@pytest.mark.parametrize(
    "order", ["gpupool-torch-cupy", "gpupool-cupy-torch", "torch-cupy-gpupool", "cupy-torch-gpupool"]
)
def test_exits_cleanly_beside_other_frameworks(order):
    import_or_skip("torch")
    run_python("-c", TAKE + FRAMEWORKS, order)


FORK = """
import os
take()
child = os.fork()
if child == 0:
    refused = 0
    for pool in pools:
        try:
            pool.handle()
        except gpupool.Forked:
            refused += 1
    os._exit(0 if refused == len(pools) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
# The parent works on.
take()
"""

FORK_IN_A_THREAD = """
import os
take()

def work():
    take()
    child = os.fork()
    if child == 0:
        try:
            pools[0].handle()
        except gpupool.Forked:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""

# Nothing here uses the GPU before the fork, so both sides may after it.
EARLY_FORK = """
import os
import gpupool
child = os.fork()
assert gpupool.cublas.handle() != 0
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize(
    "code", [TAKE + FORK, TAKE + FORK_IN_A_THREAD, EARLY_FORK], ids=["fork", "in a thread", "early"]
)
def test_forked_children_are_told(code):
    run_python("-c", code)
