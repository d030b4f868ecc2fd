"""Whatever call of the driver fails while a process gives memory to a neighbour, it keeps what it holds.

The device has 16 MiB. What is requested needs something of every kind.
"""

import gpupool
from gpupool import _native
from neighbour_work import request, reserved
from other_process import MIB, other_process, values

DEVICE = 16 * MIB
# No call is made more often for one request.
MOST = 8


def hold(kept: dict) -> None:
    """Have something of every kind."""
    kept["stream"] = stream = gpupool.Stream()
    kept["pool"] = gpupool.MemPool(sleeps_for_others=True)
    kept["buffer"] = kept["pool"].empty(4 * MIB, stream)
    kept["buffer"].fill(7, stream)
    kept["ranges"] = gpupool.MemPool()
    kept["range"] = kept["ranges"].reserve_range(4 * MIB)
    kept["range"].commit(0, 4 * MIB, stream, priority=1)
    stream.synchronize()
    free = [gpupool.empty(2 * MIB, stream) for _ in range(2)]
    del free


def check(kept: dict) -> int:
    """Wake, check what is held, and let all of it go; return what the process still has."""
    kept["pool"].wake()
    assert values(kept.pop("buffer")) == {7}
    kept.pop("range").free()
    del kept["pool"], kept["ranges"]
    gpupool.synchronize()
    gpupool.empty_cache()
    return reserved()


def whatever_call_fails_nothing_is_lost(call: str) -> None:
    with other_process() as other:
        for after in range(MOST):
            other.call(hold)
            other.do(_native.host_inject, call, "other", after)
            request(14 * MIB)
            gpupool.empty_cache()
            other.do(_native.host_clear_faults)
            gpupool.empty_cache()
            assert other.call(check) == 0, (call, after)
            # All of the device is free again.
            gpupool.empty(DEVICE).free()
            gpupool.empty_cache()
