"""How gpupool's objects live and end in Python: copies, weak references, garbage, and what callbacks raise."""

import asyncio
import contextlib
import copy
import ctypes
import gc
import pickle
import sys
import weakref

import forks
import gpupool
import pytest
from gpupool import _native
from own_memory import MIB, Allocator, allocate_in, leave, other_thread
from running import functions_of

pytestmark = pytest.mark.usefixtures("nothing_left")

PAGE = 2 * MIB


def classes():
    """Return the compiled classes whose objects users get, by name."""
    found = {name: value for name, value in vars(_native).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if not issubclass(value, Exception)}


def a_segment_event():
    told, pool = [], gpupool.MemPool(no_split=True)
    with pool.on_segment(told.append):
        pool.empty(MIB)
        pool.trim()
    return told[0]


def a_replay():
    one = bytes(4), MIB.to_bytes(8, "little"), bytes(4)
    return _native.replay(*one, 1, 1, "gpupool")


# What is a copy wherever it is sent to.
VALUES = {
    "HandleStats": lambda: gpupool.simulated.stats(),
    "MemoryStats": lambda: gpupool.memory_stats(),
    "Neighbour": lambda: gpupool.neighbours(pools=True)[0],
    "NeighbourPool": lambda: gpupool.neighbours(pools=True)[0].pools[0],
    "PoolStats": lambda: gpupool.MemPool().stats(),
    "ReplayResult": a_replay,
    "SegmentEvent": a_segment_event,
    "ShareToken": lambda: gpupool.empty(MIB).share(),
}


def a_range():
    return gpupool.MemPool().reserve_range(4 * PAGE)


def a_graph():
    stream = gpupool.Stream()
    with gpupool.MemPool().capture(stream) as memory:
        return memory


# What there is once, and is asked about by weak references.
OWNERS = {
    "Capture": lambda: gpupool.MemPool().capture(gpupool.Stream()),
    "MemoryClaim": lambda: gpupool.claim(MIB),
    "CudaCoreMemory": lambda: _native.CudaCoreMemory(print, gpupool.Stream, 0, None),
    "CupyPinnedAllocator": lambda: _native.CupyPinnedAllocator(
        lambda memory, offset: memory, lambda nbytes, error: None
    ),
    "CupyPinnedMemory": lambda: _native.CupyPinnedMemory(1),
    "DeviceBuffer": lambda: gpupool.empty(1),
    "DiscardCallback": lambda: a_range().on_discard(print),
    "GraphMemory": a_graph,
    "HandlePool": lambda: gpupool.HandlePool("own", lambda: 1, lambda handle: None),
    "Lease": lambda: gpupool.simulated.lease(),
    "MemPool": lambda: gpupool.MemPool(),
    "MemoryRange": a_range,
    "OomCallback": lambda: removed(gpupool.on_oom(print)),
    "PinnedBuffer": lambda: gpupool.empty_pinned(1),
    "PoolScope": lambda: gpupool.use_mem_pool(gpupool.MemPool()),
    "PoolToken": lambda: gpupool.MemPool().token(),
    "SegmentCallback": lambda: gpupool.MemPool(no_split=True).on_segment(print),
    "Stream": lambda: gpupool.Stream(),
    "StreamScope": lambda: gpupool.stream(gpupool.Stream()),
}
# Made for one framework's own objects, of which there are none here, or once for the process.
OTHERS = {"CApi", "CupyAllocator"}


def removed(callback):
    callback.remove()
    return callback


def test_each_class_is_a_value_or_an_owner():
    assert {*VALUES, *OWNERS, *OTHERS} == set(classes())
    for name, each in classes().items():
        assert getattr(sys.modules[each.__module__], name) is each


@pytest.fixture
def _neighbour():
    gpupool.set_neighbour("copied", guarantee=MIB)
    pool = gpupool.MemPool(reserve=PAGE)
    yield
    del pool


def properties(value):
    """Return what a value tells, and what it is made of tells."""
    if not type(value).__module__.startswith("gpupool"):
        return value
    names = [name for name in dir(value) if not name.startswith("_") and not callable(getattr(value, name))]
    told = {name: getattr(value, name) for name in names}
    return {
        name: [*map(properties, held)] if isinstance(held, list) else properties(held) for name, held in told.items()
    }


@pytest.mark.usefixtures("_neighbour")
@pytest.mark.parametrize("name", VALUES)
def test_values_are_pickled_and_copied(name):
    value = VALUES[name]()
    ways = [lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol)) for protocol in range(6)]
    for way in (*ways, copy.copy, copy.deepcopy):
        made = way(value)
        assert type(made) is classes()[name]
        assert made is not value
        assert properties(made) == properties(value)


def test_counts_that_lack_one_are_refused():
    counts = gpupool.memory_stats().as_dict()
    del counts["live_bytes"]
    with pytest.raises(gpupool.InvalidValue, match="MemoryStats needs live_bytes"):
        gpupool.typing.MemoryStats(counts)


@pytest.mark.parametrize("name", OWNERS)
def test_owners_are_weakly_referenced_and_go_with_their_last_reference(name):
    made = OWNERS[name]()
    gone = weakref.ref(made)
    assert type(made) is classes()[name]
    del made
    assert gone() is None


# ---- garbage ----


class Own(Allocator):
    """Allocates for a pool that it keeps."""

    def __init__(self):
        super().__init__()
        self.pool = super().pool()


class Registered:
    """Follows the segments of a pool that it keeps, and the pages of a range."""

    def __init__(self):
        self.told, self.taken = [], []
        self.pool = gpupool.MemPool(no_split=True)
        self.callback = self.pool.on_segment(self.follow)
        self.cut = gpupool.MemPool(limit=4 * PAGE)
        self.range = self.cut.reserve_range(4 * PAGE)
        self.lost = self.range.on_discard(self.take)

    def follow(self, event):
        self.told.append(event.kind)

    def take(self, pages):
        self.taken.extend(pages)


class Following(gpupool.MemPool):
    """Follows itself."""

    def __init__(self, told):
        super().__init__(no_split=True)
        self.told = told
        self.on_segment(self.follow)

    def follow(self, event):
        self.told.append(event.kind)


class Entering:
    """Keeps what enters its pool, which knows it."""

    def __init__(self):
        self.pool = gpupool.MemPool()
        self.pool.owner = self
        self.scope = gpupool.use_mem_pool(self.pool)
        self.capture = self.pool.capture(gpupool.Stream())


class OwnStream:
    """A stream of a program's own, which keeps the block that makes it current."""

    def __init__(self):
        self.stream = gpupool.Stream()
        self.block = gpupool.stream(self)

    def __cuda_stream__(self):
        return self.stream.__cuda_stream__()


class Removed:
    """Keeps a callback that was removed."""

    def __init__(self):
        self.callback = gpupool.on_oom(self.free)
        self.callback.remove()

    def free(self, device, nbytes):
        return False


class Reading(_native.CudaCoreMemory):
    """Keeps a pool that knows it, as a resource for cuda.core."""

    def __init__(self):
        pool = gpupool.MemPool()
        pool.owner = self
        super().__init__(self.make, gpupool.Stream, 0, pool)

    def make(self, pointer, size, resource, *, stream):
        return pointer


class Pointing:
    """Makes CuPy's pointers to pinned memory."""

    def __init__(self):
        self.allocator = _native.CupyPinnedAllocator(self.point, self.retry, self.otherwise)

    def point(self, memory, offset):
        return memory

    def retry(self, nbytes, error):
        raise error

    def otherwise(self, nbytes):
        return self.point(None, nbytes)


CYCLES = {
    "a pool's own allocator": Own,
    "callbacks of segments and pages": Registered,
    "a pool that follows itself": lambda: Following([]),
    "what enters a pool": Entering,
    "what makes a stream current": OwnStream,
    "a callback that was removed": Removed,
    "a resource for cuda.core": Reading,
    "pinned memory for CuPy": Pointing,
}


@pytest.mark.parametrize("name", CYCLES)
def test_what_refers_to_itself_through_gpupool_is_collected(name):
    made = CYCLES[name]()
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


def test_a_pool_that_is_collected_frees_its_memory_by_its_own_function_first():
    own = Own()
    live, gone = own.live, weakref.ref(own)
    allocate_in(own.pool, MIB)
    assert len(live) == 1
    del own
    gc.collect()
    assert (live, gone()) == ({}, None)


def test_a_block_that_lives_keeps_the_functions_of_a_pool_that_is_garbage():
    def count():
        gc.collect()
        return sum(type(each) is Own for each in gc.get_objects())

    own = Own()
    live, buffer = own.live, allocate_in(own.pool, MIB)
    del own
    assert (count(), len(live)) == (1, 1)
    buffer.free()
    assert (count(), live) == (0, {})


def test_what_a_scope_of_another_thread_keeps_is_not_collected():
    own = Own()
    token, live = own.pool.token(), own.live
    with other_thread() as run:
        scope = gpupool.use_mem_pool(token)
        run(scope.__enter__)
        del own
        gc.collect()
        buffer = run(gpupool.empty, MIB)
        assert len(live) == 1
        run(scope.__exit__, None, None, None)
        buffer.free()
    assert live == {}


def test_the_end_of_segments_is_told_where_the_pool_is_collected():
    told = []
    pool = Following(told)
    pool.empty(MIB)
    del pool
    gc.collect()
    assert told == ["added", "removed"]


def test_a_range_that_an_array_shares_still_tells_of_its_pages():
    listening = Registered()
    taken, token = listening.taken, listening.cut.token()
    listening.range.commit(range(4), gpupool.Stream(), priority=0)
    gone, shared = weakref.ref(listening), listening.range.__dlpack__()
    del listening
    gc.collect()
    with gpupool.use_mem_pool(token):
        gpupool.empty(PAGE)
    assert taken == [0]
    del shared
    gc.collect()
    assert gone() is None


# ---- registered until removed ----


@pytest.mark.parametrize("kind", functions_of("memory/callbacks.py"))
def test_a_callback_stays_until_it_is_removed(kind):
    forks.run_program("memory/callbacks.py", kind)


# ---- what callbacks raise ----


class Raising:
    """Raises what it is told to, once or so many times; then works."""

    def __init__(self, raised, does=lambda *arguments: None, times=1):
        self.raised, self.does, self.times, self.calls = raised, does, times, 0

    def __call__(self, *arguments):
        self.calls += 1
        if self.calls <= self.times and self.raised is not None:
            raise self.raised
        return self.does(*arguments)


def in_on_oom(raised):
    leave(0)
    callback = Raising(raised, lambda device, nbytes: False)
    with gpupool.on_oom(callback):
        gpupool.empty(2 * PAGE)


def in_malloc(raised):
    own = Allocator()
    # An error counts as a lack of memory, and it is asked again.
    pool = gpupool.MemPool((Raising(raised, own.malloc, times=9), own.free))
    try:
        allocate_in(pool, MIB)
    finally:
        assert (own.live, pool.stats().reserved_bytes) == ({}, 0)


def in_free(raised):
    own = Allocator()

    def free(*arguments):
        own.free(*arguments)
        return callback()

    callback = Raising(raised)
    pool = gpupool.MemPool((own.malloc, free))
    for buffer in [allocate_in(pool, 3 * PAGE) for _ in range(3)]:
        buffer.free()
    try:
        pool.trim()
        return own
    finally:
        assert own.live == {}


def in_on_segment(raised):
    callback = Raising(raised)
    pool = gpupool.MemPool(no_split=True)
    pool.on_segment(callback)
    try:
        return pool.empty(MIB)
    finally:
        assert pool.stats().reserved_bytes == PAGE


def in_on_discard(raised):
    pool, stream = gpupool.MemPool(limit=2 * PAGE), gpupool.Stream()
    ranged = pool.reserve_range(2 * PAGE)
    ranged.on_discard(Raising(raised))
    ranged.commit([0, 1], stream, priority=0)
    try:
        return pool.empty(PAGE, stream)
    finally:
        assert ranged.committed_bytes == PAGE


def in_create(raised):
    pool = gpupool.HandlePool("own", Raising(raised, lambda: 1), lambda handle: None)
    try:
        pool.handle()
    finally:
        assert (pool.stats().created, pool.stats().failures) == (0, 1)


def in_set_stream(raised):
    pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None, Raising(raised))
    pool.handle(gpupool.Stream())


def in_destroy(raised):
    pool = gpupool.HandlePool("own", iter(range(1, 9)).__next__, Raising(raised))
    pool.warm(3)
    try:
        pool.trim()
    finally:
        assert (pool.stats().idle, pool.stats().destroyed) == (0, 3)


def in_a_stream_source(raised):
    former = _native.set_stream_source(Raising(raised))
    try:
        gpupool.empty(1)
    finally:
        _native.set_stream_source(former)


def in_a_pointer(raised):
    allocator = _native.CupyPinnedAllocator(Raising(raised), lambda nbytes, error: None)
    allocator.malloc(1)


# What a ValueError of the callback becomes: itself, the cause of gpupool's error, or a word to sys.unraisablehook.
CALLBACKS = {
    in_on_oom: "raised",
    in_malloc: "cause",
    in_free: "told",
    in_on_segment: "told",
    in_on_discard: "told",
    in_create: "cause",
    in_set_stream: "cause",
    in_destroy: "cause",
    in_a_stream_source: "raised",
    in_a_pointer: "raised",
}


@pytest.mark.parametrize("raised", [KeyboardInterrupt("now"), SystemExit(7)], ids=repr)
@pytest.mark.parametrize("call", CALLBACKS, ids=lambda call: call.__name__)
def test_an_interruption_reaches_the_caller_and_leaves_memory_whole(call, raised):
    before = gpupool.memory_stats().live_bytes
    try:
        call(raised)
    except BaseException as caught:
        told = caught
    assert told is raised
    told.__traceback__ = None
    assert gpupool.memory_stats().live_bytes == before


@pytest.mark.parametrize("call", CALLBACKS, ids=lambda call: call.__name__)
def test_an_error_reaches_the_caller_and_leaves_memory_whole(call, monkeypatch):
    before, raised, told = gpupool.memory_stats().live_bytes, ValueError("of the test"), []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    if CALLBACKS[call] == "told":
        call(raised)
        assert told == [raised]
    else:
        with pytest.raises((ValueError, gpupool.Error)) as caught:
            call(raised)
        assert (caught.value if CALLBACKS[call] == "raised" else caught.value.__cause__) is raised
        assert told == []
    raised.__traceback__ = None
    told.clear()
    gc.collect()
    assert gpupool.memory_stats().live_bytes == before


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError])
def test_what_ends_a_request_has_the_lack_of_memory_as_its_context(kind):
    leave(0)
    failures = gpupool.memory_stats().failures
    with gpupool.on_oom(Raising(kind())), gpupool.on_oom(asked := Raising(None)), pytest.raises(kind) as caught:
        gpupool.empty(2 * PAGE)
    context = caught.value.__context__
    assert type(context) is gpupool.OutOfMemory
    assert context.requested_bytes == 2 * PAGE
    assert asked.calls == 0
    assert gpupool.memory_stats().failures == failures + 1


@pytest.mark.parametrize("way", ["reserve", "range", "wake", "claim"])
def test_what_else_needs_memory_is_ended_the_same(way):
    pool = gpupool.MemPool()
    ranged = pool.reserve_range(4 * PAGE)
    asleep = gpupool.MemPool()
    buffer = asleep.empty(PAGE)
    asleep.sleep()
    gpupool.empty_cache()
    leave(0)
    calls = {
        "reserve": lambda: gpupool.MemPool(reserve=8 * PAGE),
        "range": lambda: ranged.commit([0], gpupool.Stream()),
        "wake": asleep.wake,
        "claim": lambda: pool.empty(PAGE),
    }
    with gpupool.on_oom(Raising(KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
        calls[way]()
    assert ranged.committed_bytes == 0
    gpupool.set_per_process_memory_fraction(1.0)
    assert asleep.wake() == PAGE
    del buffer


def test_an_interruption_of_malloc_ends_the_request_where_other_memory_would_have_served_it():
    own, stream = Allocator(), gpupool.Stream()
    failed = Raising(KeyboardInterrupt())
    pool = gpupool.MemPool((lambda *arguments: malloc(*arguments), own.free), limit=2 * PAGE)
    malloc = own.malloc
    allocate_in(pool, MIB, stream).free()
    malloc = failed
    with gpupool.on_oom(asked := Raising(None)), pytest.raises(KeyboardInterrupt):
        allocate_in(pool, MIB, gpupool.Stream())
    assert (failed.calls, asked.calls) == (1, 0)
    assert len(own.live) == 1


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(7)], ids=repr)
def test_an_interruption_that_a_framework_cannot_raise_reaches_the_main_thread(raised):
    malloc = ctypes_function(gpupool.c_api.malloc)
    leave(0)
    try:
        with gpupool.on_oom(Raising(raised)):
            malloc(2 * PAGE, 0, None)
        told = None
    except BaseException as caught:
        told = caught
    assert told is raised


def ctypes_function(address):
    """Return a function that allocates without the GIL, as frameworks do."""
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    return kind(address)


# ---- generators ----


def current():
    return gpupool.empty(1).pool_id, gpupool.current_stream().ptr


NONE = (0, 0)


def entered(outer, inner):
    """Be in the scopes until the generator ends, and give what is current in them."""
    with outer, inner:
        yield current()


def test_a_generator_that_another_thread_ends_ends_the_block_of_the_thread_that_entered_it():
    pool, other, stream = gpupool.MemPool(), gpupool.MemPool(), gpupool.Stream()
    before = current()
    generator = entered(pool, stream)
    inside = next(generator)
    assert inside == (pool.id, stream.ptr)
    assert current() == inside
    with other_thread() as run:

        def end():
            # Its own block stays.
            with pool:
                generator.close()
                return current()[0]

        assert run(end) == pool.id
        assert run(current)[0] == NONE
    assert pool.use_count() == 1
    assert current() == before
    with other:
        assert current()[0] == other.id
    assert current() == before


def test_a_scope_for_all_threads_ends_with_its_generator_on_another():
    pool = gpupool.MemPool()
    generator = entered(gpupool.use_mem_pool(pool, all_threads=True), contextlib.nullcontext())
    next(generator)
    with other_thread() as run, other_thread() as third:
        assert third(current)[0] == pool.id
        run(generator.close)
        assert third(current)[0] == NONE
    assert (current()[0], pool.use_count()) == (NONE, 1)


def test_a_generator_whose_thread_is_gone_can_be_ended():
    pool = gpupool.MemPool()
    generator = entered(pool, contextlib.nullcontext())
    with other_thread() as run:
        run(next, generator)
    generator.close()
    assert (current()[0], pool.use_count()) == (NONE, 1)


def test_an_async_generator_that_is_abandoned_leaves_its_task_and_raises_nowhere():
    async def enter():
        with pool:
            yield current()[0]

    async def abandon():
        # Not kept: asyncio ends it in a task of its own.
        async for inside in enter():
            assert inside == pool.id
            break
        gc.collect()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return current()[0]

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        with other:
            tasks = [asyncio.create_task(abandon()) for _ in range(2)]
            return await asyncio.gather(*tasks), current()[0]

    pool, other, raised = gpupool.MemPool(), gpupool.MemPool(), []
    assert asyncio.run(main()) == ([other.id] * 2, other.id)
    assert raised == []
    assert pool.use_count() == 1


@pytest.mark.parametrize("case", functions_of("memory/garbage.py"))
def test_what_is_garbage_is_called_no_more(case):
    forks.run_program("memory/garbage.py", case)
