"""Whatever call of the driver fails while a block is shared, attached or let go, both processes are as they were."""

import gpupool
from gpupool import _native
from other_process import (
    attach,
    attached_bytes,
    content,
    fill,
    free,
    in_pieces,
    open_files,
    other_process,
    read_by,
    shared_blocks,
    wait_until_let_go,
    watched_processes,
)
from waiting import wait_until

# No program makes more calls of one kind.
MOST = 28
# What a process calls to attach a block whose region is mapped, and to map it.
OF_HOLDING = ("Bind", "StreamCaptureStatus", "EventImport", "StreamWaitEvent")
OF_ATTACHING = (*OF_HOLDING, "ExchangeCaptureMode", "AddressReserve", "ExtentImport", "MemoryMap", "MemorySetAccess")


def attach_behind(kept: dict, token: gpupool.typing.ShareToken) -> None:
    stream = gpupool.Stream()
    kept["stream"] = stream
    kept["buffer"] = gpupool.attach(token, stream=stream)


def fails_or_not(call) -> bool:
    try:
        call()
    except (gpupool.Error, AssertionError) as error:
        if "HOST_ERROR_INJECTED" not in str(error):
            raise
        return True
    return False


def while_attaching() -> None:
    stream = gpupool.Stream()
    buffer = in_pieces()
    bytes(buffer)
    failed = set()
    with other_process() as other:
        # What is made once stays: the connection, the device, and pinned memory.
        read_by(other, buffer.share())
        wait_until_let_go(other)
        # What stays mapped is attached again without most of the calls.
        other.do(gpupool.empty_cache)
        number = _native.host_submit(stream)
        token = buffer.share(stream)
        # Its thread closes what there was.
        wait_until(lambda: other.call(watched_processes) == 0, "the connection is closed")
        files = other.do(open_files)
        for call in OF_ATTACHING:
            for after in range(MOST):
                other.do(_native.host_inject, call, "other", after)
                is_failed = fails_or_not(lambda token=token: other.call(attach_behind, token))
                other.do(_native.host_clear_faults)
                if is_failed:
                    failed.add(call)
                    wait_until(lambda: shared_blocks() == [], f"nothing is attached after {call} has failed")
                    assert (other.call(attached_bytes), other.do(open_files)) == (0, files), call
                    continue
                break
            else:
                raise AssertionError(f"{call} always fails")
            assert other.call(attached_bytes) == buffer.nbytes
            # It waits for the owner's work, and so does its end.
            _native.host_complete(stream, number)
            assert other.call(content) == {1}
            other.call(free)
            wait_until_let_go(other)
            other.do(gpupool.empty_cache)
            wait_until(lambda: other.call(watched_processes) == 0, "the connection is closed")
            number = _native.host_submit(stream)
            token = buffer.share(stream)
        assert failed == set(OF_ATTACHING), failed
        _native.host_complete(stream, number)


def while_attaching_what_is_mapped() -> None:
    stream = gpupool.Stream()
    held, buffer = gpupool.empty(1000), gpupool.empty(1000)
    buffer.fill(1)
    bytes(buffer)
    with other_process() as other:
        # In use, and idle.
        for is_used in (True, False):
            other.call(attach, held.share(), "held")
            # Its pinned memory is made once.
            other.call(content, "held")
            if not is_used:
                other.call(free, "held")
                wait_until_let_go(other)
            used = held.nbytes * is_used
            files = other.do(open_files)
            failed = set()
            for call in OF_ATTACHING:
                for after in range(MOST):
                    number = _native.host_submit(stream)
                    token = buffer.share(stream)
                    other.do(_native.host_inject, call, "other", after)
                    is_failed = fails_or_not(lambda token=token: other.call(attach_behind, token))
                    other.do(_native.host_clear_faults)
                    _native.host_complete(stream, number)
                    if not is_failed:
                        assert other.call(content) == {1}
                        other.call(free)
                    else:
                        failed.add(call)
                    wait_until(lambda used=used: other.call(attached_bytes) == used, "it is let go")
                    wait_until(lambda is_used=is_used: len(shared_blocks()) == is_used, "it is let go")
                    assert other.do(open_files) == files, call
                    if not is_failed:
                        break
                else:
                    raise AssertionError(f"{call} always fails")
            # What maps is not called.
            assert failed == set(OF_HOLDING), failed
            if is_used:
                other.call(free, "held")


def while_sharing() -> None:
    stream = gpupool.Stream()
    buffer = in_pieces()
    with other_process() as other:
        for call in ("Bind", "ExchangeCaptureMode", "StreamCaptureStatus", "StreamQuery", "EventRecord", "EventCreate"):
            has_failed = False
            for after in range(MOST):
                number = _native.host_submit(stream)
                _native.host_inject(call, "other", after)
                has_failed |= (is_failed := fails_or_not(lambda: buffer.share(stream)))
                _native.host_clear_faults()
                _native.host_complete(stream, number)
                if not is_failed:
                    break
            assert has_failed or call == "EventCreate", call
        # What fails as the block is asked for fails in the process that asks.
        for call in ("ExtentExport", "EventExport", "Bind", "ExchangeCaptureMode"):
            has_failed = False
            # Some of them are only questions whose answer can wait, so that not each failure is one.
            for after in range(8):
                number = _native.host_submit(stream)
                token = buffer.share(stream)
                _native.host_inject(call, "other", after)
                has_failed |= (is_failed := fails_or_not(lambda token=token: other.call(attach_behind, token)))
                _native.host_clear_faults()
                _native.host_complete(stream, number)
                if not is_failed:
                    other.call(free)
                wait_until_let_go(other)
                other.do(gpupool.empty_cache)
            assert has_failed, call
        other.call(attach, buffer.share())
        assert other.call(content) == {1}


def while_letting_go() -> None:
    buffer = in_pieces()
    with other_process() as other:
        for call in ("Bind", "ExchangeCaptureMode", "EventQuery", "EventRecord"):
            other.call(attach, buffer.share())
            other.call(fill, 1)
            for after in range(3):
                other.do(_native.host_inject, call, "other", after)
            other.call(free)
            wait_until_let_go(other)
            other.do(_native.host_clear_faults)
        other.call(attach, buffer.share())
        assert other.call(content) == {1}
