"""What gpupool gives where others' code lacks memory, on simulated devices: of this process and its neighbours."""

import ctypes

import gpupool
from errors import raised
from neighbour_work import cache, hold_discardable, reserved
from other_process import MIB, other_process

process = ctypes.CDLL(None)
process.asks_to_give.argtypes = ctypes.c_int, ctypes.c_uint64
process.asks_to_give.restype = ctypes.c_uint64


def asked(nbytes: int, device: int = 0) -> int:
    """Return what was given of the device, of which all processes have 64 MiB."""
    return process.asks_to_give(device, nbytes)


def neighbours_give_what_this_process_has_not() -> None:
    with other_process() as other:
        other.call(cache, 40 * MIB)
        cache({}, 8 * MIB)
        free = gpupool.available_memory()
        assert asked(30 * MIB) >= 30 * MIB
        assert (reserved(), other.do(reserved)) <= (0, 18 * MIB)
        assert gpupool.available_memory() == free


def nothing_of_theirs_goes_that_they_need() -> None:
    with other_process() as other:
        other.call(hold_discardable, 40 * MIB, 20)
        assert asked(30 * MIB) == 0
        assert other.do(reserved) == 40 * MIB


def idle_handles_go() -> None:
    gpupool._native.simulate_costly_handles(0.0, 8 * MIB)
    with gpupool.simulated.lease(), gpupool.simulated.lease():
        pass
    before = gpupool._native.summarize(0)["free_bytes"]
    assert asked(8 * MIB) >= 8 * MIB
    assert gpupool._native.summarize(0)["free_bytes"] > before
    with gpupool.simulated.lease():
        assert asked(64 * MIB) <= 8 * MIB, "a handle that is in use went"


def a_device_that_is_not_there_gives_nothing() -> None:
    cache({}, 8 * MIB)
    assert [asked(MIB, device) for device in (-1, 2, 1 << 30)] == [0, 0, 0]
    assert reserved() == 8 * MIB


def an_error_names_the_others() -> None:
    error = raised(gpupool.OutOfMemory, gpupool.empty, 100 * MIB)
    assert ". Held by other libraries of this process: NCCL 5.0 MiB" in str(error), error
