"""C code that has the interpreter, as extensions do, waits for a thread whose callback needs it."""

import ctypes
import threading

import gpupool
from c_table import addresses

PAGE = 2 << 20


class PoolId(ctypes.Structure):
    """A pool's id."""

    _fields_ = (("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


def with_interpreter(name: str) -> ctypes._CFuncPtr:
    """Return a function of the table that is called without giving up the interpreter."""
    return ctypes.PYFUNCTYPE(ctypes.c_int)(addresses()[name])


pool = gpupool.MemPool()
block = pool.empty(PAGE)
pool.sleep(None)
pool.limit = 0
handle = ctypes.c_void_p()
assert with_interpreter("pool_by_id")(0, ctypes.byref(PoolId(*pool.id)), ctypes.byref(handle)) == 0
begun, about_to_wake = threading.Event(), threading.Event()


def give_nothing(*_: object) -> bool:
    """Give nothing, once the other thread is about to wait for this call."""
    begun.set()
    about_to_wake.wait()
    return False


def wake() -> None:
    """Wake the pool in vain."""
    try:
        pool.wake()
    except gpupool.OutOfMemory:
        refused.append(True)


refused: list[bool] = []
callback = gpupool.on_oom(give_nothing)
thread = threading.Thread(target=wake)
thread.start()
begun.wait()
about_to_wake.set()
# It waits for the other thread's attempt, and that for the callback's end.
assert with_interpreter("pool_wake")(handle, None) != 0, "the pool is awake beyond its limit"
thread.join()
assert refused, "the pool was woken beyond its limit"
callback.remove()
pool.limit = None
assert pool.wake() > 0
assert with_interpreter("pool_release")(handle) == 0
