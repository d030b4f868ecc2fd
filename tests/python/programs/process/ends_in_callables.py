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


def run_out_of_memory(callback):
    registered = gpupool.on_oom(callback)
    half = gpupool.empty(9 << 30)
    gpupool.empty(9 << 30)
    del registered, half


def follow_segments(callback):
    own = gpupool.MemPool(no_split=True)
    own.on_segment(callback)
    own.empty(4 << 20).free()
    own.trim()


def follow_segments_that_are_there():
    own = gpupool.MemPool(no_split=True)
    buffer = own.empty(4 << 20)
    own.on_segment(stay)
    buffer.free()


def tell_the_hook():
    sys.unraisablehook = stay
    follow_segments(lambda: None)


def destroy():
    own = pool(destroy=stay)
    own.lease().release()
    own.trim()


def ask_the_source():
    _native.set_stream_source(stay)
    gpupool.empty(1)


def free_by_the_allocator():
    stream = gpupool.Stream()
    memory = gpupool.empty(64 << 20, stream)
    own = gpupool.MemPool(allocator=(lambda size, device, stream: memory.ptr, stay))
    own.empty(1, stream).free()
    own.trim()


def limited():
    """Return a pool of which this thread holds the only handle."""
    own = pool()
    own.limit = 1
    own.handle()
    return own


def wait_for_handles():
    own = pool()
    own.limit = 1
    lent = own.lease()
    inside.set()
    while lent:
        raised(gpupool.PoolExhausted, own.lease, timeout=0)


def empty_caches():
    inside.set()
    while True:
        gpupool.empty_cache()


CASES = {
    "in_cuda_stream": lambda: gpupool.simulated.handle(Endless()),
    "in_a_property": lambda: gpupool.empty(1, Property()),
    "in_create": lambda: pool(create=stay).handle(),
    "in_create_of_a_lease": lambda: pool(create=stay).lease(),
    "in_set_stream": lambda: pool(set_stream=stay).handle(),
    "in_destroy": destroy,
    "in_the_number_that_create_returned": lambda: pool(create=Endless).handle(),
    "in_the_end_of_what_create_returned": lambda: pool(create=lambda: Number(0x10)).handle(),
    "in_a_stream_source": ask_the_source,
    "in_on_oom": lambda: run_out_of_memory(stay),
    "in_the_answer_of_on_oom": lambda: run_out_of_memory(lambda device, nbytes: Endless()),
    "in_on_segment": lambda: follow_segments(stay),
    "in_on_segment_of_what_goes": lambda: follow_segments(lambda event: event.kind == "added" or stay()),
    "in_on_segment_of_what_is_there": follow_segments_that_are_there,
    "in_an_unraisable_hook": tell_the_hook,
    "in_an_allocators_malloc": lambda: gpupool.MemPool(allocator=(stay, stay)).empty(1),
    "in_an_allocators_free": free_by_the_allocator,
    "in_a_number_of_bytes": lambda: gpupool.empty(Endless()),
    "in_a_timeout": lambda: limited().lease(timeout=Endless()),
    "in_a_message": lambda: gpupool.use_mem_pool(Endless()),
    "after_each_wait_for_a_handle": wait_for_handles,
    "after_each_call_that_needs_no_gil": empty_caches,
}


class Late:
    """What runs Python as the interpreter ends, so that other threads ask for the GIL meanwhile."""

    def __del__(self, range=range):
        for _ in range(300_000):
            pass


def main(name):
    sys.modules["late"] = Late()
    threading.Thread(target=CASES[name], daemon=True).start()
    assert inside.wait(30), "the thread did not come to where the process is to end"
