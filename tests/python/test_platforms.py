"""What every platform and library gives its users, over ABI doubles: the true bindings, with no GPU.

The doubles abort at a call that no program may make: a dead handle, a stream of another device, the wrong current
device, memory that is not there. So whatever a test looks at, it also shows that no such call was made.
"""

import pytest
from abi import CUDA_LIBRARIES, LIBRARIES
from machines import Machine

PLATFORMS = ["cuda", "hip"]
WITH_STREAM = [name for name, library in LIBRARIES.items() if "SET_STREAM" in library.symbols]
# Destroying a handle waits for the device.
SYNCHRONIZING = ["cublas", "cusolver", "cudss", "cublaslt", "miopen"]


def platform_of(name):
    return "cuda" if name in CUDA_LIBRARIES else "hip"


@pytest.fixture
def machine(request, tmp_path, run_bare_python):
    """A machine of the platform or with the library that the test is parametrised with."""
    name = request.param
    machine = Machine(platform_of(name) if name in LIBRARIES else name, tmp_path, run_bare_python)
    machine.build()
    if name in LIBRARIES:
        machine.install(name)
    return machine


def with_library(name):
    """The names that the code of a test uses."""
    library = LIBRARIES[name]
    return f"""
pool = gpupool.{name}
library = ctypes.CDLL(pool.path)
library.double_stream_of.argtypes = [ctypes.c_void_p]
library.double_stream_of.restype = ctypes.c_void_p
library.double_is_destroyed.argtypes = [ctypes.c_void_p]
create, destroy, set_stream = {library.create!r}, {library.destroy!r}, {library.symbols.get("SET_STREAM", "none")!r}

def stream_of(handle):
    return library.double_stream_of(handle) or 0

def leased(count):
    leases = [pool.lease(device=1) for _ in range(count)]
    return leases, [int(lease) for lease in leases]

def destroyed(handles):
    return [library.double_is_destroyed(handle) for handle in handles]
"""


def parametrize(names):
    return pytest.mark.parametrize(("machine", "name"), [(name, name) for name in names], indirect=["machine"])


@parametrize(LIBRARIES)
def test_threads_have_a_handle_each_and_hand_it_over(machine, name):
    code = f"""{with_library(name)}
stream = gpupool.Stream(0)
mine = pool.handle(stream)
theirs = in_thread(pool.handle, stream)
print(mine != theirs, in_thread(pool.handle, stream) == theirs, pool.handle(stream) == mine)
print(pool.stats().created, pool.stats().hand_overs, calls(create, library))
print(pool.trim(), calls(destroy, library), pool.handle(stream) == mine, gpupool.runtime(), pool.version)
"""
    assert machine.run(code) == f"True True True\n2 1 2\n1 1 True {machine.platform} (1, 2, 3)\n"


@parametrize(LIBRARIES)
def test_each_device_has_its_handles(machine, name):
    code = f"""{with_library(name)}
zero, one = pool.handle(gpupool.Stream(0)), pool.handle(gpupool.Stream(1))
print(zero != one, pool.handle(device=0) == zero, pool.handle(device=1) == one, gpupool.current_device())
with gpupool.stream(gpupool.Stream(1)):
    print(gpupool.current_device(), pool.handle() == one)
print(gpupool.current_device(), pool.warm(2, device=1), pool.trim(1), gpupool.current_device())
"""
    assert machine.run(code) == "True True True 0\n1 True\n0 2 2 0\n"


@parametrize(WITH_STREAM)
def test_the_stream_is_set_on_every_checkout(machine, name):
    code = f"""{with_library(name)}
first, second, other = gpupool.Stream(0), gpupool.Stream(0), gpupool.Stream(1)
for stream in (first, second, first):
    print(stream_of(pool.handle(stream)) == stream.ptr, end=" ")
handle = pool.handle(first)
with gpupool.stream(first):
    getattr(library, set_stream)(ctypes.c_void_p(handle), ctypes.c_void_p(second.ptr))
print(stream_of(pool.handle(first)) == first.ptr, stream_of(pool.handle(other)) == other.ptr)
print(*[stream_of(pool.handle(default, device=1)) for default in (2, 1, 0)], stream_of(pool.handle(device=1)))
print(in_thread(lambda: stream_of(pool.handle(second)) == second.ptr))
"""
    # HIP has known the legacy default stream as 1 since 6.2 only, and always as 0.
    legacy = 1 if machine.platform == "cuda" else 0
    assert machine.run(code) == f"True True True True True\n2 {legacy} 0 0\nTrue\n"


@parametrize(LIBRARIES)
def test_a_process_that_ends_destroys_nothing(machine, name):
    code = f"""{with_library(name)}
handle = pool.handle(gpupool.Stream(1))
is_there, end = threading.Event(), threading.Event()
def hold():
    pool.handle()
    is_there.set()
    end.wait()
threading.Thread(target=hold, daemon=True).start()
is_there.wait()
in_thread(pool.handle)
sys.exit(3)
"""
    done = machine.start(code, FAKE_REPORT="1")
    assert (done.returncode, done.stdout) == (3, "")
    counts = dict(line.split() for line in done.stderr.splitlines())
    assert counts[LIBRARIES[name].create] == "3"
    assert LIBRARIES[name].destroy not in counts


@parametrize(LIBRARIES)
def test_every_status_of_a_creation_is_told(machine, name):
    library = LIBRARIES[name]
    code = f"""{with_library(name)}
for code in {list(library.statuses)}:
    fail(f"{{create}}={{code}}")
    print(error_of(pool.handle, device=1))
fail()
print(pool.handle(device=1) != 0, gpupool.current_device(), pool.stats().failures)
"""
    *errors, last = machine.run(code).splitlines()
    assert last == f"True 0 {len(library.statuses)}"
    path = machine.site_packages / library.file
    for (number, status), error in zip(library.statuses.items(), errors, strict=True):
        told = f"{name}: {library.create} failed with {status} ({number}) on device 1, library {path}"
        if number == library.out_of_memory:
            assert error.startswith(f"OutOfMemory out of memory on device 1: {told}")
        else:
            assert told in error


@parametrize(LIBRARIES)
def test_a_creation_without_memory_is_tried_again_once_idle_handles_are_gone(machine, name):
    code = f"""{with_library(name)}
in_thread(pool.handle)
fail(create + "={LIBRARIES[name].out_of_memory}:2")
print(pool.warm(2), pool.stats().destroyed, calls(destroy, library))
"""
    assert machine.run(code) == "1 1 1\n"


@parametrize(LIBRARIES)
def test_a_discarded_handle_is_nobodys_again_and_destroyed_once(machine, name):
    code = f"""{with_library(name)}
leases, gone = leased(3)
for lease in leases:
    lease.discard()
    lease.discard()
print(pool.stats(1).retired, pool.stats(1).idle, pool.stats(1).leased, calls(destroy, library))
leases, others = leased(2)
for lease in leases:
    lease.release()
others += [in_thread(pool.handle, None, 1) for _ in range(4)]
others.append(pool.handle(device=1))
print(set(gone) & set(others), pool.stats(1).created, pool.stats(1).retired, destroyed(gone))
print(pool.trim(0), pool.trim(1), pool.trim(1), calls(destroy, library), destroyed(gone), destroyed(others[-1:]))
print(pool.stats(1).retired, pool.stats(1).destroyed, pool.stats(1).held)
"""
    # The threads handed the two others on, and the last one keeps its own: one is idle.
    assert machine.run(code) == "3 0 0 0\nset() 5 3 [0, 0, 0]\n0 4 0 4 [1, 1, 1] [0]\n0 4 1\n"


@parametrize(LIBRARIES)
def test_a_handle_that_cannot_be_destroyed_is_told_and_the_rest_are_destroyed(machine, name):
    library = LIBRARIES[name]
    number, status = next(iter(library.statuses.items()))
    code = f"""{with_library(name)}
left = []
for discarded in (4, 3, 0):
    leases, handles = leased(4)
    for lease in leases[:discarded]:
        lease.discard()
    for lease in leases[discarded:]:
        lease.release()
    before = calls(destroy, library)
    fail(f"{{destroy}}={number}:{{before + 1}}")
    print(error_of(pool.trim))
    fail()
    left += [handle for handle in handles if not library.double_is_destroyed(handle)]
    stats = pool.stats(1)
    # It is not tried again.
    print(pool.trim(), calls(destroy, library) - before, sum(destroyed(handles)), stats.retired, stats.idle)
print(stats.failures, stats.created, len(left), set(left) & set(leased(4)[1]))
"""
    *lines, last = machine.run(code).splitlines()
    told = f"LibraryError {name}: {library.destroy} failed with {status} ({number}) on device 1, library "
    assert all(line.startswith(told) for line in lines[::2])
    assert lines[1::2] == ["0 4 3 0 0"] * 3
    assert last == "3 12 3 set()"


@parametrize(WITH_STREAM)
def test_a_stream_that_is_refused_is_told(machine, name):
    library = LIBRARIES[name]
    code = f"""{with_library(name)}
stream = gpupool.Stream(0)
fail(set_stream + "=3")
print(error_of(pool.handle, stream))
fail()
print(stream_of(pool.handle(stream)) == stream.ptr)
"""
    error, last = machine.run(code).splitlines()
    assert f"{name}: {library.symbols['SET_STREAM']} failed with " in error
    assert f"(3) on device 0, library {machine.site_packages / library.file}" in error
    assert last == "True"


@parametrize(LIBRARIES)
def test_a_capture_survives_a_first_handle(machine, name):
    code = f"""{with_library(name)}
stream = gpupool.Stream()
in_thread(pool.handle)
driver.double_set_capture(ctypes.c_void_p(stream.ptr), 1)
pool.warm(1)
pool.handle(stream)
gpupool.empty(1 << 20, stream)
print(driver.double_capture(ctypes.c_void_p(stream.ptr)))
in_thread(pool.handle)
print(pool.trim())
driver.double_set_capture(ctypes.c_void_p(stream.ptr), 0)
print(pool.trim())
"""
    trimmed = "0\n1\n" if name in SYNCHRONIZING else "1\n0\n"
    assert machine.run(code) == "1\n" + trimmed


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_a_stream_of_another_device_is_refused(machine):
    code = """
stream = gpupool.Stream(1)
pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None)
print(error_of(pool.handle, stream, device=0))
print(error_of(pool.handle, device=2))
print(pool.handle(stream.ptr), pool.stats(1).created)
"""
    first, second, last = machine.run(code).splitlines()
    assert "belongs to device 1, not to device 0" in first
    assert second == "InvalidValue there is no device 2: this process sees 2, numbered from 0"
    assert last == "1 1"


MEMORY = pytest.mark.parametrize("virtual", ["0", "1"], ids=["segments", "virtual-memory"])


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_memory_can_be_written_and_comes_back(machine, virtual):
    code = """
def use(device):
    stream = gpupool.Stream(device)
    buffers = [gpupool.empty(nbytes, stream) for nbytes in (1, 512, 70_000, 3 << 20, 20 << 20)]
    for number, buffer in enumerate(buffers):
        ctypes.memset(buffer.ptr, number, buffer.nbytes)
    same = [ctypes.string_at(buffer.ptr, buffer.nbytes) == bytes([number]) * buffer.nbytes
            for number, buffer in enumerate(buffers)]
    return all(same)
print(use(0), use(1), in_thread(use, 1), gpupool.current_device())
print(driver.double_used(0) > 23 << 20, gpupool.memory_stats(0).reserved_bytes == driver.double_used(0))
gpupool.empty_cache()
print(driver.double_used(0), driver.double_used(1), gpupool.memory_stats().reserved_bytes)
"""
    assert machine.run(code, FAKE_VMM=virtual) == "True True True 0\nTrue True\n0 0 0\n"


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_pools_keep_their_memory_apart(machine, virtual):
    code = """
pool = gpupool.MemPool(limit=64 << 20)
with gpupool.use_mem_pool(pool):
    inside = gpupool.empty(5 << 20)
    with gpupool.use_mem_pool(gpupool.MemPool()) as inner:
        innermost = gpupool.empty(1 << 20)
outside = gpupool.empty(1 << 20)
print(inside.pool_id == pool.id, innermost.pool_id == inner.id, outside.pool_id, pool.use_count())
with gpupool.use_mem_pool(pool):
    print(error_of(gpupool.empty, 100 << 20).split(":")[0])
inside.free()
print(pool.trim() >= 5 << 20, pool.stats().reserved_bytes, outside.nbytes)
ctypes.memset(innermost.ptr, 1, innermost.nbytes)
del pool, inner, innermost, outside
gpupool.empty_cache()
print(driver.double_used(0))
"""
    expected = "True True (0, 0) 1\nOutOfMemory out of memory on device 0\nTrue 0 1048576\n0\n"
    assert machine.run(code, FAKE_VMM=virtual) == expected


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_memory_that_runs_out_is_told(machine, virtual):
    code = """
held = gpupool.empty(600 << 20)
print(error_of(gpupool.empty, 600 << 20))
del held
print(gpupool.empty(600 << 20).nbytes >> 20)
"""
    error, last = machine.run(code, FAKE_VMM=virtual).splitlines()
    function = {"cuda": ["cuMemAlloc", "cuMemCreate"], "hip": ["hipMalloc", "hipMemCreate"]}[machine.platform]
    status = {"cuda": "CUDA_ERROR_OUT_OF_MEMORY", "hip": "hipErrorOutOfMemory"}[machine.platform]
    assert error.startswith("OutOfMemory out of memory on device 0: tried to allocate 600.0 MiB")
    assert f"{machine.platform}: {function[int(virtual)]} failed with {status} (2) on device 0" in error
    assert last == "600"


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_free_pages_move_to_where_they_are_needed(machine):
    code = """
stream = gpupool.Stream()
blocks = [gpupool.empty(8 << 20, stream) for _ in range(40)]
for number, block in enumerate(blocks):
    ctypes.memset(block.ptr, number, block.nbytes)
kept, blocks = dict(list(enumerate(blocks))[::2]), None
large = gpupool.empty(100 << 20, stream)
ctypes.memset(large.ptr, 255, large.nbytes)
print(all(ctypes.string_at(block.ptr, 8 << 20) == bytes([number]) * (8 << 20) for number, block in kept.items()))
print(gpupool.memory_stats().moved_pages >= 50, driver.double_used(0) < 350 << 20)
del large, kept, block
gpupool.empty_cache()
print(driver.double_used(0))
"""
    assert machine.run(code, FAKE_VMM="1") == "True\nTrue True\n0\n"


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_memory_of_a_stream_that_is_gone_comes_back(machine, virtual):
    names = {"cuda": ("cuStreamCreate", "cuStreamDestroy_v2"), "hip": ("hipStreamCreateWithFlags", "hipStreamDestroy")}
    create, destroy = names[machine.platform]
    code = f"""
stream = ctypes.c_void_p()
with gpupool.stream(gpupool.Stream(1)):
    driver.{create}(ctypes.byref(stream), 1)
gpupool.empty(5 << 20, stream.value).free()
driver.{destroy}(stream)
gpupool.empty_cache()
print(driver.double_used(1))
"""
    assert machine.run(code, FAKE_VMM=virtual) == "0\n"


REFUSED = {
    "0": {"cuda": ["cuMemAlloc_v2"], "hip": ["hipMalloc"]},
    "1": {
        "cuda": ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"],
        "hip": ["hipMemCreate", "hipMemMap", "hipMemSetAccess", "hipMemUnmap", "hipMemRelease"],
    },
}


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_nothing_is_lost_when_the_driver_refuses(machine, virtual):
    functions = REFUSED[virtual][machine.platform]
    code = f"""
gpupool.empty(1).free()
for function in {functions}:
    for times in (1, 1000):
        fail(f"{{function}}=1:{{calls(function) + times}}")
        print(function, error_of(gpupool.empty, 30 << 20), "/", error_of(gpupool.empty_cache))
        fail()
        gpupool.empty(30 << 20).free()
        gpupool.empty_cache()
        print(driver.double_used(0))
"""
    lines = machine.run(code, FAKE_VMM=virtual).splitlines()
    assert lines[1::2] == ["0"] * 2 * len(functions)
    status = {"cuda": "CUDA_ERROR_INVALID_VALUE", "hip": "hipErrorInvalidValue"}[machine.platform]
    for function, line in zip(functions, lines[2::4], strict=True):
        assert f"{machine.platform}: {function.removesuffix('_v2')} failed with {status} (1) on device 0" in line


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_a_second_device_gets_access(machine):
    code = """
buffer = gpupool.empty(3 << 20, gpupool.Stream(0))
gpupool.enable_peer_access(0, 1)
gpupool.empty(30 << 20, gpupool.Stream(0))
other = gpupool.Stream(1)
buffer.record_stream(other)
del buffer
print("done")
"""
    assert machine.run(code, FAKE_VMM="1") == "done\n"


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_a_driver_with_fewer_addresses_gives_what_it_has(machine):
    code = """
buffer = gpupool.empty(30 << 20)
ctypes.memset(buffer.ptr, 1, buffer.nbytes)
print(calls({"cuda": "cuMemMap", "hip": "hipMemMap"}[gpupool.runtime()]) > 0)
"""
    assert machine.run(code, FAKE_VMM="1", FAKE_ROOM_GIB="100") == "True\n"
