"""A callback stays registered until it is removed, also one of a plain statement, in a process of its own."""

import contextlib
import gc

import gpupool

PAGE = 2 << 20


def on_oom():
    pool = gpupool.MemPool(limit=PAGE)

    def call():
        with contextlib.suppress(gpupool.OutOfMemory):
            pool.empty(2 * PAGE)

    check(gpupool.on_oom, call)


def on_segment():
    pool = gpupool.MemPool(no_split=True)

    def call():
        pool.empty(PAGE)
        pool.trim()

    check(pool.on_segment, call)


def on_discard():
    pool, stream = gpupool.MemPool(limit=2 * PAGE), gpupool.Stream()
    ranged = pool.reserve_range(2 * PAGE)

    def call():
        ranged.commit([0, 1], stream, priority=0)
        pool.empty(PAGE)
        pool.trim()

    check(ranged.on_discard, call)


def check(register, call):
    calls = []

    def calls_of(name):
        return lambda *arguments: calls.append(name)

    def called():
        calls.clear()
        call()
        return set(calls)

    register(calls_of("plain"))
    removed = register(calls_of("removed"))
    gc.collect()
    assert called() == {"plain", "removed"}, f"called: {calls}"
    removed.remove()
    assert called() == {"plain"}, f"called after one was removed: {calls}"
    with register(calls_of("in a block")) as registered:
        assert "lambda" in repr(registered)
        assert called() == {"plain", "in a block"}, f"called in a block: {calls}"
    assert called() == {"plain"}, f"called after the block: {calls}"
