"""Attached memory of a device whose peers may use it, as they may use the device's own, whoever ends first."""

import gpupool
from errors import assert_says, raised
from other_process import (
    MIB,
    OtherProcess,
    attached_bytes,
    content,
    other_process,
    shared_blocks,
    values,
    wait_until_free,
)
from waiting import wait_until

# More than half of a device of 16 MiB.
LARGE = 10 * MIB


def share(kept: dict, nbytes: int) -> gpupool.typing.ShareToken:
    """Share a buffer of device 0, and keep it."""
    kept["buffer"] = gpupool.empty(nbytes, gpupool.Stream(0))
    kept["buffer"].fill(1)
    return kept["buffer"].share()


def attached_before_and_after() -> None:
    peer = gpupool.Stream(1)
    with other_process() as owner:
        early = gpupool.attach(owner.call(share, 3 * MIB), device=0)
        assert_says(raised(gpupool.InvalidValue, lambda: early.fill(7, peer)), "enable_peer_access")
        gpupool.enable_peer_access(0, 1)
        early.fill(7, peer)
        assert values(early) == {7} == owner.call(content)
        early.record_stream(peer)
        early.free()
        late = gpupool.attach(owner.call(share, 40 * MIB), device=0)
        late.fill(8, peer)
        peer.synchronize()
        assert owner.call(content) == {8}


def attached_for_another_device() -> None:
    """The memory is device 0's, attached for device 1, whose peers are devices 0 and 2."""
    with other_process() as owner:
        attached = gpupool.attach(owner.call(share, 3 * MIB), device=1)
        for peer in (0, 2):
            gpupool.enable_peer_access(1, peer)
            attached.fill(10 + peer, gpupool.Stream(peer))
            assert values(attached) == {10 + peer} == owner.call(content)


def the_owner_ends_first() -> None:
    """The memory is device 0's, and its owner ends while another process uses it on device 1."""
    peer = gpupool.Stream(1)
    for end in (OtherProcess.leave, OtherProcess.kill):
        for device in (0, 1):
            with other_process() as owner:
                attached = gpupool.attach(owner.call(share, LARGE), device=device)
                gpupool.enable_peer_access(0, 1)
                attached.fill(5, peer)
                end(owner)
            assert values(attached) == {5}
            attached.fill(6, peer)
            assert values(attached) == {6}
            attached.free(peer)
            wait_until(lambda: attached_bytes({}) == 0, "nothing is attached")
            # There is no room for two of them.
            wait_until_free(LARGE).free()
            gpupool.empty_cache()


def fill_on_the_peer(kept: dict, byte: int) -> set[int]:
    """Fill what was attached by device 1, after that got access to device 0."""
    gpupool.enable_peer_access(0, 1)
    kept["buffer"].fill(byte, gpupool.Stream(1))
    return content(kept)


def who_attached_it_ends_first() -> None:
    """The memory is device 0's, and who uses it on device 1 ends while its owner goes on."""
    for end in (OtherProcess.leave, OtherProcess.kill):
        for device in (0, 1):
            kept = {}
            token = share(kept, LARGE)
            with other_process() as other:
                other.put("buffer", gpupool.attach, token, None, device)
                assert other.call(fill_on_the_peer, 9) == {9}
                end(other)
            wait_until(lambda: shared_blocks() == [], "the other process has let go")
            assert values(kept["buffer"]) == {9}
            kept.pop("buffer").free()
            wait_until_free(LARGE).free()
            gpupool.empty_cache()
