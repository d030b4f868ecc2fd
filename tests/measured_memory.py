"""A plugin that tells which tests take more memory of a GPU than their marker `device_memory` says, programs included.

``PYTHONPATH=tests python -m pytest -p measured_memory tests/gpu`` runs them one after the other, on GPUs that nobody
else uses, and prints a line for each that takes more. NVML is asked every few milliseconds, and may miss a short peak.
"""

import threading
from collections.abc import Iterator

import gpupool
import pytest
from gpupool import _native
from gpupool._cli.top.nvml import Nvml
from memory_tokens import GIB, needed

# Seconds between two looks.
PAUSE = 0.005
told: list[tuple[float, int, str]] = []


class Peak:
    """The most of any GPU's memory that is used meanwhile, beyond what is used at the start."""

    def __init__(self) -> None:
        self._nvml = Nvml()
        self._uuids = [_native.device_info(device)["uuid"] for device in range(gpupool.device_count())]
        self._before = self._used()
        self.nbytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _used(self) -> list[int]:
        return [(self._nvml.memory(uuid) or (0, 0))[0] for uuid in self._uuids]

    def _watch(self) -> None:
        while not self._is_over.wait(PAUSE):
            more = max(now - then for now, then in zip(self._used(), self._before, strict=True))
            self.nbytes = max(self.nbytes, more)

    def end(self) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure what a test takes."""
    peak = Peak()
    try:
        return (yield)
    finally:
        peak.end()
        if not item.get_closest_marker("alone"):
            told.append((peak.nbytes / GIB, needed(item), item.nodeid))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tests that took more than they say, those that took most first."""
    more = [each for each in told if each[0] > each[1]]
    terminalreporter.section(f"{len(more)} of {len(told)} tests take more memory than they say")
    for took, said, name in sorted(more, reverse=True):
        terminalreporter.line(f"{took:6.2f} GiB of {said}  {name}")
    if told:
        terminalreporter.line(f"The most is {max(told)[0]:.2f} GiB, in {max(told)[2]}")
