"""MemPool as programs for PyTorch call it: its arguments, ids, blocks, graphs, subclasses, and its end."""

import gc
import inspect
import weakref
from concurrent.futures import ThreadPoolExecutor

import gpupool
import pytest
from own_memory import MIB, Allocator, allocate_in, c_functions, capturing, leave, other_thread
from waiting import in_thread

pytestmark = pytest.mark.usefixtures("nothing_left")

NONE = (0, 0)

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


def test_ids_for_graphs_and_for_users_are_counted_apart():
    users = [gpupool.graph_pool_handle(), gpupool.MemPool().id, gpupool.graph_pool_handle(is_user_created=True)]
    graphs = [gpupool.graph_pool_handle(False), gpupool.graph_pool_handle(is_user_created=False)]
    assert {zero for zero, _ in users} == {zero for _, zero in graphs} == {0}
    assert users == sorted(set(users))
    assert graphs[1][0] == graphs[0][0] + 1
    assert gpupool.MemPool(is_user_created=False).id == (graphs[1][0] + 1, 0)
    with ThreadPoolExecutor(4) as executor:
        lists = list(executor.map(lambda _: [gpupool.MemPool().id for _ in range(50)], range(4)))
    assert len({pool_id for ids in lists for pool_id in ids}) == 200


def test_pools_by_id():
    pool_id = gpupool.graph_pool_handle()
    gpupool.torch.begin_allocate_to_pool(0, pool_id)
    assert gpupool.empty(MIB).pool_id == pool_id
    gpupool.torch.end_allocate_to_pool(0, pool_id)
    assert gpupool.torch.pool_use_count(0, pool_id) == 1
    gpupool.torch.release_pool(0, pool_id)
    with pytest.raises(gpupool.InvalidValue):
        gpupool.torch.begin_allocate_to_pool(0, NONE)


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
        assert {segment["segment_pool_id"] for segment in light["segments"]} == {pool.id, other.id}
        blocks = {block["address"]: block for segment in other.snapshot() for block in segment["blocks"]}
        told = blocks.pop(buffers[1].ptr)
        assert (told["requested_size"], told["state"]) == (MIB, "active_allocated")
        assert {block["state"] for block in blocks.values()} <= {"inactive"}
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


def test_scopes_nest_count_and_are_their_threads_own():
    first, second = gpupool.MemPool(), gpupool.MemPool(device=0)
    scope = gpupool.use_mem_pool(second)
    with first as entered, scope as of_scope, first, other_thread() as run:
        assert (entered, of_scope) == (first, second)
        assert (gpupool.empty(MIB).pool_id, first.use_count(), second.use_count()) == (first.id, 3, 2)
        for _ in range(2):
            assert run(gpupool.empty, MIB).pool_id == NONE
        run(first.__enter__)
        with second:
            assert (run(gpupool.empty, MIB).pool_id, gpupool.empty(MIB).pool_id) == (first.id, second.id)
        run(first.__exit__, None, None, None)
        with gpupool.use_mem_pool(first):
            for block, name in ((first, "MemPool"), (scope, "use_mem_pool")):
                with pytest.raises(gpupool.InvalidValue, match=f"{name}.* on a thread that did not enter it"):
                    run(block.__exit__, None, None, None)
        # Left in another order, those that remain serve.
        for each in (second, first):
            each.__enter__()
        second.__exit__(None, None, None)
        assert gpupool.empty(MIB).pool_id == first.id
        first.__exit__(None, None, None)
        # A thread takes a scope in by a token.
        carried = gpupool.use_mem_pool(first.token())
        run(carried.__enter__)
        assert run(gpupool.empty, MIB).pool_id == first.id
        run(carried.__exit__, None, None, None)
    assert (first.use_count(), second.use_count(), gpupool.empty(MIB).pool_id) == (1, 1, NONE)
    with pytest.raises(RuntimeError), first:
        raise RuntimeError
    assert first.use_count() == 1


def test_a_thread_that_ends_inside_a_scope_leaves_it():
    pool = gpupool.MemPool()
    scope, capture = gpupool.use_mem_pool(pool), pool.capture(gpupool.Stream())

    def enter():
        scope.__enter__()
        capture.__enter__()
        counts.append(pool.use_count())

    counts = []
    in_thread(enter)
    assert (counts, pool.use_count()) == ([3], 1)
    # What is dropped without having been left on its own thread is left there too.
    for make in (lambda: gpupool.use_mem_pool(pool), lambda: pool.capture(gpupool.Stream())):
        dropped = make()
        dropped.__enter__()
        assert pool.use_count() == 2
        del dropped
        assert (pool.use_count(), gpupool.empty(MIB).pool_id) == (1, NONE)


def test_a_pool_allocates_without_a_block():
    pool, other = gpupool.MemPool(limit=4 * MIB), gpupool.MemPool(device=1)
    with gpupool.MemPool() as around:
        buffer = pool.empty(1000)
        assert (buffer.pool_id, buffer.nbytes, buffer.device) == (pool.id, 1000, 0)
        assert gpupool.empty(8 * MIB).pool_id == around.id
        assert gpupool.empty_cache() >= 8 * MIB
    stream = gpupool.Stream(1)
    assert (other.empty(1000).device, other.empty(1000, stream).stream) == (1, stream.ptr)
    with pytest.raises(gpupool.InvalidValue, match="belongs to device 1, not to device 0"):
        pool.empty(1000, stream)
    with pytest.raises(gpupool.OutOfMemory):
        pool.empty(8 * MIB)
    pool.limit = None
    assert pool.empty(8 * MIB).pool_id == pool.id
    assert pool.use_count() == 1


def test_a_reserve_is_the_pools_from_birth():
    pool = gpupool.MemPool(reserve=63 * MIB)
    assert (pool.reserve, pool.stats().reserved_bytes, pool.trim()) == (64 * MIB, 64 * MIB, 0)
    leave(30 * MIB)
    with pytest.raises(gpupool.OutOfMemory) as caught:
        gpupool.MemPool(reserve=64 * MIB)
    assert caught.value.requested_bytes == 64 * MIB
    for kind in ({"no_split": True}, {"segments": True}, {"limit": MIB}, {"allocator": (lambda *_: 0, lambda *_: 0)}):
        with pytest.raises(gpupool.InvalidValue):
            gpupool.MemPool(reserve=2 * MIB, **kind)


# ---- graphs ----


def test_a_pools_graphs_use_it_until_they_are_reset_or_dropped():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    capture, graphs, addresses = pool.capture(stream), [], set()
    with capture as memory, pytest.raises(gpupool.InvalidValue, match="entered before"):
        capture.__enter__()
    memory.reset()
    for _ in range(3):
        with capturing(pool, stream) as memory:
            kept = gpupool.empty(4 * MIB, stream)
            addresses.add(kept.ptr)
        # What dies after its capture is the graphs' as well, and serves the next one.
        del kept
        graphs.append(memory)
    assert len(addresses) == 1
    assert {graph.pool_id for graph in graphs} == {pool.id}
    assert (pool.use_count(), pool.trim(), pool.stats().reserved_bytes) == (4, 0, 4 * MIB)
    assert allocate_in(pool, 4 * MIB, stream).ptr not in addresses
    pool.trim()
    for _ in range(2):
        graphs[0].reset()
    del graphs[1], memory
    third = graphs.pop()
    assert (pool.use_count(), pool.trim()) == (2, 0)
    del pool, capture
    assert gpupool.empty_cache() == 0
    third.reset()
    gpupool.empty_cache()
    assert gpupool.memory_stats().reserved_bytes == 0


def test_a_failed_capture_releases_everything():
    pool, stream = gpupool.MemPool(), gpupool.Stream()
    capture = pool.capture(stream)
    capture.__enter__()
    gpupool.empty(4 * MIB, stream)
    capture.__exit__(RuntimeError, RuntimeError(), None)
    assert (pool.use_count(), pool.trim(), pool.stats().reserved_bytes) == (1, 4 * MIB, 0)


def test_a_capture_keeps_its_pool():
    capture = gpupool.MemPool().capture(gpupool.Stream())
    with capture as memory:
        assert gpupool.empty(MIB).pool_id == memory.pool_id


def test_a_capture_whose_generator_another_thread_ends_routes_no_more():
    pool, side, stream = gpupool.MemPool(), gpupool.MemPool(), gpupool.Stream()

    def captured():
        with pool.capture(stream):
            with side:
                gpupool.empty(MIB, stream).free()
            yield

    generator = captured()
    next(generator)
    assert (pool.use_count(), side.use_count(), gpupool.empty(MIB, stream).pool_id) == (2, 2, pool.id)
    with other_thread() as run:
        with pytest.raises(gpupool.InvalidValue, match="left on a thread that did not enter it"):
            run(generator.close)
        del generator
        gc.collect()
    assert (pool.use_count(), side.use_count(), gpupool.empty(MIB, stream).pool_id) == (1, 1, NONE)


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


def test_functions_that_feed_from_a_closed_pool_give_nothing_and_serve_no_other():
    pool = gpupool.MemPool()
    functions = gpupool.c_api.feed(pool)
    pool.close()
    others = [gpupool.MemPool() for _ in range(3)]
    assert functions[0] not in [gpupool.c_api.feed(other)[0] for other in others]
    assert c_functions(*functions)[0](MIB, 0, None) is None


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
