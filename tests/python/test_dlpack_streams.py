"""The order of streams between a buffer and its DLPack consumers, which the double of a driver checks."""

import pytest
from machines import Machine


@pytest.fixture
def machine(tmp_path, run_bare_python):
    machine = Machine("cuda", tmp_path, run_bare_python)
    machine.build()
    return machine


# A consumer as the array API has it: it asks on a stream of its own, and lets go whenever it likes.
CONSUME = """
driver.cuCtxSetCurrent.argtypes = driver.cuStreamDestroy_v2.argtypes = [ctypes.c_void_p]

def foreign_stream():
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    return stream.value

own = gpupool.Stream()
buffer = gpupool.empty(1 << 20, own)
waits, records = calls("cuStreamWaitEvent"), calls("cuEventRecord")
def waited():
    return calls("cuStreamWaitEvent") - waits, calls("cuEventRecord") - records
def waiting():
    return gpupool.memory_stats().waiting_blocks
"""


def test_a_consumer_waits_for_the_producer_and_the_memory_for_the_consumer(machine):
    code = """
other = gpupool.Stream()
share = buffer.__dlpack__(stream=other.ptr)
print(waited())
del share, buffer
print(waited(), waiting())
gpupool.empty_cache()
print(waiting(), gpupool.memory_stats().live_blocks)
"""
    assert machine.run(CONSUME + code) == "(1, 1)\n(1, 2) 1\n0 0\n"


@pytest.mark.parametrize("stream", ["own.ptr", "-1"])
def test_nothing_waits_where_there_is_one_stream_or_order_is_the_consumers(machine, stream):
    code = f"""
share = buffer.__dlpack__(stream={stream})
del share, buffer
print(waited(), waiting())
"""
    assert machine.run(CONSUME + code) == "(0, 0) 0\n"


def test_a_consumers_stream_may_be_gone_when_the_memory_is_freed(machine):
    code = """
foreign = foreign_stream()
share = buffer.__dlpack__(stream=foreign, max_version=(1, 0))
driver.cuStreamDestroy_v2(foreign)
before = calls("cuCtxRecordEvent")
del share, buffer
print(waited(), waiting(), calls("cuCtxRecordEvent") - before)
gpupool.empty_cache()
print(waiting(), gpupool.memory_stats().live_blocks)
"""
    # The work of the whole device stands for the stream's, which the double would complain of.
    assert machine.run(CONSUME + code) == "(1, 1) 1 1\n0 0\n"


def test_a_stream_that_is_recorded_too_may_be_a_consumers(machine):
    code = """
foreign = foreign_stream()
buffer.record_stream(foreign)
shares = [buffer.__dlpack__(stream=foreign) for _ in range(3)]
driver.cuStreamDestroy_v2(foreign)
del shares, buffer
print(waiting())
"""
    assert machine.run(CONSUME + code) == "1\n"


@pytest.mark.parametrize(("stream", "events"), [("None", "(1, 2)"), ("1", "(1, 2)"), ("2", "(1, 2)")])
def test_default_streams_are_consumers_like_others(machine, stream, events):
    code = f"""
share = buffer.__dlpack__(stream={stream})
del share, buffer
print(waited(), waiting())
"""
    assert machine.run(CONSUME + code) == f"{events} 1\n"


def test_the_threads_own_stream_is_not_another_threads(machine):
    code = """
share = [buffer.__dlpack__(stream=2)]
del buffer
before = calls("cuCtxRecordEvent")
in_thread(share.clear)
print(waited(), waiting(), calls("cuCtxRecordEvent") - before)
"""
    assert machine.run(CONSUME + code) == "(1, 1) 1 1\n"


def test_a_stream_of_another_device_is_refused(machine):
    code = """
other = gpupool.Stream(1)
print(error_of(buffer.__dlpack__, stream=other.ptr).split(";")[0])
print(error_of(buffer.__dlpack__, stream=0).split(":")[0])
buffer.free()
print(waiting())
"""
    said = machine.run(CONSUME + code).splitlines()
    assert said[0].startswith("InvalidValue stream 0x")
    assert said[0].endswith("belongs to device 1, not to device 0")
    assert said[1:] == ["InvalidValue stream=0 is no stream in DLPack", "0"]
