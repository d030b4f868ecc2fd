"""Handles that take their device memory from a MemPool, on a double of cuDSS and of the driver."""

import pytest
from abi import LIBRARIES, build_library
from machines import Machine

PRELUDE = """
pool, at = gpupool.cudss, ctypes.c_void_p
library = ctypes.CDLL(pool.path)
MIB = 1 << 20

class Handler(ctypes.Structure):
    _fields_ = [
        ("context", at),
        ("allocate", ctypes.CFUNCTYPE(ctypes.c_int, at, ctypes.POINTER(at), ctypes.c_size_t, at)),
        ("free", ctypes.CFUNCTYPE(ctypes.c_int, at, at, ctypes.c_size_t, at)),
        ("name", ctypes.c_char * 64),
    ]

def allocate(handle, mib=1):
    place = at()
    status = library.double_allocate(at(int(handle)), ctypes.byref(place), ctypes.c_size_t(mib * MIB))
    assert (status == 0) == (place.value is not None)
    return place.value

def free(handle, address, mib=1):
    return library.double_free(at(int(handle)), at(address), ctypes.c_size_t(mib * MIB))

def handler_of(handle):
    handler = Handler()
    status = library.cudssGetDeviceMemHandler(at(int(handle)), ctypes.byref(handler))
    return handler if status == 0 else None

def name_of(handle):
    handler = handler_of(handle)
    return handler and handler.name.decode()

def live(mem_pool):
    return mem_pool.stats().live_bytes // MIB

def used():
    return driver.double_used(0) // MIB

stream, other = gpupool.Stream(0), gpupool.Stream(0)
scope = gpupool.stream(stream)
scope.__enter__()
"""


@pytest.fixture
def machine(tmp_path, run_bare_python):
    machine = Machine("cuda", tmp_path, run_bare_python)
    machine.build()
    machine.install("cudss")
    return machine


@pytest.fixture(params=["0", "1"], ids=["plain", "virtual"])
def run(machine, request):
    """Run code on that machine, without and with virtual memory."""
    return lambda code, **variables: machine.run(PRELUDE + code, FAKE_VMM=request.param, **variables)


def test_a_library_s_memory_is_counted_and_used_again(run):
    run(
        """
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
handle = pool.handle(stream)
assert name_of(handle) == "gpupool.MemPool"
before = gpupool.memory_stats().live_bytes
first = allocate(handle, 3)
assert (live(mine), gpupool.memory_stats().live_bytes - before) == (3, 3 * MIB)
assert free(handle, first, 3) == 0 and live(mine) == 0
assert allocate(handle, 3) == first and mine.stats().allocations == 2
assert free(handle, first, 3) == 0
assert mine.trim() > 0 and mine.stats().reserved_bytes == 0
"""
    )


def test_handles_of_threads_leases_and_new_ones_take_it(run):
    run(
        """
old = pool.handle(stream)
waiting, go = threading.Barrier(2), threading.Barrier(2)

def hold():
    handle = pool.handle(other)
    waiting.wait()
    go.wait()
    own = name_of(handle), pool.handle(other) == handle, name_of(handle)
    address = allocate(handle)
    return *own, free(handle, address)

results = []
thread = threading.Thread(target=lambda: results.append(hold()))
thread.start()
waiting.wait()
with pool.lease(stream):
    pass
idle, lent = pool.lease(stream), pool.lease(other)
idle.release()
assert [name_of(handle) for handle in (old, lent)] == [None, None]

mine = gpupool.MemPool()
pool.set_mem_pool(mine)
# Handles in use go on as they are until they are asked for.
assert [name_of(handle) for handle in (old, lent)] == [None, None]
go.wait()
thread.join()
# The handle is back once the thread is gone from the system too.
while os.path.exists(f"/proc/self/task/{thread.native_id}"):
    os.sched_yield()
assert results == [(None, True, "gpupool.MemPool", 0)]
assert pool.handle(stream) == old and name_of(old) == "gpupool.MemPool"
lent.release()
created = pool.stats().created
with pool.lease(stream) as near, pool.lease(other) as far, pool.lease(other) as third, pool.lease(other) as new:
    assert pool.stats().created == created + 1
    assert [name_of(handle) for handle in (near, far, third, new)] == ["gpupool.MemPool"] * 4
pool.trim()
pool.warm(1, 0)
with pool.lease(stream) as warm:
    assert pool.stats().created == created + 2 and name_of(warm) == "gpupool.MemPool"
# Of another device.
assert name_of(pool.handle(device=1)) is None
"""
    )


def test_what_an_owner_sets_is_gone_at_the_next(run):
    run(
        """
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
for owns in (lambda: pool.lease(stream), lambda: pool.lease(other)):
    with owns() as handle:
        assert name_of(handle) == "gpupool.MemPool"
        library.cudssSetDeviceMemHandler(at(int(handle)), None)
        library.cudssSetDeviceMemHandler(at(int(handle)), at(gpupool.c_api.handler))
        assert name_of(handle) == "gpupool"
with pool.lease(stream) as handle:
    assert name_of(handle) == "gpupool.MemPool"
"""
    )


def test_what_an_owner_has_set_is_taken_off_first(run):
    run(
        """
handle = pool.handle(stream)
library.cudssSetDeviceMemHandler(at(handle), at(gpupool.c_api.handler))
address = allocate(handle)
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
assert pool.handle(stream) == handle and name_of(handle) == "gpupool.MemPool"
assert free(handle, address) == 0
"""
    )


def test_a_handle_that_has_memory_of_a_pool_can_give_it_back_ever_after(run):
    run(
        """
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
with pool.lease(stream) as handle:
    told, address = int(handle), allocate(handle)
pool.set_mem_pool(None)
for turn in range(2):
    with pool.lease(stream) as first, pool.lease(other) as second:
        # The second is as if nothing had been.
        names = {int(lease): name_of(lease) for lease in (first, second)}
        assert len(names) == 2 and names.pop(told) == "gpupool.MemPool" and list(names.values()) == [None]
        assert free(told, allocate(told)) == 0 and live(mine) == 1
    pool.set_mem_pool(mine)
    pool.set_mem_pool(None)
with pool.lease(stream), pool.lease(other):
    assert free(told, address) == 0 and live(mine) == 0
"""
    )


def test_without_it_the_next_owner_gets_the_library_s_own(run):
    run(
        """
with pool.lease(stream) as handle:
    library.cudssSetDeviceMemHandler(at(int(handle)), at(gpupool.c_api.handler))
with pool.lease(stream) as handle:
    assert name_of(handle) is None
pool.set_mem_pool(None)
with pool.lease(stream) as handle:
    assert name_of(handle) is None
"""
    )


def test_memory_goes_back_to_where_it_came_from_whenever_it_changes(run):
    run(
        """
handle = pool.handle(stream)
start = used()
plain = [allocate(handle) for _ in range(3)]
assert used() == start + 3

one, two = gpupool.MemPool(), gpupool.MemPool()
held = []
for mem_pool in (one, two, one, None, two, None):
    pool.set_mem_pool(mem_pool)
    assert pool.handle(stream) == handle
    held.append(allocate(handle))
assert (live(one), live(two)) == (2, 2) and None not in held
# The driver's own memory, some from before gpupool was there and some from after.
assert [free(handle, address) for address in plain] == [0, 0, 0]
assert [free(handle, address) for address in held] == [0] * 6
assert (live(one), live(two)) == (0, 0)
one.trim(), two.trim()
assert used() == start
"""
    )


def test_an_object_that_keeps_the_handler_it_was_made_with_can_free_by_it_for_ever(run):
    run(
        """
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
with pool.lease(stream) as handle:
    handler = handler_of(handle)
    place = at()
    assert handler.allocate(handler.context, ctypes.byref(place), 5 * MIB, at(stream.ptr)) == 0
pool.set_mem_pool(None)
with pool.lease(stream) as handle:
    pass
pool.trim()
assert live(mine) == 5
# Nobody else has the pool; its live memory stays.
del mine
assert gpupool.memory_stats().live_bytes == 5 * MIB
assert handler.free(handler.context, place, 5 * MIB, at(other.ptr)) == 0
gpupool.empty_cache()
assert gpupool.memory_stats().reserved_bytes == 0 and gpupool.memory_stats().pools == 1
"""
    )


def test_a_pool_is_kept_as_long_as_a_library_takes_from_it(run):
    run(
        """
mine = gpupool.MemPool()
number, token = mine.id, mine.token()
pool.set_mem_pool(token)
assert mine.use_count() == 2
pool.set_mem_pool(mine)
assert mine.use_count() == 2
del mine
handle = pool.handle(stream)
address = allocate(handle)
assert gpupool.pool_use_count(0, number) == 1
pool.set_mem_pool(None)
# The last use is over: what is alive stays, what is freed goes.
assert gpupool.memory_stats().live_bytes == MIB
assert free(handle, address) == 0
gpupool.empty_cache()
assert gpupool.memory_stats().reserved_bytes == 0
try:
    pool.set_mem_pool(token)
except gpupool.InvalidValue as error:
    assert "was dropped" in str(error)
else:
    raise AssertionError("a pool that is gone")
"""
    )


def test_a_limit_or_a_full_device_fails_the_call_and_nothing_else(run):
    run(
        """
mine = gpupool.MemPool(limit=8 * MIB)
pool.set_mem_pool(mine)
handle = pool.handle(stream)
held = allocate(handle, 6)
assert allocate(handle, 6) is None and live(mine) == 6
assert free(handle, held, 6) == 0
held = allocate(handle, 6)
assert held is not None
assert free(handle, held, 6) == 0
mine.limit = None
assert allocate(handle, 1 << 20) is None

# What others of the process do not use helps.
buffer = gpupool.empty(600 * MIB)
buffer.free()
assert allocate(handle, 700) is not None
# Without a pool: what the driver says.
pool.set_mem_pool(None)
assert allocate(handle, 1 << 20) is None
""",
        FAKE_MEMORY_MIB="1024",
    )


def test_it_is_neither_the_thread_s_scope_nor_changed_by_it(run):
    run(
        """
mine, scoped = gpupool.MemPool(), gpupool.MemPool()
pool.set_mem_pool(mine)
handle = pool.handle(stream)
with gpupool.use_mem_pool(scoped):
    address = allocate(handle)
    buffer = gpupool.empty(MIB)
assert buffer.pool_id == scoped.id and (live(mine), live(scoped)) == (1, 1)
assert gpupool.empty(MIB).pool_id == (0, 0)
free(handle, address)
assert mine.use_count() == 2
"""
    )


def test_memory_is_freed_in_the_order_of_the_stream_that_frees(run):
    run(
        """
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
handle = pool.handle(stream)
address = allocate(handle)
assert free(handle, address) == 0 and calls("cuEventRecord") == 0
# On another stream than the memory's own, it waits for that one's work.
assert allocate(handle) == address and pool.handle(other) == handle
assert free(handle, address) == 0 and calls("cuEventRecord") == 1 and mine.stats().waiting_blocks == 1
# The legacy default stream is the handle's device's, whatever device is current.
with gpupool.stream(gpupool.Stream(1)):
    assert library.cudssSetStream(at(handle), None) == 0
    address = allocate(handle)
    assert address is not None and live(mine) == 2
    assert free(handle, address) == 0 and live(mine) == 1
"""
    )


def test_threads_take_and_give_at_once_while_it_changes(run):
    run(
        """
pools = [gpupool.MemPool() for _ in range(3)]
start, stop, failed = threading.Barrier(5), threading.Event(), []

def work(number):
    left = []
    for step in range(200):
        handle = pool.handle()
        left.append(allocate(handle))
        assert left[-1] is not None
        if len(left) > 5:
            assert free(handle, left.pop(step % 5)) == 0
        if step % 10 == 0:
            with pool.lease() as lease:
                assert free(lease, allocate(lease)) == 0
    for address in left:
        assert free(handle, address) == 0

def run(number):
    start.wait()
    try:
        # The double takes plain memory of the current device.
        with gpupool.stream(gpupool.Stream(0)):
            work(number)
    except BaseException as error:
        failed.append(error)

def change():
    start.wait()
    while not stop.is_set():
        for mem_pool in (*pools, None):
            pool.set_mem_pool(mem_pool)

threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
changing = threading.Thread(target=change)
for thread in (*threads, changing):
    thread.start()
for thread in threads:
    thread.join()
stop.set()
changing.join()
assert not failed, failed
assert gpupool.memory_stats().live_blocks - gpupool.memory_stats().waiting_blocks == 0
pool.set_mem_pool(None)
assert [mem_pool.use_count() for mem_pool in pools] == [1, 1, 1]
"""
    )


def test_threads_that_end_leave_their_memory_and_their_handles(run):
    run(
        """
mine = gpupool.MemPool()
pool.set_mem_pool(mine)

def take():
    handle = pool.handle(stream)
    return handle, allocate(handle)

handle, address = in_thread(take)
assert live(mine) == 1 and pool.stats().idle == 1
with pool.lease(stream) as lease:
    assert int(lease) == handle and free(lease, address) == 0
assert pool.trim() == 1 and live(mine) == 0
"""
    )


@pytest.mark.parametrize("after", ["None", "mine"])
def test_a_handle_that_is_destroyed_gives_its_own_back_though_its_stream_is_gone(run, after):
    run(
        f"""
def keep(handle):
    assert library.double_keep(at(int(handle)), ctypes.c_size_t(MIB)) == 0

mine = gpupool.MemPool()
start, last = used(), gpupool.Stream(0)
with pool.lease(stream) as handle:
    plain = int(handle)
    keep(handle)
pool.set_mem_pool(mine)
with pool.lease(stream) as first, pool.lease(stream) as second:
    assert plain in (int(first), int(second)) and live(mine) == 0
    for handle in (first, second):
        if int(handle) != plain:
            keep(handle)
        assert library.cudssSetStream(at(int(handle)), at(last.ptr)) == 0
assert live(mine) == 1
del last
pool.set_mem_pool({after})
assert pool.trim() == 2
gpupool.empty_cache()
assert live(mine) == 0 and used() == start
"""
    )


def test_a_handle_that_is_used_as_the_process_ends_crashes_nothing(machine):
    code = """
import atexit
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
handle = pool.handle(stream)
address = allocate(handle)
atexit.register(lambda: print(free(handle, address), allocate(handle) is not None))
"""
    assert machine.run(PRELUDE + code, FAKE_VMM="1") == "0 True\n"


def test_a_forked_child_gets_a_status(machine):
    code = """
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
handle = pool.handle(stream)
address = allocate(handle)
sys.stdout.flush()
child = os.fork()
if child == 0:
    os._exit(0 if free(handle, address) != 0 and allocate(handle) is None else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert machine.run(PRELUDE + code, FAKE_VMM="1") == "0\n"


def test_a_refusal_names_the_function_and_loses_no_handle(machine):
    machine.run(
        PRELUDE
        + """
mine = gpupool.MemPool()
pool.set_mem_pool(mine)
fail("cudssSetDeviceMemHandler=4")
for ask in (pool.handle, pool.lease, pool.handle):
    error = error_of(ask, stream)
    assert "cudssSetDeviceMemHandler" in error and "CUDSS_STATUS_NOT_SUPPORTED" in error, error
fail()
assert name_of(pool.handle(stream)) == "gpupool.MemPool"
assert pool.stats().failures == 3 and pool.stats().created == 1
"""
    )


def test_what_cannot_be_told_says_so(machine):
    build_library("cudss", machine.site_packages / LIBRARIES["cudss"].file, without="SET_MEMORY")
    machine.install("cusparse")
    machine.run(
        """
mine, far = gpupool.MemPool(), gpupool.MemPool(device=1)
for pool in (gpupool.cudss, gpupool.cusparse):
    assert f"{pool.name} cannot be told" in error_of(pool.set_mem_pool, mine)
    pool.set_mem_pool(None)
    assert pool.handle(device=0) != 0
assert "libcublas" in error_of(gpupool.cublas.set_mem_pool, mine)
own = gpupool.HandlePool("own", create=lambda: 1, destroy=lambda handle: None)
assert "own cannot be told" in error_of(own.set_mem_pool, mine)
""",
        FAKE_VMM="1",
    )


def test_arguments_that_cannot_be_right(machine):
    machine.run(
        PRELUDE
        + """
mine = gpupool.MemPool(device=1)
assert "memory of device 1, which handles on device 0 cannot take" in error_of(pool.set_mem_pool, mine, device=0)
assert "takes a MemPool or its token(), not 3" in error_of(pool.set_mem_pool, 3)
assert "InvalidValue" in error_of(pool.set_mem_pool, None, device=7)
pool.set_mem_pool(mine, device=1)
assert mine.use_count() == 2
pool.set_mem_pool(None, device=0)
assert mine.use_count() == 2
pool.set_mem_pool(None)
assert mine.use_count() == 1
""",
        FAKE_VMM="1",
    )
