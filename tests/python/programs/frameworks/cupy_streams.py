"""CuPy's arrays over gpupool on CuPy's own streams: which stream each is on, and how long that lives."""

import gc
import sys
import threading
import warnings
from types import SimpleNamespace

import gpupool
from cupy_on_host import cupy
from errors import assert_says, raised
from forking import assert_refused, in_child
from gpupool import _native

MIB = 1 << 20

gpupool.cupy.enable()


def stream_of(array):
    memory = array.data.mem
    return (memory if hasattr(memory, "stream") else memory._owner).stream


def is_there(address):
    """Return whether the stream at an address lives."""
    try:
        _native.host_complete(address, _native.host_submit(address))
    except gpupool.LibraryError:
        return False
    return True


def live():
    return gpupool.memory_stats().live_blocks


def is_allocated_on_the_current_one():
    allocator = gpupool.cupy._allocate().__self__
    assert allocator.makes_memory, "CuPy's objects are not as they are known"
    assert allocator.asks_directly, "CuPy's function for the current stream is not as it is known"
    own = cupy.cuda.Stream(non_blocking=True)
    assert stream_of(cupy.empty(10)) == 0, "the default stream is not current at first"
    with own:
        assert stream_of(cupy.empty(10)) == own.ptr, "a stream's block is not followed"
        assert gpupool.empty(10).stream == own.ptr, "gpupool's calls do not follow it"
        with cupy.cuda.Stream.null:
            assert stream_of(cupy.empty(10)) == 0, "the block of the default stream is not followed"
        with cupy.cuda.Stream() as inner:
            assert stream_of(cupy.empty(10)) == inner.ptr, "the inner block is not followed"
        found = []
        thread = threading.Thread(target=lambda: found.append(stream_of(cupy.empty(10))))
        thread.start()
        thread.join()
        assert found == [0], f"another thread's arrays are on {found}"
    assert stream_of(cupy.empty(10)) == 0, "the stream is current after its block"


def of_another_device_gives_memory_there():
    with gpupool.Stream(1):
        own = cupy.cuda.Stream()
        own.use()
        array = cupy.empty(10)
    assert array.data.device_id == array.data.mem.device_id == 1, f"the memory is of device {array.data.device_id}"
    assert stream_of(array) == own.ptr, "it is on another stream"
    assert stream_of(cupy.empty(10)) == 0, "device 0 has the stream of device 1"
    followed = _native.host_stream_of(gpupool.simulated.handle(device=1))
    assert followed == own.ptr, "gpupool's calls for device 1 do not follow its stream"
    followed = _native.host_stream_of(gpupool.simulated.handle())
    assert followed == 0, "gpupool's calls for device 0 follow the stream of device 1"


def lives_as_long_as_its_arrays():
    own = cupy.cuda.Stream()
    address = own.ptr
    with own:
        arrays = [cupy.empty(20 * MIB, "u1"), cupy.empty(10)]
    cupy.empty(0)
    del own
    view = arrays[0][5:]
    del arrays[0]
    assert is_there(address), "a stream is gone before its arrays"
    del view
    assert is_there(address), "a stream is gone before its last array"
    arrays.clear()
    assert not is_there(address), "the arrays are gone, and the stream lives"
    assert live() == 0, "a block is left"


def serves_others_as_soon_as_its_arrays_die():
    # A request passes over memory of other streams, and from then on what is freed is marked.
    for _ in range(2):
        with cupy.cuda.Stream():
            cupy.empty(4 * MIB, "u1")
    for _ in range(20):
        with cupy.cuda.Stream():
            cupy.empty(20 * MIB, "u1")
    reserved = gpupool.memory_stats().reserved_bytes
    assert reserved < 3 * 24 * MIB, f"{reserved} bytes are reserved: streams that are gone have kept what is theirs"


def of_other_code_is_not_kept_and_not_touched():
    class Foreign:
        def __init__(self):
            self.ptr = _native.host_create_stream(0)

    foreign = Foreign()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        external = cupy.cuda.ExternalStream(foreign.ptr)
    with external:
        array = cupy.empty(20 * MIB, "u1")
    assert stream_of(array) == foreign.ptr, "an ExternalStream is not followed"
    references = sys.getrefcount(external)
    with external:
        more = cupy.empty(10)
    assert sys.getrefcount(external) == references, "an array keeps an ExternalStream"
    _native.host_destroy_stream(foreign.ptr)
    # Its driver calls would fail, and a driver's crash.
    del array, more
    assert live() == 0, "a block is left"


def that_cannot_be_asked_for_is_an_error():
    pointer = _native.CupyAllocator(cupy.cuda, print).malloc(10)
    assert pointer.mem.size == 10, f"{pointer.mem.size} bytes were allocated"

    def broken():
        raise RuntimeError("no stream today")

    streams = SimpleNamespace(__pyx_capi__={"get_current_stream": "another kind of thing"})
    names = ["Stream", "UnownedMemory", "MemoryPointer", "BaseMemory"]
    cuda = SimpleNamespace(
        stream=streams, get_current_stream=broken, **{name: getattr(cupy.cuda, name) for name in names}
    )
    assert not _native.CupyAllocator(cuda, print).asks_directly, "another kind of thing is called"
    failures = []

    def failed(nbytes, error):
        failures.append((nbytes, error))
        raise error

    error = raised(RuntimeError, _native.CupyAllocator(cuda, failed).malloc, 10)
    assert_says(error, "no stream today")
    assert failures == [(10, error)], f"the request failed with {failures}"


def of_a_cupy_whose_objects_are_others():
    """By the public calls alone, as with a CuPy that is built in another way."""
    names = ["Stream", "stream", "UnownedMemory", "MemoryPointer", "get_current_stream"]
    parts = {name: getattr(cupy.cuda, name) for name in names}

    class Another(cupy.cuda.BaseMemory):
        pass

    for base in (None, object, Another, cupy.cuda.UnownedMemory):
        allocator = _native.CupyAllocator(SimpleNamespace(**parts, BaseMemory=base), print)
        assert not allocator.makes_memory, f"objects below {base} were made"
        cupy.cuda.set_allocator(allocator.malloc)
        lives_as_long_as_its_arrays()
        with cupy.cuda.Stream() as own:
            array = cupy.empty(1000, "u1")
        assert type(array.data.mem) is cupy.cuda.UnownedMemory, f"the memory is a {type(array.data.mem)}"
        told = array.data.ptr, array.data.mem.size, array.data.device_id, stream_of(array)
        assert told == (array.data.mem._owner.ptr, 1000, 0, own.ptr), f"the array tells {told}"
        del array
        assert live() == 0, "a block is left"


def of_a_forked_child_is_refused():
    def fork(memory):
        in_child(lambda: assert_refused(lambda: cupy.empty(10), lambda: memory.stream, lambda: memory.pool_id))

    array = cupy.empty(10)
    fork(array.data.mem)
    del array
    assert live() == 0, "the parent's block is left"


def of_memory_that_is_asked_what_it_is():
    pool = gpupool.MemPool()
    with gpupool.cupy.using(pool):
        array = cupy.empty(1000, "u1")
    memory = array.data.mem
    assert isinstance(memory, cupy.cuda.BaseMemory), f"the memory is a {type(memory)}"
    told = memory.ptr, memory.size, memory.device_id, memory.pool_id, int(memory), array.data.mem.ptr
    assert told == (array.data.ptr, 1000, 0, pool.id, array.data.ptr, array.data.ptr), f"it tells {told}"
    kind = type(memory)
    assert_says(raised(TypeError, kind), "cannot create")
    # Without a GIL each thread counts references to a class by itself until a collection adds them up.
    gc.collect()
    references = sys.getrefcount(kind)
    many = [cupy.cuda.alloc(size) for size in range(1000)]
    del many
    gc.collect()
    assert sys.getrefcount(kind) == references, "objects that are gone have left references to their class"
    pointer = array.data + 10
    del array, memory, kind
    assert (pointer.mem.size, live()) == (1000, 1), "a pointer does not keep its memory"
    del pointer
    for wrong in ("10", None, 1.5):
        raised(TypeError, cupy.cuda.alloc, wrong)
    raised(gpupool.InvalidValue, cupy.cuda.alloc, -1)
    assert cupy.cuda.alloc(0).ptr == 0, "0 bytes have an address"
    assert live() == 0, "a block is left"


def is_alive_at_the_end():
    """Arrays of all kinds live when the interpreter ends, and a thread allocates until then."""
    streams = [cupy.cuda.Stream() for _ in range(3)]
    for stream in streams:
        with stream:
            ALIVE.extend(cupy.empty(1000 * turn) for turn in range(10))
    cycle = [ALIVE[-1]]
    cycle.append(cycle)
    running = threading.Event()

    def work():
        while True:
            cupy.empty(1000)
            running.set()

    threading.Thread(target=work, daemon=True).start()
    assert running.wait(60), "the thread allocates nothing"


ALIVE = []

if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
