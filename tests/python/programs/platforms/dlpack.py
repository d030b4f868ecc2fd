"""The order of streams between a buffer and its DLPack consumers, as the array API has them.

A consumer asks on a stream of its own, and lets go whenever it likes.
"""

import ctypes
import sys

import gpupool
from double import MIB, calls, driver, error_of, fail, is_capturing, join_capture, set_capture
from waiting import in_thread

driver.cuCtxSetCurrent.argtypes = driver.cuStreamDestroy_v2.argtypes = [ctypes.c_void_p]


class Producer:
    """A buffer on a stream, and how often the driver was asked for order since it was there."""

    def __init__(self):
        self.stream = gpupool.Stream()
        self.buffer = gpupool.empty(MIB, self.stream)
        self.waits, self.records = calls("cuStreamWaitEvent"), calls("cuEventRecord")

    def assert_ordered(self, waits, records, waiting_blocks):
        found = calls("cuStreamWaitEvent") - self.waits, calls("cuEventRecord") - self.records
        assert found == (waits, records), f"waits and events: {found}, not {(waits, records)}"
        found = gpupool.memory_stats().waiting_blocks
        assert found == waiting_blocks, f"{found} blocks wait, not {waiting_blocks}"


def foreign_stream():
    """Return the address of a stream that gpupool did not make."""
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0, "the double made no stream"
    return stream.value


def assert_nothing_is_left():
    gpupool.empty_cache()
    stats = gpupool.memory_stats()
    assert (stats.waiting_blocks, stats.live_blocks) == (0, 0), f"blocks are left: {stats}"


def a_consumer_waits_for_the_producer_and_the_memory_for_the_consumer():
    producer, other = Producer(), gpupool.Stream()
    share = producer.buffer.__dlpack__(stream=other.ptr)
    producer.assert_ordered(1, 1, waiting_blocks=0)
    del share, producer.buffer
    producer.assert_ordered(1, 2, waiting_blocks=1)
    assert_nothing_is_left()


def nothing_waits(consumer):
    """Have a consumer on the same stream, or one that sees to the order itself."""
    producer = Producer()
    share = producer.buffer.__dlpack__(stream={"same": producer.stream.ptr, "none": -1}[consumer])
    del share, producer.buffer
    producer.assert_ordered(0, 0, waiting_blocks=0)


def a_consumers_stream_may_be_gone_when_the_memory_is_freed():
    producer, foreign = Producer(), foreign_stream()
    share = producer.buffer.__dlpack__(stream=foreign, max_version=(1, 0))
    driver.cuStreamDestroy_v2(foreign)
    before = calls("cuCtxRecordEvent")
    del share, producer.buffer
    producer.assert_ordered(1, 1, waiting_blocks=1)
    # The work of the whole device stands for the stream's, which the double would complain of.
    assert calls("cuCtxRecordEvent") - before == 1, "the memory waits for nothing"
    assert_nothing_is_left()


def without_events_of_the_device_one_wait_serves_all():
    """Have many consumers whose streams are gone, on a driver that records no work of a whole device."""
    buffers = [gpupool.empty(MIB, gpupool.Stream()) for _ in range(20)]
    shares = []
    for buffer in buffers:
        foreign = foreign_stream()
        shares.append(buffer.__dlpack__(stream=foreign))
        driver.cuStreamDestroy_v2(foreign)
    before = calls("cuCtxSynchronize")
    del buffer, buffers
    shares.clear()
    stats = gpupool.memory_stats()
    found = stats.waiting_blocks, calls("cuCtxSynchronize") - before
    assert found == (20, 0), f"waiting blocks, and waits for the device in frees: {found}"
    reserved = stats.reserved_bytes
    gpupool.empty(reserved, gpupool.Stream()).free()
    gpupool.empty_cache()
    stats = gpupool.memory_stats()
    assert (stats.waiting_blocks, stats.reserved_bytes) == (0, 0), f"memory is left: {stats}"
    found = calls("cuCtxSynchronize") - before
    # One for all that was freed, and one for what the last request had.
    assert found <= 2, f"{found} waits for the device"


def a_stream_that_is_recorded_too_may_be_a_consumers():
    producer, foreign = Producer(), foreign_stream()
    producer.buffer.record_stream(foreign)
    shares = [producer.buffer.__dlpack__(stream=foreign) for _ in range(3)]
    driver.cuStreamDestroy_v2(foreign)
    del shares, producer.buffer
    found = gpupool.memory_stats().waiting_blocks
    assert found == 1, f"{found} blocks wait, not 1"


def a_default_stream_is_a_consumer_like_others(stream):
    producer = Producer()
    share = producer.buffer.__dlpack__(stream={"none": None, "legacy": 1, "per-thread": 2}[stream])
    del share, producer.buffer
    producer.assert_ordered(1, 2, waiting_blocks=1)


def the_threads_own_stream_is_not_another_threads():
    producer = Producer()
    share = [producer.buffer.__dlpack__(stream=2)]
    del producer.buffer
    before = calls("cuCtxRecordEvent")
    in_thread(share.clear)
    producer.assert_ordered(1, 1, waiting_blocks=1)
    assert calls("cuCtxRecordEvent") - before == 1, "the memory waits for another thread's stream"


def another_threads_per_thread_stream_is_waited_for(consumer):
    """Have the work of a thread's own stream waited for, which no other thread can name."""
    made, other = [], gpupool.Stream()
    in_thread(lambda: made.append(gpupool.empty(MIB, 2)))
    found = "cuCtxRecordEvent", "cuEventRecord", "cuStreamWaitEvent"
    before = [calls(name) for name in found]
    share = {
        "per-thread": lambda: made[0].__dlpack__(stream=2),
        "another": lambda: made[0].__dlpack__(stream=other.ptr),
        "of the array interface": lambda: made[0].__cuda_array_interface__,
    }[consumer]()
    # The work of the whole device stands for it.
    assert [calls(name) - then for name, then in zip(found, before, strict=True)] == [1, 0, 1]
    del share, made[:]
    gpupool.synchronize()
    assert_nothing_is_left()


def assert_refused_by_a_capture(said, export):
    captured = [stream for stream in (export.own, export.consumer) if is_capturing(stream)]
    error = error_of(export)
    assert error.startswith(f"InvalidValue {said}"), f"it is told as: {error}"
    assert all(map(is_capturing, captured)), "the capture is spoilt"


class Export:
    """An export of a buffer to a consumer, of whose streams some are captured."""

    def __init__(self, *captured):
        self.producer, other = Producer(), gpupool.Stream()
        self._kept, self.own, self.consumer = other, self.producer.stream.ptr, other.ptr
        for stream in captured:
            set_capture({"own": self.own, "consumer": self.consumer}[stream], 1)

    def __call__(self):
        return self.producer.buffer.__dlpack__(stream=self.consumer)


def a_capture_waits_for_no_work_outside_of_it():
    export = Export("consumer")
    fail("cuStreamQuery=600")
    assert_refused_by_a_capture("the consumer's stream is being captured", export)
    fail()
    # What is done is not waited for.
    export()
    export.producer.assert_ordered(0, 0, waiting_blocks=0)
    assert is_capturing(export.consumer), "the capture is spoilt"


def no_work_outside_of_a_capture_waits_for_it():
    export = Export("own")
    assert_refused_by_a_capture("the buffer's stream is being captured", export)
    export.producer.assert_ordered(0, 0, waiting_blocks=0)


def captures_do_not_wait_for_one_another():
    export = Export("own", "consumer")
    assert_refused_by_a_capture("the buffer's stream is being captured", export)
    export.producer.assert_ordered(0, 0, waiting_blocks=0)


def streams_of_one_capture_wait_for_one_another():
    export = Export("own")
    join_capture(export.consumer, export.own)
    export()
    export.producer.assert_ordered(1, 1, waiting_blocks=0)
    assert is_capturing(export.own), "the capture is spoilt"
    # Nor is there anything to wait for on the same stream.
    export.producer.buffer.__dlpack__(stream=export.own)
    export.producer.assert_ordered(1, 1, waiting_blocks=0)


def a_stream_of_another_device_is_refused():
    producer, other = Producer(), gpupool.Stream(1)
    error = error_of(producer.buffer.__dlpack__, stream=other.ptr).split(";")[0]
    assert error.startswith("InvalidValue stream 0x"), f"the stream is not named: {error}"
    assert error.endswith("belongs to device 1, not to device 0"), f"the devices are not named: {error}"
    error = error_of(producer.buffer.__dlpack__, stream=0).split(":")[0]
    assert error == "InvalidValue stream=0 is not a stream in DLPack", f"stream 0 is refused otherwise: {error}"
    producer.buffer.free()
    found = gpupool.memory_stats().waiting_blocks
    assert found == 0, f"{found} blocks wait for a consumer that was refused"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
