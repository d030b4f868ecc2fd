"""cuda.core's memory from gpupool: the real package over a double of the driver."""

import pytest
from framework_machine import framework_machine
from running import run_bare_program, run_program

CORE = """
from cuda.core import Device, DeviceMemoryResource

device = Device(0)
device.set_current()
own = gpupool.Stream()
stream = device.create_stream(own)
"""
ENABLED = CORE + "gpupool.cuda_core.enable()\n"


@pytest.fixture
def run(tmp_path, run_python):
    """Return what runs code with cuda.core."""
    pytest.importorskip("cuda.core")
    return framework_machine(tmp_path, run_python)


def test_buffers_are_gpupools_memory_until_they_are_closed(run):
    run(
        ENABLED
        + """
first = device.allocate(1000, stream=stream)
second = device.allocate(MIB, stream=device.default_stream)
assert first.size == 1000 and int(first.handle) % 512 == 0
assert live() == 2 and gpupool.memory_stats().requested_bytes == 1000 + MIB
first.close()
assert live() == 1
first.close()
del second
assert live() == 0
empty = device.allocate(0, stream=stream)
assert (int(empty.handle), empty.size, live()) == (0, 0, 0)
empty.close()
"""
    )


def test_attributes_say_that_it_is_device_memory(run):
    run(
        ENABLED
        + """
buffer = device.allocate(1000, stream=stream)
resource = buffer.memory_resource
assert resource is device.memory_resource and type(resource) is gpupool.cuda_core.MemoryResource
for one in (buffer, resource):
    assert (one.is_device_accessible, one.is_host_accessible, one.is_managed, one.device_id) == (True, False, False, 0)
# 2 is DLPack's number for CUDA.
assert buffer.__dlpack_device__() == (2, 0)
assert repr(resource) == "gpupool.cuda_core.MemoryResource(device=0, pool=None)"
"""
    )


def test_memory_is_freed_in_the_order_of_the_stream_that_closes_it(run):
    run(
        ENABLED
        + """
other = device.create_stream(gpupool.Stream())
events = lambda: calls("cuEventRecord")
buffer = device.allocate(4 * MIB, stream=stream)
address = int(buffer.handle)
buffer.close()
assert events() == 0
buffer = device.allocate(4 * MIB, stream=stream)
assert int(buffer.handle) == address
buffer.close(other)
assert events() == 1
buffer = device.allocate(1000, stream=stream)
buffer.set_deallocation_stream(other)
del buffer
assert events() == 2 and gpupool.memory_stats().waiting_blocks > 0
gpupool.empty_cache()
assert live() == 0
"""
    )


def test_a_thread_frees_on_its_own_default_stream(run):
    run(
        ENABLED
        + """
from cuda.core import PER_THREAD_DEFAULT_STREAM as mine
buffers = [device.allocate(1000, stream=mine)]

def work():
    Device(0).set_current()
    buffers.pop().close(mine)

work_events = calls("cuEventRecord")
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert calls("cuEventRecord") == work_events + 1
"""
    )


def test_pools_are_honoured(run):
    run(
        ENABLED
        + """
scoped, fixed = gpupool.MemPool(), gpupool.MemPool()
resource = gpupool.cuda_core.MemoryResource(pool=fixed)
with gpupool.use_mem_pool(scoped):
    one = device.allocate(1000, stream=stream)
    other = resource.allocate(1000, stream=stream)
assert [p.stats().live_blocks for p in (scoped, fixed)] == [1, 1]
copy = device.allocate(1000, stream=stream)
assert [p.stats().live_blocks for p in (scoped, fixed)] == [1, 1]
other.close()
assert fixed.stats().live_blocks == 0
assert resource.device_id == 0 and "pool=gpupool.MemPool(id=(0, 2), device=0)" in repr(resource)
"""
    )


def test_using_enables_first(run):
    run(
        CORE
        + """
pool = gpupool.MemPool()
with gpupool.cuda_core.using(pool) as entered:
    buffer = device.allocate(1000, stream=stream)
assert entered is pool and pool.stats().live_blocks == 1
"""
    )


def test_each_thread_enables_for_itself_as_an_initializer_does(run):
    run(
        ENABLED
        + """
def resource(_=None):
    return Device(0).memory_resource

def work(number):
    Device(0).set_current()
    buffers = [Device(0).allocate(1000 + number, stream=stream) for _ in range(100)]
    return len({int(buffer.handle) for buffer in buffers})

with ThreadPoolExecutor(16, initializer=gpupool.cuda_core.enable) as executor:
    assert set(executor.map(resource, range(64))) == {device.memory_resource}
    assert set(executor.map(work, range(64))) == {100}
assert live() == 0
"""
    )


def test_it_may_be_enabled_and_disabled_again(run):
    run(
        ENABLED
        + """
resource = device.memory_resource
gpupool.cuda_core.enable()
gpupool.cuda_core.enable(0)
gpupool.cuda_core.enable(device)
assert device.memory_resource is resource
gpupool.cuda_core.enable(1)
assert Device(1).memory_resource.device_id == 1
buffer = device.allocate(1000, stream=stream)

made = []
class Own(type(resource)):
    def __init__(self, device):
        made.append(device)
        super().__init__(device)

import cuda.core
# The double has no memory pools of the driver's.
cuda.core.DeviceMemoryResource = Own
gpupool.cuda_core.disable()
gpupool.cuda_core.disable()
assert made == [device] and type(device.memory_resource) is Own
assert Device(1).memory_resource.device_id == 1 and type(Device(1).memory_resource) is not Own
buffer.close()
assert live() == 0
"""
    )


def test_out_of_memory_and_foreign_streams_are_refused(run):
    run(
        ENABLED
        + """
error = error_of(device.allocate, 65 * MIB, stream=stream)
assert type(error) is gpupool.OutOfMemory
elsewhere = gpupool.cuda_core.MemoryResource(1)
error = error_of(elsewhere.allocate, 100, stream=stream)
assert type(error) is gpupool.InvalidValue and "memory of device 1" in str(error), error
error = error_of(gpupool.cuda_core.MemoryResource, 1, gpupool.MemPool(device=0))
assert type(error) is gpupool.InvalidValue and "has no memory of device 1" in str(error)
assert live() == 0 and gpupool.cuda_core.MemoryResource(pool=gpupool.MemPool(device=1)).device_id == 1
""",
        FAKE_MEMORY_MIB="64",
    )


def test_captured_memory_is_the_graphs(run):
    run(
        ENABLED
        + """
pool = gpupool.MemPool()
set_capture(own, 1)
with pool.capture(stream) as memory:
    buffer = device.allocate(4 * MIB, stream=stream)
    address = int(buffer.handle)
    buffer.close()
assert is_capturing(own)
set_capture(own, 0)
with gpupool.use_mem_pool(pool):
    other = device.allocate(4 * MIB, stream=stream)
assert int(other.handle) != address
memory.reset()
other.close()
pool.trim()
assert pool.stats().reserved_bytes == 0
"""
    )


def test_buffers_of_both_kinds_share_memory(run):
    run(
        ENABLED
        + """
made = gpupool.empty(1000, own)
buffer = gpupool.cuda_core.to_buffer(made)
assert (int(buffer.handle), buffer.size, buffer.owner) == (made.ptr, 1000, made)
assert gpupool.cuda_core.from_buffer(buffer) is made
assert (buffer.is_device_accessible, buffer.is_host_accessible, buffer.device_id) == (True, False, 0)
del made
assert live() == 1
buffer.close()
assert live() == 0

buffer = device.allocate(1000, stream=stream)
made = gpupool.cuda_core.from_buffer(buffer)
assert (made.ptr, made.nbytes, made.stream) == (int(buffer.handle), 1000, own.ptr)
assert gpupool.cuda_core.from_buffer(buffer) is made
buffer.close()
assert live() == 1 and made.nbytes == 1000
del made
assert live() == 0

from cuda.core import Buffer
for foreign in (Buffer.from_handle(0x10000, 8, owner=own), Buffer.from_handle(0x10000, 8), buffer):
    error = error_of(gpupool.cuda_core.from_buffer, foreign)
    assert type(error) is gpupool.InvalidValue and "from_dlpack" in str(error), error
"""
    )


@pytest.mark.parametrize("order", ["import gpupool\nimport cuda.core\n", "import cuda.core\nimport gpupool\n"])
def test_exits_cleanly_with_live_buffers(run, order):
    code = """
import threading
alive = [device.allocate(1000, stream=stream) for _ in range(30)]
alive.append(gpupool.cuda_core.to_buffer(gpupool.empty(1000)))
thread = threading.Thread(target=lambda: alive.append(device.memory_resource.allocate(10, stream=stream)))
thread.start()
thread.join()
print("end")
"""
    assert run(order + ENABLED + code, prelude="") == "end\n"


def test_cuda_core_is_imported_when_used():
    run_program("importing/leaves_alone.py", "these_modules", "cuda_core", "cuda")


def test_a_missing_or_old_cuda_core_is_named(tmp_path):
    run_bare_program("importing/missing.py", "cuda.core", "cuda.core cannot be imported", "cuda-core>=1.2")
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda/core.py").write_text('__version__ = "1.1.0"\n')
    old = "cuda.core 1.1.0 is too old: 1.2 is needed"
    run_bare_program("importing/missing.py", "cuda.core", old, PYTHONPATH=str(tmp_path))
