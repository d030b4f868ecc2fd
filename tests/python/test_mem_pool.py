"""MemPool as programs for PyTorch call it: its arguments, ids, blocks, subclasses, and its end."""

import contextlib
import ctypes
import gc
import inspect
import threading
import weakref

import gpupool
import pytest
from own_memory import MIB, Allocator, allocate_in, capturing, other_thread

pytestmark = pytest.mark.usefixtures("nothing_left")


# What torch.cuda of PyTorch 2.11 takes: names, order and defaults.
TORCH = {
    "MemPool": (gpupool.MemPool, {"allocator": None, "use_on_oom": False, "no_split": False}),
    "use_mem_pool": (gpupool.use_mem_pool, {"pool": inspect.Parameter.empty, "device": None}),
    "memory_snapshot": (gpupool.memory_snapshot, {"mempool_id": None, "include_traces": True}),
    "MemPool.snapshot": (gpupool.MemPool().snapshot, {"include_traces": True}),
    "graph_pool_handle": (gpupool.graph_pool_handle, {}),
}


@pytest.mark.parametrize(("call", "parameters"), TORCH.values(), ids=TORCH)
def test_calls_begin_with_pytorchs_parameters(call, parameters):
    own = list(inspect.signature(call).parameters.values())
    assert [(each.name, each.default) for each in own[: len(parameters)]] == list(parameters.items())
    assert all(each.default is not inspect.Parameter.empty for each in own[len(parameters) :])


class Device:
    """A device as PyTorch names one."""

    def __init__(self, index):
        self.index = index


def test_the_device_of_a_block_is_its_pools():
    pool = gpupool.MemPool(device=Device(1))
    for device in (None, 1, Device(1)):
        with gpupool.use_mem_pool(pool, device):
            assert gpupool.empty(MIB, gpupool.Stream(1)).pool_id == pool.id
    for device in (0, Device(0), Device(None)):
        with pytest.raises(gpupool.InvalidValue, match=r"pool \(0, \d+\) is of device 1, not of device 0"):
            gpupool.use_mem_pool(pool, device=device)
    assert pool.use_count() == 1


# ---- ids ----


def test_ids_for_graphs_are_asked_for_by_either_name():
    assert gpupool.graph_pool_handle(False)[1] == gpupool.graph_pool_handle(is_user_created=False)[1] == 0
    assert gpupool.graph_pool_handle(is_user_created=True)[0] == gpupool.graph_pool_handle()[0] == 0


def test_a_pool_for_graphs_has_what_others_have():
    own = Allocator()
    pool = own.pool(is_user_created=False, limit=8 * MIB, no_split=True)
    ahead = gpupool.graph_pool_handle(is_user_created=False)
    assert (pool.id[1], ahead) == (0, (pool.id[0] + 1, 0))
    assert (pool.limit, pool.no_split) == (8 * MIB, True)
    assert allocate_in(pool, 4 * MIB).pool_id == pool.id
    with pytest.raises(gpupool.OutOfMemory):
        allocate_in(pool, 9 * MIB)
    # A graph that was captured into it by its id keeps its memory until its release.
    pool.trim()
    gpupool.torch.begin_allocate_to_pool(0, pool.id)
    gpupool.empty(4 * MIB)
    gpupool.torch.end_allocate_to_pool(0, pool.id)
    assert (pool.use_count(), pool.trim(), len(own.live)) == (2, 0, 1)
    gpupool.torch.release_pool(0, pool.id)
    assert (pool.use_count(), pool.trim(), own.live) == (1, 4 * MIB, {})


CALLS = {
    "begin_allocate_to_pool": gpupool.torch.begin_allocate_to_pool,
    "end_allocate_to_pool": gpupool.torch.end_allocate_to_pool,
    "release_pool": gpupool.torch.release_pool,
    "pool_use_count": gpupool.torch.pool_use_count,
    "memory_snapshot": lambda device, pool_id: gpupool.memory_snapshot(pool_id, device=device),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_id_is_its_pools_alone(call):
    pool = gpupool.MemPool()
    pool_id, kept = pool.id, allocate_in(pool, MIB)
    with pytest.raises(gpupool.InvalidValue, match=rf"pool \(0, {pool_id[1]}\) is of device 0, not of device 1"):
        call(1, pool_id)
    del pool
    # Also while it has a live block.
    with pytest.raises(gpupool.InvalidValue, match=rf"pool \(0, {pool_id[1]}\) on device 0 is gone"):
        call(0, pool_id)
    with pytest.raises(gpupool.InvalidValue, match=rf"\(0, {pool_id[1] + 1}\) on device 0 is not a pool's id"):
        call(0, (0, pool_id[1] + 1))
    assert kept.pool_id == pool_id


def test_a_snapshot_of_one_pool():
    gpupool.record_memory_history()
    try:
        pool, other = gpupool.MemPool(device=1), gpupool.MemPool()
        buffers = [allocate_in(pool, MIB, gpupool.Stream(1)), allocate_in(other, MIB)]
        gpupool.simulated.lease(device=1).release()
        for snapshot in (gpupool.memory_snapshot(pool.id), gpupool.memory_snapshot(mempool_id=pool.id, device=1)):
            assert {segment["segment_pool_id"] for segment in snapshot["segments"]} == {pool.id}
            events = [event for trace in snapshot["device_traces"] for event in trace]
            assert {event["pool_id"] for event in events} == {pool.id}
            assert "alloc" in {event["action"] for event in events}
        light = gpupool.memory_snapshot(include_traces=False)
        assert light["device_traces"] == [[], []]
        assert light["handle_events"] == []
        assert {segment["segment_pool_id"] for segment in light["segments"]} >= {pool.id, other.id}
        # As in PyTorch, the id of no pool asks for every pool.
        assert gpupool.memory_snapshot((0, 0), False)["segments"] == light["segments"]
        assert gpupool.memory_snapshot(gpupool.graph_pool_handle())["segments"] == []
        assert pool.snapshot(include_traces=False) == pool.snapshot(True) == pool.snapshot()
        assert len(buffers) == 2
        with pytest.raises(gpupool.InvalidValue, match="device="):
            gpupool.memory_snapshot(1)
        with pytest.raises(gpupool.InvalidValue, match="is gone"):
            gpupool.memory_snapshot(gpupool.MemPool().id)
    finally:
        gpupool.record_memory_history(None)


# ---- `with pool:` ----


def test_a_pool_is_a_block_of_its_own():
    first, second = gpupool.MemPool(), gpupool.MemPool()
    with first as entered, second, first:
        assert entered is first
        assert (gpupool.empty(MIB).pool_id, first.use_count()) == (first.id, 3)
        with other_thread() as run, second:
            assert run(gpupool.empty, MIB).pool_id == (0, 0)
            run(first.__enter__)
            assert (run(gpupool.empty, MIB).pool_id, gpupool.empty(MIB).pool_id) == (first.id, second.id)
            run(first.__exit__, None, None, None)
            with pytest.raises(gpupool.InvalidValue, match="on a thread that did not enter it"):
                run(first.__exit__, None, None, None)
    assert (first.use_count(), second.use_count(), gpupool.empty(MIB).pool_id) == (1, 1, (0, 0))


def test_threads_are_in_a_pools_block_at_once():
    pool, barrier, ids = gpupool.MemPool(), threading.Barrier(4), []

    def work():
        with pool:
            barrier.wait()
            ids.append(gpupool.empty(MIB).pool_id)
            barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ids, pool.use_count()) == ([pool.id] * 4, 1)


# ---- close ----


def test_a_closed_pool_serves_nothing_more():
    own, stream = Allocator(), gpupool.Stream()
    pool = own.pool()
    kept, small = allocate_in(pool, 4 * MIB), [allocate_in(pool, 700) for _ in range(3)]
    del small[1:]
    allocate_in(pool, 8 * MIB)
    with pool:
        assert pool.close() == 8 * MIB
        for size in (700, 4 * MIB, 1):
            with pytest.raises(gpupool.InvalidValue, match=rf"pool \(0, {pool.id[1]}\) on device 0 is closed"):
                gpupool.empty(size)
    for call in (
        lambda: allocate_in(pool, MIB),
        lambda: pool.__enter__(),
        lambda: pool.capture(stream).__enter__(),
        lambda: pool.token().enter(),
        lambda: gpupool.use_mem_pool(pool.token(), all_threads=True).__enter__(),
        lambda: gpupool.torch.begin_allocate_to_pool(0, pool.id),
        lambda: gpupool.c_api.feed(pool),
    ):
        with pytest.raises(gpupool.InvalidValue, match="is closed"):
            call()
    assert (pool.use_count(), pool.close(), pool.stats().live_blocks) == (1, 0, 2)
    assert set(own.live) == {kept.ptr, small[0].ptr - small[0].ptr % (1 << 30)}
    address = kept.ptr
    del kept
    assert address not in own.live
    del small
    assert (own.live, pool.trim(), pool.snapshot()) == ({}, 0, [])


def test_a_pool_is_closed_at_the_end_of_a_block():
    with contextlib.closing(gpupool.MemPool()) as pool, pool:
        gpupool.empty(MIB)
    assert pool.stats().reserved_bytes == 0


def test_a_graph_keeps_a_closed_pools_memory():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    with capturing(pool, stream) as memory:
        gpupool.empty(4 * MIB, stream)
    assert pool.close() == 0
    assert pool.stats().reserved_bytes == 4 * MIB
    memory.reset()
    assert pool.stats().reserved_bytes == 0


def test_functions_that_feed_from_a_closed_pool_give_nothing_and_serve_no_other():
    pool = gpupool.MemPool()
    malloc, _ = gpupool.c_api.feed(pool)
    pool.close()
    others = [gpupool.MemPool() for _ in range(3)]
    assert malloc not in [gpupool.c_api.feed(other)[0] for other in others]
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(malloc)
    assert function(MIB, 0, None) is None


# ---- subclasses, attributes, weak references ----


class Named(gpupool.MemPool):
    """A pool with a name."""

    def __init__(self, name, **arguments):
        super().__init__(**arguments)
        self.name = name


def test_a_subclass_is_a_pool_with_an_init_of_its_own():
    pool = Named("weights", limit=4 * MIB)
    assert (pool.name, pool.limit) == ("weights", 4 * MIB)
    with gpupool.use_mem_pool(pool) as entered:
        assert (entered, gpupool.empty(MIB).pool_id) == (pool, pool.id)
    assert repr(pool).endswith(
        f"Named(id={pool.id}, device=0 (simulated), limit={4 * MIB}, live_bytes=0, reserved_bytes={2 * MIB})"
    )
    malloc, _ = gpupool.c_api.feed(pool)
    assert malloc


def test_a_pool_says_what_it_holds_its_limit_and_its_state():
    pool = gpupool.MemPool(device=1)
    name = f"gpupool.MemPool(id={pool.id}, device=1 (simulated)"
    assert repr(pool) == f"{name}, live_bytes=0, reserved_bytes=0)"
    pool.limit = 8 * MIB
    name += f", limit={8 * MIB}"
    buffer = pool.empty(3 * MIB)
    assert repr(pool) == f"{name}, live_bytes={3 * MIB}, reserved_bytes={4 * MIB})"
    pool.sleep()
    assert repr(pool).endswith(", asleep)")
    pool.wake()
    del buffer
    pool.close()
    assert repr(pool) == f"{name}, live_bytes=0, reserved_bytes=0, closed)"


def test_a_subclass_that_does_not_make_its_pool_is_told_so():
    class Forgetful(gpupool.MemPool):
        def __init__(self):
            pass

    pool = Forgetful()
    for use in (lambda: pool.id, pool.stats, pool.close, pool.__enter__, lambda: gpupool.use_mem_pool(pool)):
        with pytest.raises(gpupool.InvalidValue, match=r"super\(\).__init__\(\)"):
            use()
    assert "not made" in repr(pool)
    made = gpupool.MemPool()
    pool_id = made.id
    with pytest.raises(gpupool.InvalidValue, match="made before"):
        made.__init__()
    assert made.id == pool_id


def test_a_pool_has_attributes_and_weak_references_and_ends_in_cycles():
    pool = gpupool.MemPool()
    allocate_in(pool, 4 * MIB)
    pool_id, reference = pool.id, weakref.ref(pool)
    pool.tag, pool.itself = "kv", pool
    assert reference() is pool
    assert vars(pool)["tag"] == "kv"
    del pool
    gc.collect()
    assert reference() is None
    with pytest.raises(gpupool.InvalidValue, match="is gone"):
        gpupool.torch.pool_use_count(0, pool_id)
