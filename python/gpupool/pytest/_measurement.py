"""One test's use of device memory: its peak, what it holds, and what it leaves behind.

gpupool has one peak of each device, so a measurement resets it as it begins. What was live then is no part of any
figure, nor is what fixtures of a wider scope allocate meanwhile.
"""

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Any

import gpupool
from gpupool import _native
from gpupool._report.units import size
from gpupool.pytest._blocks import Block, blocks_at_peak, held_blocks, new_blocks

# Events that tell what was live at a moment.
_NEEDED = {"alloc", "free_completed"}


class GpuMemory:
    """The device memory of a test, which the fixture ``gpu_memory`` is: in bytes, without what was live before it.

    It is what gpupool's pools serve, whichever framework asks, and not what library handles take. Peaks of devices do
    not add up: with several devices ``peak`` is the highest one, and ``live`` and ``leaked`` are sums.
    """

    def __init__(self, measurement: "Measurement", device: int | None = None) -> None:
        self._measurement, self._device = measurement, device

    @property
    def peak(self) -> int:
        """The most bytes that the test had live at once so far, on one device."""
        return max(self._measurement.peaks(self._device).values(), default=0)

    @property
    def live(self) -> int:
        """The bytes of the test's blocks that are live now. Blocks that were freed and wait for streams are not."""
        return sum(block.nbytes for block in self._measurement.blocks(self._device))

    @property
    def leaked(self) -> int:
        """The bytes of the test's blocks that would be left behind now: that stay live when garbage is collected."""
        return sum(block.nbytes for block in self._measurement.left(self._device))

    def on(self, device: int) -> "GpuMemory":
        """Return the memory of one device.

        Args:
            device: The device's ordinal.
        """
        return GpuMemory(self._measurement, device)

    def __repr__(self) -> str:
        live = f"peak {size(self.peak)}, live {size(self.live)}"
        return f"<gpu_memory {live}{'' if self._device is None else f', device={self._device}'}>"


class Measurement:
    """What a test uses, from :meth:`begin` to :meth:`end`.

    Args:
        device: The device that is meant; None for each that the process uses.
        record: Whether to record which lines allocate.
    """

    def __init__(self, device: int | None, record: bool) -> None:
        self._device, self._record = device, record
        # Whether the test is measured since, or was.
        self.has_begun = False
        self._has_ended = self._records = False
        self._before: list[Block] = []
        # By device: what was live before, the highest peak until it was last reset, and the peaks at the end.
        self._base: dict[int, int] = {}
        self._noted: dict[int, int] = {}
        self._last_peaks: dict[int, int] = {}
        self._left: list[Block] = []
        # What is recorded, and the time in microseconds from which on it is of this test.
        self._history: dict[str, Any] | None = None
        self._since = 0
        # Fixtures of a wider scope that are being set up, of which one may ask for another.
        self._asides = 0

    def begin(self) -> None:
        """Take what is live now for what was before the test.

        Raises:
            gpupool.Forked: The process is a forked child.
        """
        devices = _native.devices_in_use()
        if any(gpupool.memory_stats(device).live_blocks for device in devices):
            # What earlier tests left in circles of references is no block of this one when it goes.
            gc.collect()
        for device in devices:
            if gpupool.memory_stats(device).waiting_blocks:
                # Nor is what they freed, which counts as live until it is looked at. A stream that is captured cannot
                # be waited for.
                with contextlib.suppress(gpupool.Error):
                    gpupool.synchronize(device)
                    gpupool.empty_cache()
            gpupool.reset_peak_stats(device)
            self._base[device] = gpupool.memory_stats(device).live_bytes
        self._before = held_blocks()
        self._since = time.time_ns() // 1000
        self._history = gpupool.get_memory_history()
        if self._history is None and self._record:
            gpupool.record_memory_history("all", context="alloc")
            self._history, self._since, self._records = gpupool.get_memory_history(), 0, True
        self.has_begun = True

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Leave what is allocated meanwhile out of all figures: it is not the test's."""
        if self._asides or self._has_ended or not self.has_begun:
            yield
            return
        self._noted = self._peaks()
        held, live = held_blocks(), self._live()
        self._asides += 1
        try:
            yield
        finally:
            self._asides -= 1
            self._before += new_blocks(held_blocks(), held)
            for device, nbytes in self._live().items():
                self._base[device] = self._base.get(device, 0) + nbytes - live.get(device, 0)
                gpupool.reset_peak_stats(device)

    def end(self, left: list[Block]) -> None:
        """Keep the figures, with the blocks that are left, and stop recording."""
        self._left, self._last_peaks = left, self._peaks()
        self._has_ended = True
        self._before = []
        if self._records and gpupool.get_memory_history() == self._history:
            gpupool.record_memory_history(None)

    def peaks(self, device: int | None = None) -> dict[int, int]:
        """Return the peak of each device that is meant, or of one."""
        peaks = self._last_peaks if self._has_ended else self._peaks()
        return {each: nbytes for each, nbytes in peaks.items() if self._is_meant(each, device)}

    def blocks(self, device: int | None = None) -> list[Block]:
        """Return the blocks of the test that are held now."""
        found = self._left if self._has_ended else new_blocks(held_blocks(), self._before)
        return [block for block in found if self._is_meant(block.device, device)]

    def left(self, device: int | None = None) -> list[Block]:
        """Return the blocks of the test that nothing frees by itself."""
        found = self.blocks(device)
        if found and not self._has_ended:
            gc.collect()
            found = self.blocks(device)
        return found

    def look_again(self) -> None:
        """Forget what was left at the end and has been freed since."""
        if self._left:
            gc.collect()
            places = {(block.device, block.address, block.requested) for block in held_blocks()}
            self._left = [block for block in self._left if (block.device, block.address, block.requested) in places]

    def at_peak(self, device: int) -> list[Block] | None:
        """Return the blocks of the test that were held at a device's peak; None where the events are not recorded."""
        history = gpupool.get_memory_history()
        # What began, ended or changed in the test does not tell all.
        if history is None or history != self._history or history["enabled"] != "all":
            return None
        if _NEEDED & {*history["skip_actions"]}:
            return None
        traces = _native.memory_snapshot(device=device)["device_traces"]
        events = traces[device] if device < len(traces) else []
        if len(events) >= history["max_entries"] and events[0]["time_us"] >= self._since:
            # The first ones were dropped.
            return None
        return blocks_at_peak(device, self._before, [event for event in events if event["time_us"] >= self._since])

    def _is_meant(self, device: int, asked: int | None) -> bool:
        return (asked is None or device == asked) and (self._device is None or device == self._device)

    def _live(self) -> dict[int, int]:
        return {device: gpupool.memory_stats(device).live_bytes for device in _native.devices_in_use()}

    def _peaks(self) -> dict[int, int]:
        found = {}
        for device in _native.devices_in_use():
            above = gpupool.memory_stats(device).peak_live_bytes - self._base.get(device, 0)
            found[device] = max(0, above, self._noted.get(device, 0))
        return found
