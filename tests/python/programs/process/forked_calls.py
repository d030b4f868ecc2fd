"""Each public call is refused in a forked child of a process that used gpupool, or told here why it is not."""

import functools
import os
import warnings

import gpupool
from errors import assert_says
from forking import exit_code_of

# From Python 3.12 on it warns of a fork where gpupool has a thread, which is what is tried here.
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)

# What Python gives every class, and what tells of an object without asking for anything.
ORDINARY = {
    *("__annotate_func__", "__annotations_cache__", "__firstlineno__", "__replace__", "__static_attributes__"),
    *("__annotations__", "__dataclass_fields__", "__dataclass_params__", "__delattr__", "__dict__", "__doc__"),
    *("__eq__", "__ge__", "__gt__", "__hash__", "__init__", "__le__", "__lt__", "__match_args__", "__module__"),
    *("__ne__", "__repr__", "__setattr__", "__str__", "__weakref__"),
}

FACT = "is known since the object was made, and touches nothing that another thread of the parent may have locked"
ENDS_A_BLOCK = "ends the block that the child was forked in, quietly, as a refusal would hide what was raised there"
REPR = "tells what the repr tells, which asks for nothing that the child does not have"
VALUES = "are plain values, taken before"

# The classes of results. The other types are for annotations alone.
RESULTS = [
    name
    for name in gpupool.typing.__all__
    if isinstance(value := getattr(gpupool.typing, name), type) and not getattr(value, "_is_protocol", False)
]

# What is not refused, and why.
ANSWERED = {
    "CApi.capsule": "is an address; the functions behind it refuse",
    "CApi.cupy_free": "is an address; the function behind it does nothing in a child",
    "CApi.cupy_malloc": "is an address; the function behind it fails in a child",
    "CApi.free": "is an address; the function behind it does nothing in a child",
    "CApi.handler": "is an address; the functions behind it refuse",
    "CApi.handler_alloc": "is an address; the function behind it fails in a child",
    "CApi.handler_free": "is an address; the function behind it does nothing in a child",
    "CApi.malloc": "is an address; the function behind it fails in a child",
    "CApi.pinned_handler": "is an address; the functions behind it refuse",
    "Capture.__exit__": ENDS_A_BLOCK,
    "MemoryClaim.__exit__": ENDS_A_BLOCK,
    "MemoryClaim.device": FACT,
    "MemoryClaim.nbytes": FACT,
    "DiscardCallback.__exit__": ENDS_A_BLOCK,
    "GraphMemory.pool_id": FACT,
    "HandlePool._repr_html_": REPR,
    "HandlePool.available": "is False there, as there are no handles to be had",
    "HandlePool.limit": FACT,
    "HandlePool.loaded": FACT,
    "HandlePool.name": FACT,
    "HandleStats": VALUES,
    "Info": VALUES,
    "Lease.__exit__": ENDS_A_BLOCK,
    "Lease.device": FACT,
    "MemPool.__del__": "does nothing there, as the end of a pool",
    "MemPool.__exit__": ENDS_A_BLOCK,
    "MemPool._repr_html_": REPR,
    "MemPool.device": FACT,
    "MemPool.id": FACT,
    "MemPool.limit": FACT,
    "MemPool.no_split": FACT,
    "MemPool.reserve": FACT,
    "MemPool.sleeps_for_others": FACT,
    "MemPool.use_on_oom": FACT,
    "MemPool.wakes_on_use": FACT,
    "MemoryRange.__del__": "does nothing there, as the end of a range",
    "MemoryRange.__exit__": ENDS_A_BLOCK,
    "MemoryRange._repr_html_": REPR,
    "MemoryRange.device": FACT,
    "MemoryRange.nbytes": FACT,
    "MemoryRange.page_bytes": FACT,
    "MemoryRange.pool_id": FACT,
    "MemoryRange.ptr": FACT,
    "MemoryStats": VALUES,
    "MemorySummary": VALUES,
    "Neighbour": VALUES,
    "NeighbourPool": VALUES,
    "OomCallback.__exit__": ENDS_A_BLOCK,
    "PinnedBuffer.__release_buffer__": "ends a view that the parent took, and nothing is freed in a child",
    "Plot": VALUES,
    "PoolScope.__exit__": ENDS_A_BLOCK,
    "PoolStats": VALUES,
    "PoolToken.device": FACT,
    "PoolToken.id": FACT,
    "SegmentCallback.__exit__": ENDS_A_BLOCK,
    "SegmentEvent": VALUES,
    "ShareToken.__bytes__": FACT,
    "ShareToken.__new__": "makes a token of bytes, and touches nothing else",
    "ShareToken.__reduce__": FACT,
    "ShareToken.nbytes": FACT,
    "ShareToken.process": FACT,
    "Stream.__exit__": ENDS_A_BLOCK,
    "Stream.device": FACT,
    "StreamScope.__exit__": ENDS_A_BLOCK,
    "typing": "has types alone",
    "get_include": "is the name of a folder",
    "get_library": "is the name of a file",
    "info": "tells that the process was forked",
    "worker": "has settings, which are plain values, and otherwise does what it does by the calls above",
    **dict.fromkeys(
        (
            *("cuda_core", "cupy", "dask", "numba", "nvmath", "onnxruntime", "prometheus", "ray", "rmm"),
            *("torch", "warp"),
        ),
        "does what it does by the calls above",
    ),
}


# All that users can name, without the types that are for annotations alone.
PUBLIC = {
    **{name: getattr(gpupool.torch, name) for name in gpupool.torch.__all__ if hasattr(gpupool._native, name)},
    **{name: getattr(gpupool, name) for name in dir(gpupool)},
    **{name: getattr(gpupool.typing, name) for name in RESULTS},
}


def public_calls():
    """Return the names of all that users can call or ask for."""
    for name, value in PUBLIC.items():
        if isinstance(value, gpupool.HandlePool | gpupool.typing.CApi):
            # Known by their classes.
            continue
        if isinstance(value, type) and not issubclass(value, gpupool.Error) and name not in ANSWERED:
            yield from (f"{name}.{member}" for member in vars(value) if member not in ORDINARY)
        elif not isinstance(value, type):
            yield name


def refused_calls():
    """Return what must be refused in a child, by name, with arguments that the parent could give."""
    stream = gpupool.Stream()
    buffer, pinned = gpupool.empty(1000, stream), gpupool.empty_pinned(1000, stream)
    mem_pool, whole_pool = gpupool.MemPool(), gpupool.MemPool(no_split=True)
    ranged = mem_pool.reserve_range(4 << 20)
    ranged.commit([0], stream)
    token, shared = mem_pool.token(), buffer.share()
    capture = mem_pool.capture(stream)
    gpupool._native.host_begin_capture(stream)
    with mem_pool.capture(stream) as graph_memory:
        pass
    gpupool._native.host_end_capture(stream)
    pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None)
    pool.handle()
    made = [
        *(buffer, pinned, mem_pool, ranged, token, capture, graph_memory, stream, gpupool.c_api, gpupool.simulated),
        *(gpupool.claim(0), gpupool.use_mem_pool(mem_pool), gpupool.stream(stream), gpupool.simulated.lease()),
        *(whole_pool.on_segment(print), ranged.on_discard(print), gpupool.on_oom(print)),
    ]
    objects = {type(each).__name__: each for each in made}
    # Of those that need some.
    arguments = {
        "CApi.bare_feed": (mem_pool,),
        "CApi.feed": (mem_pool,),
        "DeviceBuffer.__reduce_ex__": (5,),
        "DeviceBuffer.copy_from": (bytes(1000),),
        "DeviceBuffer.copy_to": (bytearray(1000),),
        "DeviceBuffer.fill": (0,),
        "DeviceBuffer.record_stream": (stream,),
        "HandlePool.__new__": ("other", lambda: 1, print),
        "HandlePool.set_mem_pool": (mem_pool,),
        "HandlePool.warm": (1,),
        "MemPool.capture": (stream,),
        "MemPool.empty": (1,),
        "MemPool.on_segment": (print,),
        "MemPool.reserve_range": (2 << 20,),
        "MemoryRange.commit": ([1], stream),
        "MemoryRange.decommit": ([0], stream),
        "MemoryRange.on_discard": (print,),
        "MemoryRange.pin": ([0], stream),
        "MemoryRange.prepare": (1,),
        "MemoryRange.unpin": ([0], stream),
        "PinnedBuffer.__buffer__": (0,),
        "PinnedBuffer.record_stream": (stream,),
        "attach": (shared,),
        "begin_allocate_to_pool": (0, mem_pool.id),
        "claim": (1,),
        "dump_snapshot": (os.devnull,),
        "empty": (1, stream),
        "empty_pinned": (1,),
        "enable_peer_access": (0, 0),
        "end_allocate_to_pool": (0, mem_pool.id),
        "on_oom": (print,),
        "pool_use_count": (0, mem_pool.id),
        "release_pool": (0, mem_pool.id),
        "set_per_process_memory_fraction": (0.5,),
        "set_pinned_limit": (1,),
        "stream": (stream,),
        "use_mem_pool": (mem_pool,),
        "warm_pinned": (1,),
    }

    def call(name):
        owner, _, member = name.rpartition(".")
        if member == "__new__":
            return type(objects[owner])(*arguments.get(name, ()))
        value = getattr(objects[owner], member) if owner else PUBLIC[name]
        return value(*arguments.get(name, ())) if callable(value) else value

    return {
        **{name: functools.partial(call, name) for name in public_calls() if name not in ANSWERED},
        "CApi.bare_feed of no pool": lambda: gpupool.c_api.bare_feed(),
        "CApi.feed of no pool": lambda: gpupool.c_api.feed(),
        "DeviceBuffer.copy_from of pinned memory": lambda: buffer.copy_from(pinned),
        "HandlePool.handle of a user's pool": pool.handle,
        # The shared one is never closed.
        "HandlePool.close": pool.close,
        "HandlePool.limit =": lambda: setattr(pool, "limit", 3),
        "HandlePool.set_mem_pool of none": lambda: gpupool.simulated.set_mem_pool(None),
        "HandlePool.warm in the background": lambda: gpupool.simulated.warm(1, background=True),
        "MemPool.limit =": lambda: setattr(mem_pool, "limit", 3),
        "MemoryRange.prepare of none": lambda: ranged.prepare(0),
        "_native.set_stream_source": lambda: gpupool._native.set_stream_source(None),
        "a view of pinned memory": lambda: memoryview(pinned),
        "empty_pinned on a stream": lambda: gpupool.empty_pinned(1, stream),
        "empty_pinned on a node": lambda: gpupool.empty_pinned(1, numa=0),
        "get_memory_limit": gpupool._native.get_memory_limit,
        "use_mem_pool of a token": lambda: gpupool.use_mem_pool(token),
        "warm_pinned in the background": lambda: gpupool.warm_pinned(1, background=True),
    }


def in_child(refused):
    wrong = []
    for name, call in refused.items():
        try:
            wrong.append(f"{name} answers {call()!r}")
        except gpupool.Forked as error:
            assert_says(error, "spawn")
        except Exception as error:
            wrong.append(f"{name} raises {error!r}")
    assert not wrong, "in a forked child " + "; ".join(wrong)
    assert gpupool.simulated.available is False


def blocks_end_quietly():
    """Leave, in a child, the blocks that it was forked in: what was raised there arrives."""
    stream, pool = gpupool.Stream(), gpupool.MemPool()
    gpupool._native.host_begin_capture(stream)

    def in_blocks():
        with (
            gpupool.simulated.lease(),
            gpupool.stream(stream),
            gpupool.use_mem_pool(pool),
            pool.reserve_range(2 << 20) as ranged,
            ranged.on_discard(lambda pages: None),
            gpupool.on_oom(lambda device, nbytes: False),
            pool.capture(stream),
        ):
            if os.fork() == 0:
                raise LookupError

    try:
        in_blocks()
    except LookupError:
        os._exit(0)
    except BaseException:
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0, "a block that ends in a child hides what was raised there"


def main():
    refused = refused_calls()
    gone = {name for name in ANSWERED if name.partition(".")[0] not in PUBLIC}
    assert not gone, f"these are no calls any more: {gone}"
    child = os.fork()
    if child == 0:
        try:
            in_child(refused)
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
        # Without the interpreter's end, which the parent has too.
        os._exit(0)
    assert exit_code_of(child) == 0, "see above"
    blocks_end_quietly()
