"""A process ends while a daemon thread is in Python that gpupool runs, or asks for the GIL in gpupool itself.

Python before 3.14 ends such a thread where it is, in the midst of gpupool's calls.
"""

import sys
import threading

import gpupool
from errors import raised
from gpupool import _native

# A thread that waits for the GIL looks at once whether the interpreter is ending.
sys.setswitchinterval(1e-6)

inside = threading.Event()


def stay(*_):
    """Run Python code for ever, which gives the GIL up and asks for it again all the time."""
    inside.set()
    while True:
        pass


class Endless:
    """A stream, a number and a condition, none of which is ever told."""

    __cuda_stream__ = __index__ = __float__ = __bool__ = __repr__ = stay


class Property:
    """A stream whose protocol is a property that runs Python."""

    @property
    def __cuda_stream__(self):
        stay()


class Number(int):
    """A number whose end runs Python."""

    __del__ = stay


def pool(create=lambda: 0x10, destroy=lambda handle: None, set_stream=None):
    return gpupool.HandlePool("own", create, destroy, set_stream)


def in_cuda_stream():
    gpupool.simulated.handle(Endless())


def in_a_property():
    gpupool.empty(1, Property())


def in_create():
    pool(create=stay).handle()


def in_create_of_a_lease():
    pool(create=stay).lease()


def in_set_stream():
    pool(set_stream=stay).handle()


def in_destroy():
    own = pool(destroy=stay)
    own.lease().release()
    own.trim()


def in_the_number_that_create_returned():
    pool(create=Endless).handle()


def in_the_end_of_what_create_returned():
    pool(create=lambda: Number(0x10)).handle()


def in_a_stream_source():
    _native.set_stream_source(stay)
    gpupool.empty(1)


def run_out_of_memory(callback):
    registered = gpupool.on_oom(callback)
    half = gpupool.empty(9 << 30)
    gpupool.empty(9 << 30)
    del registered, half


def in_on_oom():
    run_out_of_memory(stay)


def in_the_answer_of_on_oom():
    run_out_of_memory(lambda device, nbytes: Endless())


def follow_segments(callback):
    own = gpupool.MemPool(no_split=True)
    own.on_segment(callback)
    own.empty(4 << 20).free()
    own.trim()


def in_on_segment():
    follow_segments(stay)


def in_on_segment_of_what_goes():
    follow_segments(lambda event: event.kind == "added" or stay())


def in_on_segment_of_what_is_there():
    own = gpupool.MemPool(no_split=True)
    buffer = own.empty(4 << 20)
    own.on_segment(stay)
    buffer.free()


def in_an_unraisable_hook():
    sys.unraisablehook = stay
    follow_segments(lambda: None)


def in_an_allocators_malloc():
    with gpupool.use_mem_pool(gpupool.MemPool(allocator=(stay, stay))):
        gpupool.empty(1)


def in_an_allocators_free():
    stream = gpupool.Stream()
    memory = gpupool.empty(64 << 20, stream)
    own = gpupool.MemPool(allocator=(lambda size, device, stream: memory.ptr, stay))
    with gpupool.use_mem_pool(own):
        buffer = gpupool.empty(1, stream)
    buffer.free()
    own.trim()


def in_a_number_of_bytes():
    gpupool.empty(Endless())


def in_a_timeout():
    limited = pool()
    limited.limit = 1
    limited.handle()
    limited.lease(timeout=Endless())


def in_a_message():
    gpupool.use_mem_pool(Endless())


def after_each_wait_for_a_handle():
    limited = pool()
    limited.limit = 1
    lent = limited.lease()
    inside.set()
    while lent:
        raised(gpupool.PoolExhausted, limited.lease, timeout=0)


def after_each_call_that_needs_no_gil():
    inside.set()
    while True:
        gpupool.empty_cache()


class Late:
    """What runs Python as the interpreter ends, so that other threads ask for the GIL meanwhile."""

    def __del__(self, range=range):
        for _ in range(300_000):
            pass


def main(name):
    sys.modules["late"] = Late()
    threading.Thread(target=globals()[name], daemon=True).start()
    assert inside.wait(30), "the thread did not come to where the process is to end"


if __name__ == "__main__":
    main(sys.argv[1])
