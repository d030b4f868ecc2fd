"""What a neighbour does for a test: it has memory of every kind, and tells what became of it."""

import gpupool
from other_process import MIB, OtherProcess, values


def reserved() -> int:
    """Return how much memory the process has."""
    return gpupool.memory_stats().reserved_bytes


def claimed_by(process: OtherProcess) -> int | None:
    """Return what another process tells that it has claimed, if it answers."""
    return next((each.claimed_bytes for each in gpupool.neighbours() if each.pid == process.process.pid), None)


def others(*, pools: bool = False) -> list[gpupool.typing.Neighbour]:
    """Return the neighbours but this process."""
    return [each for each in gpupool.neighbours(pools=pools) if not each.is_self]


def is_granted(nbytes: int, timeout: float = 0) -> bool:
    """Return whether so much can be claimed, and release it."""
    try:
        gpupool.claim(nbytes, timeout=timeout).release()
    # The last one is the simulated device's, which needs a descriptor as well.
    except (gpupool.OutOfMemory, gpupool.Unavailable, gpupool.LibraryError):
        return False
    return True


def cache(kept: dict, nbytes: int, pool: str | None = None) -> int:
    """Have free memory, of the default pool or of a private one, in pieces of 2 MiB; return what the process has."""
    kept["pool"] = gpupool.MemPool() if pool else None
    empty = kept["pool"].empty if pool else gpupool.empty
    buffers = [empty(2 * MIB) for _ in range(nbytes // (2 * MIB))]
    del buffers
    return reserved()


def hold_discardable(kept: dict, nbytes: int, pinned: int = 0, page_bytes: int = 2 * MIB) -> None:
    """Have pages of a range that may be taken, but for some."""
    kept["pool"] = gpupool.MemPool()
    kept["range"] = kept["pool"].reserve_range(nbytes, page_bytes)
    kept["range"].commit(0, nbytes, gpupool.Stream(), priority=1)
    kept["discarded"] = []
    kept["callback"] = kept["range"].on_discard(kept["discarded"].extend)
    if pinned:
        kept["range"].pin(list(range(pinned)))
    gpupool.synchronize()


def discarded(kept: dict) -> list[int]:
    """Return what the range has told, as it does with its next call."""
    kept["range"].prepare(0)
    return sorted(kept["discarded"])


def offer(kept: dict, nbytes: int, wakes_on_use: bool = False, use: str = "") -> None:
    """Have a pool that sleeps for others, with a buffer of sevens; and use the pool, or end that."""
    if nbytes:
        kept["stream"] = gpupool.Stream()
        kept["pool"] = gpupool.MemPool(sleeps_for_others=True, wakes_on_use=wakes_on_use)
        kept["buffer"] = kept["pool"].empty(nbytes, kept["stream"])
        kept["buffer"].fill(7, kept["stream"])
        kept["stream"].synchronize()
    if use == "scope":
        kept["scope"] = gpupool.use_mem_pool(kept["pool"])
        kept["scope"].__enter__()
    elif use == "leave":
        kept["scope"].__exit__(None, None, None)
    elif use == "work":
        gpupool._native.host_submit(kept["stream"])
    elif use == "done":
        kept["stream"].synchronize()
    elif use == "capture":
        gpupool._native.host_begin_capture(kept["stream"])
    elif use == "end":
        gpupool._native.host_end_capture(kept["stream"])


def held(kept: dict, nbytes: int, wakes: bool = False) -> None:
    """Request a little more from the pool, and check what its buffer holds."""
    if wakes:
        kept["pool"].wake()
    kept["more"] = kept["pool"].empty(1, kept["stream"])
    assert values(kept["buffer"]) == {7}
    assert kept["buffer"].nbytes == nbytes


def claim(kept: dict, nbytes: int, timeout: float = 0) -> int:
    """Claim memory, and return what is not taken of it."""
    kept["claim"] = gpupool.claim(nbytes, timeout=timeout)
    return kept["claim"].left


def release(kept: dict) -> None:
    """End the claim, if there is one."""
    if "claim" in kept:
        kept.pop("claim").release()


def try_claim(kept: dict, nbytes: int, timeout: float = 0) -> bool:
    """Return whether so much can be claimed, and hold it."""
    try:
        claim(kept, nbytes, timeout)
    except (gpupool.OutOfMemory, gpupool.Unavailable):
        return False
    return True


def request(nbytes: int) -> bool:
    """Return whether so many bytes can be had, and free them."""
    try:
        buffer = gpupool.empty(nbytes)
    except gpupool.OutOfMemory:
        return False
    buffer.fill(3)
    gpupool.synchronize()
    buffer.free()
    return True
