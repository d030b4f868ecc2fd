"""Each public call is refused in a forked child of a process that used gpupool, or told here why it is not."""

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
    **{name: getattr(gpupool, name) for name in dir(gpupool)},
    **{name: getattr(gpupool.torch, name) for name in gpupool.torch.__all__ if hasattr(gpupool._native, name)},
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
    stream_scope = gpupool.stream(stream)
    buffer, pinned = gpupool.empty(1000, stream), gpupool.empty_pinned(1000, stream)
    mem_pool, whole_pool = gpupool.MemPool(), gpupool.MemPool(no_split=True)
    segment_callback = whole_pool.on_segment(lambda event: None)
    ranged = mem_pool.reserve_range(4 << 20)
    ranged.commit([0], stream)
    discard_callback = ranged.on_discard(lambda pages: None)
    token, shared = mem_pool.token(), buffer.share()
    capture = mem_pool.capture(stream)
    gpupool._native.host_begin_capture(stream)
    with mem_pool.capture(stream) as graph_memory:
        pass
    gpupool._native.host_end_capture(stream)
    claim = gpupool.claim(0)
    scope = gpupool.use_mem_pool(mem_pool)
    callback = gpupool.on_oom(lambda device, nbytes: False)
    lease = gpupool.simulated.lease()
    pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None)
    pool.handle()
    return {
        "CApi.bare_feed": lambda: gpupool.c_api.bare_feed(mem_pool),
        "CApi.bare_feed of no pool": lambda: gpupool.c_api.bare_feed(),
        "CApi.feed": lambda: gpupool.c_api.feed(mem_pool),
        "CApi.feed of no pool": lambda: gpupool.c_api.feed(),
        "Capture.__enter__": capture.__enter__,
        "MemoryClaim.__enter__": claim.__enter__,
        "MemoryClaim.left": lambda: claim.left,
        "MemoryClaim.release": claim.release,
        "DeviceBuffer.__cuda_array_interface__": lambda: buffer.__cuda_array_interface__,
        "DeviceBuffer.__dlpack__": buffer.__dlpack__,
        "DeviceBuffer.__array__": lambda: buffer.__array__(),
        "DeviceBuffer.__bytes__": lambda: bytes(buffer),
        "DeviceBuffer.__dlpack_device__": buffer.__dlpack_device__,
        "DeviceBuffer.__len__": lambda: len(buffer),
        "DeviceBuffer.__reduce_ex__": lambda: buffer.__reduce_ex__(5),
        "DeviceBuffer.copy_from": lambda: buffer.copy_from(bytes(1000)),
        "DeviceBuffer.copy_from of pinned memory": lambda: buffer.copy_from(pinned),
        "DeviceBuffer.copy_to": lambda: buffer.copy_to(bytearray(1000)),
        "DeviceBuffer.device": lambda: buffer.device,
        "DeviceBuffer.fill": lambda: buffer.fill(0),
        "DeviceBuffer.free": buffer.free,
        "DeviceBuffer.is_attached": lambda: buffer.is_attached,
        "DeviceBuffer.nbytes": lambda: buffer.nbytes,
        "DeviceBuffer.pool_id": lambda: buffer.pool_id,
        "DeviceBuffer.ptr": lambda: buffer.ptr,
        "DeviceBuffer.record_stream": lambda: buffer.record_stream(stream),
        "DeviceBuffer.recall": buffer.recall,
        "DeviceBuffer.share": buffer.share,
        "DeviceBuffer.stream": lambda: buffer.stream,
        "DiscardCallback.__enter__": discard_callback.__enter__,
        "DiscardCallback.remove": discard_callback.remove,
        "GraphMemory.reset": graph_memory.reset,
        "HandlePool.__new__": lambda: gpupool.HandlePool("other", lambda: 1, lambda handle: None),
        "HandlePool.close": pool.close,
        "HandlePool.get_mem_pool": gpupool.simulated.get_mem_pool,
        "HandlePool.handle": gpupool.simulated.handle,
        "HandlePool.handle of a user's pool": pool.handle,
        "HandlePool.lease": gpupool.simulated.lease,
        "HandlePool.limit =": lambda: setattr(pool, "limit", 3),
        "HandlePool.origin": lambda: gpupool.simulated.origin,
        "HandlePool.path": lambda: gpupool.simulated.path,
        "HandlePool.reset_peak_stats": gpupool.simulated.reset_peak_stats,
        "HandlePool.set_mem_pool": lambda: gpupool.simulated.set_mem_pool(mem_pool),
        "HandlePool.set_mem_pool of none": lambda: gpupool.simulated.set_mem_pool(None),
        "HandlePool.stats": gpupool.simulated.stats,
        "HandlePool.trim": gpupool.simulated.trim,
        "HandlePool.version": lambda: gpupool.simulated.version,
        "HandlePool.warm": lambda: gpupool.simulated.warm(1),
        "HandlePool.warm in the background": lambda: gpupool.simulated.warm(1, background=True),
        "Lease.__enter__": lease.__enter__,
        "Lease._as_parameter_": lambda: lease._as_parameter_,
        "Lease.__index__": lease.__index__,
        "Lease.__int__": lambda: int(lease),
        "Lease.discard": lease.discard,
        "Lease.release": lease.release,
        "MemPool.__new__": gpupool.MemPool,
        "MemPool.__enter__": mem_pool.__enter__,
        "MemPool.allocator": lambda: mem_pool.allocator,
        "MemPool.capture": lambda: mem_pool.capture(stream),
        "MemPool.close": mem_pool.close,
        "MemPool.empty": lambda: mem_pool.empty(1),
        "MemPool.is_asleep": lambda: mem_pool.is_asleep,
        "MemPool.on_segment": lambda: whole_pool.on_segment(lambda event: None),
        "MemPool.limit =": lambda: setattr(mem_pool, "limit", 3),
        "MemPool.reserve_range": lambda: mem_pool.reserve_range(2 << 20),
        "MemPool.reset_peak_stats": mem_pool.reset_peak_stats,
        "MemPool.sleep": mem_pool.sleep,
        "MemPool.snapshot": mem_pool.snapshot,
        "MemPool.stats": mem_pool.stats,
        "MemPool.token": mem_pool.token,
        "MemPool.trim": mem_pool.trim,
        "MemPool.use_count": mem_pool.use_count,
        "MemPool.wake": mem_pool.wake,
        "MemoryRange.__cuda_array_interface__": lambda: ranged.__cuda_array_interface__,
        "MemoryRange.__dlpack__": ranged.__dlpack__,
        "MemoryRange.__dlpack_device__": ranged.__dlpack_device__,
        "MemoryRange.__enter__": ranged.__enter__,
        "MemoryRange.commit": lambda: ranged.commit([1], stream),
        "MemoryRange.committed_bytes": lambda: ranged.committed_bytes,
        "MemoryRange.decommit": lambda: ranged.decommit([0], stream),
        "MemoryRange.discardable_bytes": lambda: ranged.discardable_bytes,
        "MemoryRange.free": ranged.free,
        "MemoryRange.on_discard": lambda: ranged.on_discard(lambda pages: None),
        "MemoryRange.pin": lambda: ranged.pin([0], stream),
        "MemoryRange.prepare": lambda: ranged.prepare(1),
        "MemoryRange.prepare of none": lambda: ranged.prepare(0),
        "MemoryRange.unpin": lambda: ranged.unpin([0], stream),
        "OomCallback.__enter__": callback.__enter__,
        "OomCallback.remove": callback.remove,
        "PinnedBuffer.__array_interface__": lambda: pinned.__array_interface__,
        "PinnedBuffer.__buffer__": lambda: memoryview(pinned),
        "PinnedBuffer.__dlpack__": pinned.__dlpack__,
        "PinnedBuffer.__dlpack_device__": pinned.__dlpack_device__,
        "PinnedBuffer.__len__": lambda: len(pinned),
        "PinnedBuffer.free": pinned.free,
        "PinnedBuffer.nbytes": lambda: pinned.nbytes,
        "PinnedBuffer.numa": lambda: pinned.numa,
        "PinnedBuffer.ptr": lambda: pinned.ptr,
        "PinnedBuffer.record_stream": lambda: pinned.record_stream(stream),
        "PoolScope.__enter__": scope.__enter__,
        "PoolToken.enter": token.enter,
        "Stream.__cuda_stream__": stream.__cuda_stream__,
        "Stream.__enter__": stream.__enter__,
        "Stream.__new__": gpupool.Stream,
        "Stream.ptr": lambda: stream.ptr,
        "Stream.query": stream.query,
        "Stream.synchronize": stream.synchronize,
        "StreamScope.__enter__": stream_scope.__enter__,
        "_native.set_stream_source": lambda: gpupool._native.set_stream_source(None),
        "begin_allocate_to_pool": lambda: gpupool.torch.begin_allocate_to_pool(0, mem_pool.id),
        "current_device": gpupool.current_device,
        "current_stream": gpupool.current_stream,
        "attach": lambda: gpupool.attach(shared),
        "available_memory": gpupool.available_memory,
        "claim": lambda: gpupool.claim(1),
        "device_count": gpupool.device_count,
        "dump_snapshot": lambda: gpupool.dump_snapshot(os.devnull),
        "empty": lambda: gpupool.empty(1, stream),
        "empty_cache": gpupool.empty_cache,
        "empty_pinned": lambda: gpupool.empty_pinned(1),
        "empty_pinned on a stream": lambda: gpupool.empty_pinned(1, stream),
        "empty_pinned on a node": lambda: gpupool.empty_pinned(1, numa=0),
        "enable_peer_access": lambda: gpupool.enable_peer_access(0, 0),
        "end_allocate_to_pool": lambda: gpupool.torch.end_allocate_to_pool(0, mem_pool.id),
        "get_memory_history": gpupool.get_memory_history,
        "get_memory_limit": gpupool._native.get_memory_limit,
        "get_per_process_memory_fraction": gpupool.get_per_process_memory_fraction,
        "get_pinned_limit": gpupool.get_pinned_limit,
        "graph_pool_handle": gpupool.graph_pool_handle,
        "handle_stats": gpupool.handle_stats,
        "memory_snapshot": gpupool.memory_snapshot,
        "memory_stats": gpupool.memory_stats,
        "memory_summary": gpupool.memory_summary,
        "SegmentCallback.__enter__": segment_callback.__enter__,
        "SegmentCallback.remove": segment_callback.remove,
        "neighbours": gpupool.neighbours,
        "set_neighbour": gpupool.set_neighbour,
        "on_oom": lambda: gpupool.on_oom(lambda device, nbytes: False),
        "oom_callbacks": gpupool.oom_callbacks,
        "peers": gpupool.peers,
        "pinned_stats": gpupool.pinned_stats,
        "plot": gpupool.plot,
        "pool_use_count": lambda: gpupool.torch.pool_use_count(0, mem_pool.id),
        "record_memory_history": gpupool.record_memory_history,
        "release_pool": lambda: gpupool.torch.release_pool(0, mem_pool.id),
        "reset_peak_stats": gpupool.reset_peak_stats,
        "reset_peak_pinned_stats": gpupool.reset_peak_pinned_stats,
        "runtime": gpupool.runtime,
        "set_per_process_memory_fraction": lambda: gpupool.set_per_process_memory_fraction(0.5),
        "set_pinned_limit": lambda: gpupool.set_pinned_limit(1),
        "sleep": gpupool.sleep,
        "stream": lambda: gpupool.stream(stream),
        "synchronize": gpupool.synchronize,
        "use_mem_pool": lambda: gpupool.use_mem_pool(mem_pool),
        "use_mem_pool of a token": lambda: gpupool.use_mem_pool(token),
        "wake": gpupool.wake,
        "warm_pinned": lambda: gpupool.warm_pinned(1, background=True),
        "warm_pinned at once": lambda: gpupool.warm_pinned(1),
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
    calls = set(public_calls())
    unknown = calls - refused.keys() - ANSWERED.keys()
    assert not unknown, f"say of these whether a forked child may use them: {sorted(unknown)}"
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


if __name__ == "__main__":
    main()
