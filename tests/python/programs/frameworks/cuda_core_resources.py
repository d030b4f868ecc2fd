"""gpupool as cuda.core's memory resource: of which pools, for which threads, and what it refuses."""

import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

import cuda.core
import gpupool
from cuda.core import Device
from cuda_core_device import device, stream
from double import MIB, live
from errors import assert_says, raised
from forking import assert_refused, in_child
from gpupool._native import CudaCoreMemory


def honours_pools():
    gpupool.cuda_core.enable()
    scoped, fixed = gpupool.MemPool(), gpupool.MemPool()
    resource = gpupool.cuda_core.MemoryResource(pool=fixed)

    def assert_live(*expected):
        found = tuple(pool.stats().live_blocks for pool in (scoped, fixed))
        assert found == expected, f"the scope's pool and the resource's own have {found} blocks, not {expected}"

    with gpupool.use_mem_pool(scoped):
        one = device.allocate(1000, stream=stream)
        other = resource.allocate(1000, stream=stream)
    assert_live(1, 1)
    outside = device.allocate(1000, stream=stream)
    assert_live(1, 1)
    other.close()
    assert_live(1, 0)
    assert resource.device_id == 0, f"its device is {resource.device_id}"
    assert_says(repr(resource), "pool=gpupool.MemPool(id=(0, 2), device=0, ")
    del one, outside


def is_enabled_by_using():
    pool = gpupool.MemPool()
    assert not gpupool.cuda_core.is_enabled(), "it is enabled before the block"
    with gpupool.cuda_core.using(pool) as entered:
        buffer = device.allocate(1000, stream=stream)
    assert entered is pool, f"the block has {entered}"
    assert pool.stats().live_blocks == 1, "the buffer is not the pool's"
    buffer.close()
    assert gpupool.cuda_core.is_enabled(0), "it is not enabled after the block"
    with gpupool.cuda_core.using(pool.token()), gpupool.cuda_core.using() as entered:
        assert entered is None, f"the block of no pool has {entered}"
        buffer = device.allocate(1000, stream=stream)
    assert pool.stats().live_blocks == 1, "the buffer is not of the token's pool"
    buffer.close()
    with ThreadPoolExecutor(1) as executor:
        gpupool.cuda_core.enable()
        assert not executor.submit(gpupool.cuda_core.is_enabled).result(), (
            "it is enabled in a thread that did not call it"
        )
    error = raised(gpupool.InvalidValue, gpupool.cuda_core.using("pool").__enter__)
    assert_says(error, "pool is 'pool': give a MemPool, its token(), or None")


def is_enabled_by_each_thread_as_an_initializer_does():
    gpupool.cuda_core.enable()

    def resource(_):
        return Device(0).memory_resource

    def work(number):
        Device(0).set_current()
        buffers = [Device(0).allocate(1000 + number, stream=stream) for _ in range(100)]
        return len({int(buffer.handle) for buffer in buffers})

    with ThreadPoolExecutor(16, initializer=gpupool.cuda_core.enable) as executor:
        assert set(executor.map(resource, range(64))) == {device.memory_resource}, "threads have other resources"
        assert set(executor.map(work, range(64))) == {100}, "buffers of a thread overlap"
    assert live() == 0, "buffers of threads are alive"


def may_be_enabled_and_disabled_again():
    gpupool.cuda_core.enable()
    resource = device.memory_resource
    gpupool.cuda_core.enable()
    gpupool.cuda_core.enable(0)
    gpupool.cuda_core.enable(device)
    assert device.memory_resource is resource, "enabling again makes another resource"
    gpupool.cuda_core.enable(1)
    assert Device(1).memory_resource.device_id == 1, "device 1 has a resource of another device"
    buffer = device.allocate(1000, stream=stream)

    made = []

    class Own(type(resource)):
        """cuda.core's own; the double has no memory pools of the driver's."""

        def __init__(self, device):
            made.append(device)
            super().__init__(device)

    cuda.core.DeviceMemoryResource = Own
    gpupool.cuda_core.disable()
    gpupool.cuda_core.disable()
    assert made == [device], f"cuda.core's own was made for {made}"
    assert type(device.memory_resource) is Own, "disabled, the device has not cuda.core's own"
    enabled = [gpupool.cuda_core.is_enabled(each) for each in (None, 0, device, Device(1))]
    assert enabled == [False, False, False, True], f"what is enabled: {enabled}"
    other = Device(1).memory_resource
    assert (other.device_id, type(other) is Own) == (1, False), "device 1 was disabled with device 0"
    buffer.close()
    assert live() == 0, "a buffer from before is alive"


def refuses_what_cannot_be():
    gpupool.cuda_core.enable()
    raised(gpupool.OutOfMemory, device.allocate, 65 * MIB, stream=stream)
    elsewhere = gpupool.cuda_core.MemoryResource(1)
    error = raised(gpupool.InvalidValue, elsewhere.allocate, 100, stream=stream)
    assert_says(error, "memory of device 1")
    error = raised(gpupool.InvalidValue, gpupool.cuda_core.MemoryResource, 1, gpupool.MemPool(device=0))
    assert_says(error, "has no memory of device 1")
    assert live() == 0, "a refusal left memory"
    found = gpupool.cuda_core.MemoryResource(pool=gpupool.MemPool(device=1)).device_id
    assert found == 1, f"the resource of a pool of device 1 is of device {found}"


def is_left_as_it_was_by_what_fails():
    """Of requests and frees that cuda.core does not make, and of what fails on the way."""
    resource = gpupool.cuda_core.MemoryResource(0)

    class Failing(gpupool.cuda_core.MemoryResource):
        @property
        def is_device_accessible(self):
            raise RuntimeError("not today")

    for wrong in ("10", None, 1.5):
        raised(TypeError, resource.allocate, wrong, stream=stream)
    raised(gpupool.InvalidValue, resource.allocate, -1, stream=stream)
    raised(TypeError, resource.allocate, 10)
    for wrong in (None, "stream", 0):
        raised(AttributeError, resource.allocate, 10, stream=wrong)
    assert_says(raised(RuntimeError, Failing(0).allocate, 10, stream=stream), "not today")
    assert live() == 0, "a request that failed left memory"
    buffer = resource.allocate(1000, stream=stream)
    address = int(buffer.handle)
    assert_says(
        raised(gpupool.InvalidValue, resource.deallocate, address + 8, 1000, stream=stream), "no memory of this"
    )
    raised(AttributeError, resource.deallocate, address, 1000, stream="stream")
    error = raised(gpupool.InvalidValue, resource.deallocate, address, 1000, stream=gpupool.Stream(1))
    assert_says(error, "which a stream of device 1 cannot use")
    assert live() == 1, "a refusal freed memory"
    buffer.close()
    assert live() == 0, "a closed buffer is alive"
    raised(gpupool.InvalidValue, resource.deallocate, address, 1000, stream=stream)
    other = gpupool.cuda_core.MemoryResource(pool=gpupool.MemPool(device=1))
    raised(gpupool.InvalidValue, resource.__init__, 0)
    assert other.device_id == 1, f"its device is {other.device_id}"


def may_have_subclasses():
    class Counting(gpupool.cuda_core.MemoryResource):
        def __init__(self, name, device):
            super().__init__(device)
            self.name, self.calls = name, []

        def allocate(self, size, *, stream):
            self.calls.append(size)
            return super().allocate(size, stream=stream)

        def deallocate(self, ptr, size, *, stream):
            self.calls.append(-size)
            super().deallocate(ptr, size, stream=stream)

    resource = Counting("counting", device)
    resource.allocate(10, stream=stream).close()
    assert (resource.calls, live()) == ([10, -10], 0), f"the calls were {resource.calls}"
    unmade = gpupool.cuda_core.MemoryResource.__new__(gpupool.cuda_core.MemoryResource, "anything")
    assert_says(raised(gpupool.InvalidValue, unmade.allocate, 10, stream=stream), "__init__")


def takes_streams_of_every_kind():
    """Of cuda.core's own, whose handles are read where they stand, and of others, which are asked."""
    resource = gpupool.cuda_core.MemoryResource(0)
    has_lock = not sysconfig.get_config_var("Py_GIL_DISABLED")
    # Without a GIL another thread could close the stream meanwhile, so all are asked.
    assert resource.reads_streams == has_lock, (
        "this version of cuda.core makes streams in another way than gpupool knows"
    )

    class Named(cuda.core.Stream):
        pass

    class Foreign:
        def __cuda_stream__(self):
            return 0, int(stream.handle)

    for one in (stream, device.default_stream, cuda.core.Stream.from_handle(int(stream.handle)), Named.from_handle(1)):
        resource.allocate(1000, stream=one).close()
    assert live() == 0, "a buffer is alive"
    # cuda.core frees on no other kind of stream, but gpupool allocates there.
    assert_says(raised(TypeError, resource.allocate, 10, stream=Foreign()), "Stream")
    closed = device.create_stream(gpupool.Stream())
    closed.close()
    assert_says(raised(RuntimeError, resource.allocate, 10, stream=closed), "closed")
    assert live() == 0, "a request that failed left memory"


def asks_streams_that_are_made_in_another_way():
    class Stream:
        def __init__(self, handle):
            self.handle = handle

        @classmethod
        def from_handle(cls, handle):
            return cls(handle)

        def __cuda_stream__(self):
            return 0, int(stream.handle)

    class Fails(cuda.core.Stream):
        @classmethod
        def from_handle(cls, handle):
            raise RuntimeError("not today")

    for other in (Stream, Fails, int):
        memory = CudaCoreMemory(lambda ptr, size, mr, *, stream: (ptr, size), other, 0, None)
        assert not memory.reads_streams, f"words of {other} are read"
        address, size = memory.allocate(1000, stream=Stream(0))
        memory.deallocate(address, size, stream=stream)
    assert live() == 0, "memory is left"


def is_refused_in_a_forked_child():
    resource = gpupool.cuda_core.MemoryResource(0)
    buffer = resource.allocate(1000, stream=stream)
    address = int(buffer.handle)
    in_child(
        lambda: assert_refused(
            lambda: resource.allocate(10, stream=stream),
            lambda: resource.deallocate(address, 1000, stream=stream),
            lambda: resource.device_buffer(address),
        )
    )
    buffer.close()
    assert live() == 0, "the parent's buffer is alive"


def is_used_by_threads_at_once():
    resource = gpupool.cuda_core.MemoryResource(0)

    def work(number):
        Device(0).set_current()
        kept = []
        for turn in range(200):
            kept.append(resource.allocate(1000 + turn, stream=stream))
            if turn % 7 == 0:
                assert gpupool.cuda_core.from_buffer(kept[-1]).nbytes == 1000 + turn, "a buffer is another's"
            if turn % 3:
                kept.pop(turn % len(kept)).close()
        return len({int(buffer.handle) for buffer in kept}) == len(kept)

    with ThreadPoolExecutor(16) as executor:
        assert all(executor.map(work, range(32))), "buffers of a thread overlap"
    assert live() == 0, "buffers of threads are alive"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
