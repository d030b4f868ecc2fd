"""Pinned memory from a platform's driver."""

import ctypes
import os
import sys

import gpupool
from double import MIB, calls, driver, error_of, fail, set_capture
from waiting import in_thread, wait_until

kDLCUDAHost, kDLROCMHost = 3, 11
# What gpupool calls, without extents of the host's nodes and with them, and what fails where nothing can be locked.
EXTENTS = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemHostRegister_v2"]
CALLS, LOCKS, INVALID = {
    ("cuda", "0"): (["cuMemHostRegister_v2", "cuMemHostUnregister"], EXTENTS[-1:], "CUDA_ERROR_INVALID_VALUE"),
    ("cuda", "1"): (EXTENTS, [EXTENTS[-1], EXTENTS[0]], "CUDA_ERROR_INVALID_VALUE"),
}.get(
    (gpupool.runtime(), os.environ["FAKE_HOST_VMM"]),
    (["hipHostMalloc", "hipHostFree"], ["hipHostMalloc"], "hipErrorInvalidValue"),
)


def gone():
    return driver.double_used_of_host() == 0 and gpupool.pinned_stats().reserved_bytes == 0


def it_can_be_written_and_comes_back():
    buffers = [gpupool.empty_pinned(nbytes) for nbytes in (1, 512, 70_000, 3 * MIB, 20 * MIB, 70 * MIB)]
    buffers.append(in_thread(gpupool.empty_pinned, 5 * MIB))
    for number, buffer in enumerate(buffers):
        memoryview(buffer)[:] = bytes([number]) * buffer.nbytes
    kept = [bytes(buffer) == bytes([number]) * buffer.nbytes for number, buffer in enumerate(buffers)]
    assert all(kept), f"buffers overlap: {kept}"
    host = {"cuda": kDLCUDAHost, "hip": kDLROCMHost}[gpupool.runtime()]
    assert buffers[0].__dlpack_device__() == (host, 0), f"DLPack has it as {buffers[0].__dlpack_device__()}"
    reserved = gpupool.pinned_stats().reserved_bytes
    assert reserved == driver.double_used_of_host() > 99 * MIB, f"{reserved} bytes are reserved"
    assert (driver.double_used(0), driver.double_used(1)) == (0, 0), "pinned memory is counted as a device's"
    del buffers, buffer
    gpupool.empty_cache()
    wait_until(gone, "all of it is given back")


def large_needs_are_registered_in_one_piece():
    # Where a device has other addresses for registered memory, the driver allocates it.
    in_place = os.environ.get("FAKE_IN_PLACE") != "0"
    takes = "cuMemHostRegister_v2" if in_place else "cuMemHostAlloc"
    gives_back = "cuMemHostUnregister" if in_place else "cuMemFreeHost"
    before = calls(takes)
    buffer = gpupool.empty_pinned(300 * MIB)
    assert calls(takes) == before + 1, "a large need is not one registration"
    memoryview(buffer)[-1:] = b"x"
    del buffer
    gpupool.empty_cache()
    wait_until(lambda: calls(gives_back) == 1, "it is unregistered")
    wait_until(gone, "it is given back")


def no_context_is_made_where_none_is_used():
    stream = gpupool.Stream(1)
    before = calls("cuDevicePrimaryCtxRetain")
    in_thread(gpupool.empty_pinned, 5 * MIB)
    in_thread(gpupool.empty_pinned, 300 * MIB)
    assert calls("cuDevicePrimaryCtxRetain") == before, "a thread without a context made one on another device"
    stream.synchronize()


def nothing_is_lost_when_the_driver_refuses():
    for function in CALLS:
        for nbytes in (5 * MIB, 300 * MIB):
            for times in (1, 1000):
                fail(f"{function}=1:{calls(function) + times}")
                error = error_of(gpupool.empty_pinned, nbytes)
                gpupool.empty_cache()
                fail()
                told = error == "no error" or INVALID in error
                assert told, f"{function} refused, and what is told is: {error}"
                gpupool.empty_pinned(nbytes).free()

                def is_gone():
                    # What a thread of gpupool's own was refused is tried again.
                    gpupool.empty_cache()
                    return gone()

                wait_until(is_gone, f"memory is given back that {function} was refused for")


def that_cannot_be_locked_is_told():
    import resource

    resource.setrlimit(resource.RLIMIT_MEMLOCK, (MIB, MIB))
    gpupool.empty_pinned(1).free()
    gpupool.empty_cache()
    wait_until(gone, "it is given back")
    fail(",".join(f"{function}=2:100000" for function in LOCKS))
    error = error_of(gpupool.empty_pinned, 5 * MIB)
    fail()
    assert error.startswith("OutOfMemory out of pinned memory on NUMA node 0 of the host"), error
    for said in ("RLIMIT_MEMLOCK is 1048576 bytes", "ulimit -l unlimited", "docker run --ulimit memlock=-1"):
        assert said in error, f"{said!r} is not told: {error}"
    # What the process lacks is told rather than what else it might lack.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fail(",".join(f"{function}=2:100000" for function in LOCKS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    error = error_of(gpupool.empty_pinned, 5 * MIB)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fail()
    assert "can open no more files" in error, error
    assert "ulimit -n" in error, error
    assert "MEMLOCK" not in error, error


def a_full_node_is_helped_by_others():
    fail("cuMemCreate=2:100000")
    with memoryview(gpupool.empty_pinned(5 * MIB)) as memory:
        memory[:] = bytes([7]) * len(memory)
    fail()


def its_consumers_may_be_of_any_device():
    for device in range(2):
        buffer, stream = gpupool.empty_pinned(5 * MIB), gpupool.Stream(device)
        share = buffer.__dlpack__(stream=stream.ptr)
        del share, buffer
        found = gpupool.pinned_stats().waiting_blocks
        assert found == 1, f"{found} blocks wait for a consumer of device {device}, not 1"
        gpupool.empty_cache()


def a_graph_keeps_it():
    stream = gpupool.Stream()
    set_capture(stream.ptr, 1)
    buffer = gpupool.empty_pinned(32 * MIB, stream)
    address = buffer.ptr
    del buffer
    set_capture(stream.ptr, 0)
    other = gpupool.empty_pinned(32 * MIB)
    assert other.ptr != address, "a graph's memory was handed out again"
    driver.double_destroy_graph(1)
    again = gpupool.empty_pinned(32 * MIB)
    assert again.ptr == address, "memory of a graph that is gone is lost"


def without_word_of_graphs_it_is_not_used_again():
    stream = gpupool.Stream()
    set_capture(stream.ptr, 1)
    buffer = gpupool.empty_pinned(32 * MIB, stream)
    address = buffer.ptr
    del buffer
    set_capture(stream.ptr, 0)
    others = [gpupool.empty_pinned(32 * MIB) for _ in range(3)]
    assert address not in [other.ptr for other in others], "a graph's memory was handed out again"
    assert ctypes.string_at(address, 1) is not None


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
