"""What is collected as garbage is not called any more, whichever end comes first; it may be looked for at any time."""

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable

import gpupool

MIB = 1 << 20
called = []


def a_pool_whose_class_has_a_finalizer() -> None:
    class Pool(gpupool.MemPool):
        def __del__(self) -> None:
            """Do nothing, nor what its base class does."""

    pool = Pool(no_split=True)

    def listen(event: gpupool.typing.SegmentEvent) -> None:
        called.append(event.kind)

    listen.pool = pool
    pool.on_segment(listen)
    pool.empty(MIB).free()
    del pool, listen
    gc.collect()


def a_range_that_another_thread_is_about_to_tell() -> None:
    # No other thread gets the interpreter unless this one gives it up.
    sys.setswitchinterval(1000)

    # The older, which is cleared first.
    def lost(pages: list[int]) -> None:
        called.extend(pages)

    pool = gpupool.MemPool(limit=16 * MIB)
    ranged = lost.ranged = pool.reserve_range(16 * MIB)
    ranged.on_discard(lost)
    ranged.commit(range(4), priority=0)
    thread = threading.Thread(target=lambda: pool.empty(12 * MIB))
    thread.start()
    while ranged.committed_bytes == 8 * MIB:
        pass
    # Until it waits for the interpreter, with what it is to call in hand.
    for _ in range(5_000_000):
        pass
    del ranged, lost
    gc.collect()
    sys.setswitchinterval(0.005)
    thread.join()


class Pool(gpupool.MemPool):
    """A subclass, whose objects are made another way."""


def make_pools(look: Callable[[gpupool.MemPool], object]) -> None:
    """Make pools, and look at each one that can be found where garbage is collected, which is often."""
    seen: list[object] = []

    def look_at_all(phase: str, facts: dict[str, int]) -> None:
        seen[:] = [look(each) for each in gc.get_objects() if isinstance(each, gpupool.MemPool)]

    before = gc.get_threshold()
    gc.callbacks.append(look_at_all)
    gc.set_threshold(20)
    # Dicts of the program's, so that now and then none is at hand that was given back.
    dicts: list[dict[object, object]] = []
    for count in range(2000):
        kind = (gpupool.MemPool, Pool)[count % 2]
        kind.__new__(kind)
        dicts += [{} for _ in range(count % 5)]
        if len(dicts) > 1000:
            dicts.clear()
    gc.callbacks.remove(look_at_all)
    gc.set_threshold(*before)


def collected_while_pools_are_made() -> None:
    make_pools(repr)


def referred_to_while_pools_are_made() -> None:
    refs: list[weakref.ref[gpupool.MemPool]] = []
    make_pools(lambda pool: refs.append(weakref.ref(pool)))
    gc.collect()
    assert [each() for each in refs if each() is not None] == []


def asked_again_while_it_is_refused() -> None:
    freed, lent = gpupool.empty(1), gpupool.empty(1)
    freed_pinned, lent_pinned = gpupool.empty_pinned(1), gpupool.empty_pinned(1)
    consumers = lent.__dlpack__(), memoryview(lent_pinned)
    freed.free()
    freed_pinned.free()
    stream, end = gpupool.Stream(), (None, None, None)
    scopes = gpupool.MemPool(), gpupool.use_mem_pool(gpupool.MemPool()), stream, gpupool.stream(stream)
    calls = [each.free for each in (freed, lent, freed_pinned, lent_pinned)]
    calls += [functools.partial(getattr, each, "nbytes") for each in (freed, freed_pinned)]
    calls += [functools.partial(each.record_stream, stream) for each in (freed, freed_pinned)]
    calls += [functools.partial(memoryview, freed_pinned), *(functools.partial(each.__exit__, *end) for each in scopes)]
    for call in calls:

        def refused(*_: object, call: functools.partial = call) -> None:
            try:
                call()
            except (gpupool.InvalidValue, BufferError):
                return
            raise AssertionError(call)

        before = gc.get_threshold()
        # Called where garbage is looked for, which Python 3.11 does while it makes the exception.
        gc.callbacks.append(refused)
        for spare in range(4):
            gc.collect()
            some = set(), set()
            gc.set_threshold(gc.get_count()[0] + spare)
            refused()
            gc.set_threshold(*before)
            del some
        gc.callbacks.remove(refused)
    del consumers
