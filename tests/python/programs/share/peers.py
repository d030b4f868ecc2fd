"""Attached memory of a device whose peers may use it, as they may use the device's own."""

import sys

import gpupool
from errors import assert_says, raised
from other_process import MIB, content, other_process


def share(kept: dict, nbytes: int) -> gpupool.ShareToken:
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
        assert set(bytes(early)) == {7} == owner.call(content)
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
            assert set(bytes(attached)) == {10 + peer} == owner.call(content)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
