"""Segments that libraries register by their address, as ``MemPool.on_segment`` tells of them."""

import gc

import gpupool
import pytest

pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = 1 << 20


class Registered(dict):
    """What a callback of a pool registers: bytes by address."""

    def __call__(self, event):
        if event.kind == "added":
            assert event.address not in self
            self[event.address] = event.nbytes
        else:
            assert (event.kind, self.pop(event.address)) == ("removed", event.nbytes)


def test_segments_are_told_of_before_their_use_and_before_they_go():
    pool, told, registered = gpupool.MemPool(no_split=True), [], Registered()
    early = pool.empty(8 * MIB)
    with pool.on_segment(told.append) as callback, pool.on_segment(registered) as named:
        assert "Registered" in repr(named)
        assert "removed" not in repr(named)
        late = pool.empty(16 * MIB)
        added = [(event.kind, event.address, event.nbytes) for event in told]
        assert added == [("added", early.ptr, 8 * MIB), ("added", late.ptr, 16 * MIB)]
        assert {(event.device, event.pool_id) for event in told} == {(0, pool.id)}
        text = f"kind='added', address={early.ptr:#x}, nbytes={8 * MIB}, device=0 (simulated), pool_id={pool.id}"
        assert repr(told[0]) == f"gpupool.typing.SegmentEvent({text})"
        again = []
        pool.on_segment(again.append).remove()
        assert again == told
        assert hash(again[0]) == hash(told[0])
        address = early.ptr
        del early
        with pytest.raises(gpupool.Unavailable, match="on_segment"):
            pool.sleep()
        assert pool.trim() == 8 * MIB
        assert (told[2].kind, told[2].address, len(told)) == ("removed", address, 3)
    assert "removed" in repr(callback)
    assert registered == {late.ptr: 16 * MIB}
    del late
    assert (pool.trim(), len(told)) == (16 * MIB, 3)


def test_a_callback_is_told_though_what_on_segment_returned_is_gone_and_until_the_pool_is():
    pool, registered = gpupool.MemPool(no_split=True), Registered()
    pool.on_segment(registered)
    gc.collect()
    buffer = pool.empty(4 * MIB)
    free = pool.empty(6 * MIB)
    assert registered == {buffer.ptr: 4 * MIB, free.ptr: 6 * MIB}
    del free
    del pool
    assert registered == {buffer.ptr: 4 * MIB}
    del buffer
    assert not registered


def test_a_pool_that_dies_under_an_exception_tells_of_its_segments():
    registered = Registered()

    def fail():
        pool = gpupool.MemPool(no_split=True)
        pool.on_segment(registered)
        pool.empty(4 * MIB).free()
        assert registered
        raise KeyError("on its way")

    with pytest.raises(KeyError, match="on its way") as raised:
        fail()
    raised.value.with_traceback(None)
    del raised
    gc.collect()
    assert not registered


def test_what_cannot_be_told_of_is_refused():
    with pytest.raises(gpupool.InvalidValue, match=r"moves its free pages.*no_split"):
        gpupool.MemPool().on_segment(print)
    pool = gpupool.MemPool(no_split=True)
    with pytest.raises(gpupool.InvalidValue, match=r"on_segment takes a callable\(event\), not 3"):
        pool.on_segment(3)
    pool.close()
    with pytest.raises(gpupool.InvalidValue, match="closed"):
        pool.on_segment(print)
