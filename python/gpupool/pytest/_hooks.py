"""pytest's hooks: when a test is measured, and how it fails.

A test is measured from the first of its own fixtures to the last, so that what fixtures of a wider scope keep is never
a leak. Its peak is judged at the end of its call. Its blocks are judged once its own fixtures are torn down, and the
result of the call waits for that, so that a test which leaves blocks behind has failed, and has not passed too.
"""

import unittest
from collections.abc import Generator
from typing import Any

import pytest

from gpupool.pytest._limits import USAGE, Limits, limits_of
from gpupool.pytest._measurement import GpuMemory, Measurement
from gpupool.pytest._text import of_leaks, of_peak

_OPTION = "gpu_memory_history"
# In reports: the result of the call waits for the blocks that are left, and what it is then.
_RESULT = "gpu_memory_result"
_WAITS, _PASSED, _FAILED = "waits", "passed", "failed"


class MeasuredTest:
    """A test that has a marker or the fixture.

    Args:
        item: The test.
        limits: What its markers allow.
    """

    def __init__(self, item: pytest.Item, limits: Limits) -> None:
        self._item, self.limits = item, limits
        has_option = item.config.getoption(_OPTION, default=False) or item.config.getini(_OPTION)
        self.measurement = Measurement(limits.device, bool(has_option))
        self._fixtures: list[str] = []
        # How the call ended, if it was called; what the memory says against the test; the failures that say it.
        self.call: str | None = None
        self.peak_text = self.leak_text = ""
        self.failures: list[BaseException] = []

    def begin(self, fixture: str | None = None) -> None:
        """Begin to measure, if that has not happened yet, before a fixture of the test's own is set up."""
        if fixture is not None:
            self._fixtures.append(fixture)
        if not self.measurement.has_begun:
            self.measurement.begin()
            # Finalizers of a test run in the order from the last to the first.
            self._item.addfinalizer(self._take_what_is_left)

    def judge_peak(self) -> None:
        """Note what is to be said of the peak, at the end of the call."""
        peaks = self.measurement.peaks()
        limit, device = self.limits.peak, max(peaks, key=lambda device: peaks[device], default=0)
        if limit is not None and peaks and peaks[device] > limit:
            at_peak, now = self.measurement.at_peak(device), self.measurement.blocks(device)
            self.peak_text = of_peak(self.limits.told, limit, device, peaks[device], at_peak, now)

    def judge_leaks(self) -> None:
        """Note what is to be said of blocks that were left, once the test is torn down."""
        cls = self._item.cls if isinstance(self._item, pytest.Function) else None
        is_case = isinstance(cls, type) and issubclass(cls, unittest.TestCase)
        if is_case:
            # pytest drops the instance of a TestCase after the last finalizer, and that of another class never.
            self.measurement.look_again()
        left = self.measurement.left() if self.measurement.has_begun else []
        if left and not self.limits.leaks and self.call in (_PASSED, _FAILED):
            instance = None if is_case else getattr(self._item, "instance", None)
            has_attributes = bool(getattr(instance, "__dict__", None))
            has_failed = self.call == _FAILED
            self.leak_text = of_leaks(self.limits.told, left, has_failed=has_failed, has_attributes=has_attributes)

    def fail(self, text: str) -> None:
        """Fail the test, of which nothing else is known to have failed."""
        try:
            pytest.fail(text, pytrace=False)
        except pytest.fail.Exception as failure:
            self.failures.append(failure)
            raise

    def _take_what_is_left(self) -> None:
        left = self.measurement.left()
        values = getattr(self._item, "funcargs", None)
        if left and values:
            # pytest drops what its fixtures returned after the last finalizer.
            for name in self._fixtures:
                values.pop(name, None)
            left = self.measurement.left()
        self.measurement.end(left)


_TEST = pytest.StashKey[MeasuredTest]()
# The one that runs, of which hooks of fixtures are not told.
_RUNNING = pytest.StashKey[MeasuredTest]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records lines, and its like for configuration files."""
    text = "record which lines allocate device memory in tests that the fixture or marker gpu_memory measures"
    parser.getgroup("gpupool").addoption("--gpu-memory-history", dest=_OPTION, action="store_true", help=text)
    parser.addini(_OPTION, f"{text}, as --gpu-memory-history does", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, also for --strict-markers."""
    text = "fail the test if it has more than `peak` bytes of device memory live at once, or leaves blocks behind"
    config.addinivalue_line("markers", f"{USAGE}: {text} (gpupool)")


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """Return the device memory of this test: its ``peak``, ``live`` and ``leaked`` bytes; ``on(device)`` is of one."""
    measured = request.node.stash.get(_TEST, None)
    if measured is None:
        # It was asked for by its name in the midst of the test.
        measured = _measure(request.node, limits_of(request.node) or Limits())
        measured.begin()
    return GpuMemory(measured.measurement)


def _measure(item: pytest.Item, limits: Limits) -> MeasuredTest:
    measured = item.stash[_TEST] = item.config.stash[_RUNNING] = MeasuredTest(item, limits)
    return measured


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Prepare to measure the test if it asks for it."""
    # A test may run again in the same process.
    for stash, key in ((item.stash, _TEST), (item.config.stash, _RUNNING)):
        if key in stash:
            del stash[key]
    limits = limits_of(item)
    if limits is not None or "gpu_memory" in getattr(item, "fixturenames", ()):
        _measure(item, limits or Limits())


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Begin before the first fixture of the test's own; what others allocate is not the test's."""
    measured = request.config.stash.get(_RUNNING, None)
    if measured is None:
        return (yield)
    if fixturedef.scope == "function":
        measured.begin(fixturedef.argname)
        return (yield)
    with measured.measurement.aside():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Judge the peak of the test's call."""
    measured = item.stash.get(_TEST, None)
    if measured is not None:
        measured.begin()
    try:
        result = yield
    finally:
        measured = item.stash.get(_TEST, None)
        if measured is not None:
            measured.judge_peak()
    if measured is not None and measured.peak_text:
        measured.fail(measured.peak_text)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Judge what the test has left."""
    try:
        result = yield
    finally:
        measured = item.stash.get(_TEST, None)
        if measured is not None:
            measured.judge_leaks()
        if _RUNNING in item.config.stash:
            del item.config.stash[_RUNNING]
    if measured is not None and measured.leak_text and measured.call == _PASSED:
        measured.fail(measured.leak_text)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say beside another failure what the memory says, and have the result of the call wait for the teardown."""
    report = yield
    measured = item.stash.get(_TEST, None)
    if measured is None or call.when == "setup":
        return report
    is_own = call.excinfo is not None and any(call.excinfo.value is failure for failure in measured.failures)
    if call.when == "call":
        text, heading = measured.peak_text, "gpu_memory"
        measured.call = report.outcome
        if report.passed and not measured.limits.leaks and not hasattr(report, "wasxfail"):
            setattr(report, _RESULT, _WAITS)
    else:
        text, heading = measured.leak_text, "gpu_memory at teardown"
        if measured.call == _PASSED and not measured.limits.leaks and (is_own or report.passed):
            setattr(report, _RESULT, _FAILED if is_own else _PASSED)
    if text and not is_own:
        report.sections.append((heading, text))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Show one result of a test whose blocks are judged."""
    return {
        _WAITS: ("", "", ""),
        _PASSED: ("passed", ".", "PASSED"),
        _FAILED: ("failed", "F", "FAILED"),
    }.get(getattr(report, _RESULT, ""))
