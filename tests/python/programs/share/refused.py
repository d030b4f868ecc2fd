"""Memory that cannot be shared, and what is said of it."""

import gpupool
from errors import assert_says, raised


def not_exported() -> None:
    buffer = gpupool.empty(1)
    assert_says(raised(gpupool.InvalidValue, buffer.share), "cannot be shared")
    assert buffer.nbytes == 1


def by_name() -> None:
    pool = gpupool.MemPool(segments=True)
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(1)
    assert_says(raised(gpupool.InvalidValue, buffer.share), "cannot be shared", "segments")
    assert_says(raised(gpupool.InvalidValue, gpupool.empty(0).share), "empty buffer")
    freed = gpupool.empty(1)
    freed.free()
    assert_says(raised(gpupool.InvalidValue, freed.share), "freed")
    reserved = gpupool.MemPool(reserve=8 << 20)
    with gpupool.use_mem_pool(reserved):
        buffer = gpupool.empty(3 << 20)
    buffer.fill(4)
    same = gpupool.attach(buffer.share())
    assert set(bytes(same)) == {4}
