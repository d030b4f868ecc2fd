"""What gpupool is asked for while another library captures: each step prepares, yields, and goes on meanwhile."""

import gc

import gpupool

MIB = 1 << 20
# CUDA's numbers of the default streams.
LEGACY, PER_THREAD = 1, 2


def waits_for_the_other_stream(asker, other):
    block = gpupool.empty(4 * MIB, asker)
    block.fill(1, other)
    del block
    yield
    gpupool.empty(4 * MIB, asker).free()


def frees_what_the_other_stream_used(asker, other):
    blocks = [gpupool.empty(nbytes, asker) for nbytes in (700, 4 * MIB)]
    yield
    while blocks:
        blocks.pop().record_stream(other)
    for nbytes in (700, 4 * MIB):
        gpupool.empty(nbytes, asker).free()


def frees_in_the_order_of_the_other_stream(asker, other):
    block = gpupool.empty(4 * MIB, asker)
    yield
    block.free(other)
    gpupool.empty(4 * MIB, asker).free()


def grows_beside_free_pages(asker, other):
    pool = gpupool.MemPool()
    pool.empty(40 * MIB, other).free(other)
    yield
    for nbytes in (30 * MIB, 90 * MIB):
        pool.empty(nbytes, asker).free()


def moves_its_own_pages(asker, other):
    pool = gpupool.MemPool(limit=40 * MIB)
    parts = [pool.empty(10 * MIB, asker) for _ in range(4)]
    yield
    del parts[2], parts[0]
    pool.empty(20 * MIB, asker).free()


def has_small_blocks_on_lent_pages(asker, other):
    pool = gpupool.MemPool()
    many = [gpupool.Stream() for _ in range(20)]
    live = [pool.empty(700, stream) for stream in many]
    for stream in (asker, other):
        pool.empty(700, stream).free(stream)
    new = gpupool.Stream()
    yield
    gpupool.empty_cache()
    for stream in (asker, other, new):
        pool.empty(3000, stream).free(stream)
    live.clear()
    pool.trim()


def trims(asker, other):
    pool = gpupool.MemPool()
    for stream in (asker, other):
        pool.empty(10 * MIB, stream).free(stream)
        gpupool.empty(10 * MIB, stream).free(stream)
    yield
    pool.trim()
    gpupool.empty_cache()
    pool.empty(10 * MIB, asker).free()


def ends_a_pool(asker, other):
    pool = gpupool.MemPool()
    for stream in (asker, other):
        pool.empty(10 * MIB, stream).free(stream)
    yield
    pool.close()
    del pool
    gpupool.empty(MIB, asker).free()


def has_a_reserve(asker, other):
    pool = gpupool.MemPool(reserve=64 * MIB, limit=64 * MIB)
    pool.empty(30 * MIB, other).free(other)
    yield
    pool.empty(30 * MIB, asker).free()


def has_pinned_memory(asker, other):
    block = gpupool.empty_pinned(4096)
    yield
    block.record_stream(other)
    del block
    gpupool.empty_pinned(4096, stream=asker)


STEPS = (
    waits_for_the_other_stream,
    frees_what_the_other_stream_used,
    frees_in_the_order_of_the_other_stream,
    grows_beside_free_pages,
    moves_its_own_pages,
    has_small_blocks_on_lent_pages,
    trims,
    ends_a_pool,
    has_a_reserve,
    has_pinned_memory,
)


def use_of_the_legacy_stream():
    """Return the error of a call that would spoil the capture of a blocking stream, or "no error"."""
    with gpupool.stream(LEGACY):
        try:
            gpupool.current_stream().synchronize()
        except gpupool.InvalidValue as error:
            return str(error)
    return "no error"


def wrong_steps(capture, kind, leaves_out=()):
    """Return what went wrong of each step, on each pair of streams, beside a capture of its own.

    ``capture`` is a function that begins a capture and returns one that ends it, which fails if it was spoilt.
    """
    wrong = []
    kinds = [None, LEGACY, PER_THREAD]
    for step in STEPS:
        for first in kinds:
            for second in kinds:
                if {first, second} & set(leaves_out):
                    continue
                asker, other = (gpupool.Stream() if each is None else each for each in (first, second))
                begun = step(asker, other)
                next(begun)
                # A graph that ended here would spoil the capture.
                end = None
                gc.collect()
                end = capture()
                try:
                    next(begun, None)
                    if kind != "non_blocking":
                        error = use_of_the_legacy_stream()
                        assert "a blocking stream of device 0 is being captured" in error, error
                except Exception as error:
                    wrong.append(f"{step.__name__}, {first} beside {second}: {type(error).__name__} {error}")
                try:
                    end()
                except Exception as error:
                    wrong.append(f"{step.__name__}, {first} beside {second} spoilt it: {type(error).__name__} {error}")
                del begun
    gpupool.synchronize()
    gpupool.empty_cache()
    if waiting := gpupool.memory_stats(0).waiting_blocks:
        wrong.append(f"{waiting} blocks wait for ever")
    return wrong
