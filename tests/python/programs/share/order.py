"""Work of different processes on one buffer comes in order, and no call waits for it."""

import gpupool
from errors import assert_says, raised
from gpupool import _native
from other_process import MIB, is_full, of, other_process, shared_blocks, values, wait_until_free
from waiting import wait_until

LARGE = 40 * MIB


def attach_on(kept: dict, token: gpupool.typing.ShareToken) -> bool:
    """Attach on a stream, put a fill on it, and say whether that is done."""
    kept["stream"] = gpupool.Stream()
    kept["buffer"] = gpupool.attach(token, stream=kept["stream"])
    kept["buffer"].fill(2, kept["stream"])
    return kept["stream"].query()


def work(kept: dict, on: str = "stream") -> None:
    """Put work on the stream that is done when told to."""
    kept["number"] = _native.host_submit(kept[on])


def complete(kept: dict, on: str = "stream") -> None:
    _native.host_complete(kept[on], kept["number"])


def free(kept: dict) -> None:
    kept["buffer"].free(kept["stream"])


def drop(kept: dict) -> None:
    kept.pop("buffer")


def what_the_owner_submitted_comes_first() -> None:
    stream = gpupool.Stream()
    buffer = gpupool.empty(MIB, stream)
    number = _native.host_submit(stream)
    buffer.fill(1, stream)
    token = buffer.share(stream)
    with other_process() as other:
        assert other.call(attach_on, token) is False
        assert other.of("stream", "query") is False
        _native.host_complete(stream, number)
        wait_until(lambda: other.of("stream", "query"), "the other process's work is done")
        assert values(buffer) == {2}
        # What is shared after is waited for by who attaches after.
        number = _native.host_submit(stream)
        assert other.call(attach_on, token) is True
        assert other.call(attach_on, buffer.share(stream)) is False
        other.begin(of, "stream", "synchronize")
        _native.host_complete(stream, number)
        other.end()


def a_dead_owner_is_not_waited_for() -> None:
    with other_process() as owner:
        token = owner.call(share_behind_work)
        stream = gpupool.Stream()
        buffer = gpupool.attach(token, stream=stream)
        buffer.fill(3, stream)
        assert not stream.query()
        owner.kill()
        stream.synchronize()
        assert values(buffer) == {3}


def share_behind_work(kept: dict) -> gpupool.typing.ShareToken:
    kept["stream"] = gpupool.Stream()
    kept["buffer"] = gpupool.empty(MIB, kept["stream"])
    _native.host_submit(kept["stream"])
    return kept["buffer"].share(kept["stream"])


def what_the_others_submitted_comes_before_its_next_use() -> None:
    for let_go in (free, drop):
        with other_process() as other:
            buffer = gpupool.empty(LARGE)
            other.call(attach_on, buffer.share())
            other.call(work)
            buffer.free()
            other.call(let_go)
            # Its work is not done, so it has not let go, as long as one asks.
            assert all(is_full(LARGE) for _ in range(100))
            assert shared_blocks()[0][3] == (other.process.pid,)
            other.call(complete)
            wait_until_free(LARGE).free()
            gpupool.empty_cache()


def what_was_recorded_on_another_stream_counts() -> None:
    with other_process() as other:
        buffer = gpupool.empty(LARGE)
        other.call(attach_on, buffer.share())
        other.call(record_another)
        buffer.free()
        other.call(free)
        assert all(is_full(LARGE) for _ in range(100))
        other.call(complete, "another")
        wait_until_free(LARGE).free()


def record_another(kept: dict) -> None:
    kept["another"] = gpupool.Stream()
    work(kept, "another")
    kept["buffer"].record_stream(kept["another"])


def a_killed_process_has_no_work_left() -> None:
    with other_process() as other:
        buffer = gpupool.empty(LARGE)
        other.call(attach_on, buffer.share())
        other.call(work)
        buffer.free()
        assert is_full(LARGE)
        other.kill()
        wait_until_free(LARGE).free()


def captures_are_refused_and_not_spoilt() -> None:
    stream = gpupool.Stream()
    buffer = gpupool.empty(MIB)
    with other_process() as other:
        other.put("buffer", gpupool.empty, MIB)
        token = other.of("buffer", "share")
        _native.host_begin_capture(stream)
        for call in (lambda: buffer.share(stream), lambda: gpupool.attach(token, stream=stream)):
            assert_says(raised(gpupool.InvalidValue, call), "captured")
        # On other streams both work meanwhile.
        buffer.share()
        gpupool.attach(token).free()
        wait_until(lambda: gpupool.memory_stats().attached_bytes == 0, "nothing is attached")
        _native.host_end_capture(stream)
