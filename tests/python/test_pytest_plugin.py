"""The plugin for pytest: what it measures of a test, when it fails one, and what it then says."""

import re
import textwrap

import forks
import pytest
from _pytest.config import default_plugins

pytest_plugins = ["pytester"]

HEAD = """
    import ctypes, gc, threading, unittest
    import gpupool, pytest
    from gpupool import _native

    MIB = 1 << 20
    KEPT = []
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run tests that are given as text with the plugin, in a process of their own, which ends with what they leave.

    It finds pytest imported, and nothing used of gpupool.
    """
    # Where CI runs, pytest's summary says again, and whole, why tests failed.
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)

    def run(text, *options):
        pytester.makepyfile(textwrap.dedent(HEAD) + textwrap.dedent(text))
        return start("-p", "gpupool.pytest", "--strict-markers", "-W", "error", *options)

    return run


# All that pytest imports as it starts.
IMPORTED = ("pytest", *(f"_pytest.{name}" for name in default_plugins))


def start(*options):
    """Run pytest in this folder."""
    done = forks.start("-m", "pytest", *options, modules=IMPORTED)
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0)


def said(result):
    """Return what pytest printed, with one space where it had any."""
    return " ".join(result.stdout.str().split())


def test_the_fixture_has_the_peak_the_live_bytes_and_what_would_be_left(run):
    text = """
    KEPT.append(gpupool.empty(5 * MIB))

    def test_figures(gpu_memory):
        assert (gpu_memory.peak, gpu_memory.live, gpu_memory.leaked) == (0, 0, 0)
        first = gpupool.empty(2 * MIB)
        second = gpupool.MemPool().empty(3 * MIB, gpupool.Stream())
        second.free()
        assert (gpu_memory.peak, gpu_memory.live, gpu_memory.leaked) == (5 * MIB, 2 * MIB, 2 * MIB)
        circle = [first]
        circle.append(circle)
        del first, circle
        assert (gpu_memory.live, gpu_memory.leaked, gpu_memory.live) == (2 * MIB, 0, 0)
        assert repr(gpu_memory) == "<gpu_memory peak 5.00 MiB, live 0 B>"

    def test_the_next_starts_anew(gpu_memory):
        assert gpu_memory.peak == 0

    def test_by_its_name(request):
        KEPT.append(gpupool.empty(4 * MIB))
        memory = request.getfixturevalue("gpu_memory")
        KEPT.append(gpupool.empty(MIB))
        assert (memory.peak, memory.live) == (MIB, MIB)
    """
    run(text).assert_outcomes(passed=3)


def test_each_device_has_its_own_peak(run):
    text = """
    def on_both():
        return gpupool.empty(2 * MIB), gpupool.empty(3 * MIB, gpupool.Stream(1))

    def test_figures(gpu_memory):
        blocks = on_both()
        assert (gpu_memory.peak, gpu_memory.live, gpu_memory.leaked) == (3 * MIB, 5 * MIB, 5 * MIB)
        assert (gpu_memory.on(0).peak, gpu_memory.on(0).live, gpu_memory.on(0).leaked) == (2 * MIB, 2 * MIB, 2 * MIB)
        assert gpu_memory.on(1).peak == 3 * MIB
        assert repr(gpu_memory.on(1)) == "<gpu_memory peak 3.00 MiB, live 3.00 MiB, device=1>"

    @pytest.mark.gpu_memory(peak="3MiB")
    def test_peaks_do_not_add_up():
        on_both()

    @pytest.mark.gpu_memory(peak="2MiB")
    def test_the_highest_is_too_high():
        on_both()

    @pytest.mark.gpu_memory(peak="2MiB", device=0)
    def test_another_device_does_not_matter(gpu_memory):
        KEPT.append(on_both()[1])
        assert gpu_memory.live == 0
    """
    result = run(text)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["3.00 MiB live at once on device 1, 1.00 MiB more than the peak of 2.00 MiB *"])


def test_what_is_freed_or_was_there_before_is_no_leak(run):
    text = """
    pytestmark = pytest.mark.gpu_memory
    STATE = {"weights": gpupool.empty(2 * MIB)}

    @pytest.fixture(scope="session")
    def session():
        return gpupool.empty(MIB)

    @pytest.fixture(scope="module")
    def module(session):
        return [session, gpupool.empty(MIB)]

    @pytest.fixture(scope="session", params=[1, 2])
    def late(request, session):
        yield gpupool.empty(request.param * 8 * MIB)

    @pytest.fixture
    def returned():
        return gpupool.empty(MIB)

    @pytest.fixture
    def cleared():
        kept = []
        yield kept
        kept.clear()

    def test_of_a_wider_scope(module):
        pass

    def test_of_its_own(returned, cleared):
        cleared.append(gpupool.empty(MIB))

    def test_by_its_name(request, gpu_memory):
        gpupool.empty(2 * MIB).free()
        block = gpupool.empty(MIB)
        request.getfixturevalue("wide")
        assert (gpu_memory.peak, gpu_memory.live) == (2 * MIB, MIB)
        other = gpupool.empty(3 * MIB)
        assert (gpu_memory.peak, gpu_memory.live) == (4 * MIB, 4 * MIB)

    @pytest.fixture(scope="module")
    def wide(request):
        request.getfixturevalue("wider")
        return gpupool.empty(4 * MIB)

    @pytest.fixture(scope="session")
    def wider():
        return gpupool.empty(8 * MIB)

    def test_with_parameters(late):
        pass

    def test_garbage():
        circle = [gpupool.empty(MIB)]
        circle.append(circle)

    def test_replaced(gpu_memory):
        STATE["weights"] = gpupool.empty(2 * MIB)
        assert gpu_memory.leaked == 0

    def test_waits_for_a_stream():
        stream = gpupool.Stream()
        block = gpupool.empty(MIB)
        block.record_stream(stream)
        KEPT.append((stream, _native.host_submit(stream)))
        block.free()
        assert gpupool.memory_stats().waiting_blocks == 1

    def test_after_one_that_waits(gpu_memory):
        assert gpupool.memory_stats().waiting_blocks == 0
        block = gpupool.empty(MIB)
        assert gpu_memory.peak == MIB

    def test_of_a_thread():
        kept = []
        thread = threading.Thread(target=lambda: kept.append(gpupool.empty(MIB)))
        thread.start()
        thread.join()

    @pytest.mark.gpu_memory(leaks=True)
    def test_that_may():
        KEPT.append(gpupool.empty(MIB))
    """
    run(text).assert_outcomes(passed=11)


def test_garbage_of_earlier_tests_is_none_of_a_later_one(run):
    text = """
    @pytest.fixture(scope="module", autouse=True)
    def not_by_itself():
        gc.disable()
        yield
        gc.enable()

    def test_that_is_not_measured():
        circle = [gpupool.empty(MIB)]
        circle.append(circle)
        gpupool.empty(64 * MIB).free()

    def test_that_is_not_measured_either():
        # What is not measured resets no peak.
        assert gpupool.memory_stats().peak_live_bytes >= 64 * MIB

    def test_later(gpu_memory):
        gc.collect()
        block = gpupool.empty(MIB)
        assert (gpu_memory.peak, gpu_memory.leaked) == (MIB, MIB)
    """
    run(text).assert_outcomes(passed=3)


def test_blocks_that_are_left_fail_the_test_and_are_named(run):
    text = """
    malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(gpupool.c_api.malloc)

    @pytest.mark.gpu_memory
    def test_leaves():
        stream, pool = gpupool.Stream(), gpupool.MemPool()
        KEPT.append(gpupool.empty(3 * MIB))
        # As a framework asks for it.
        assert malloc(3 * MIB, 0, None)
        KEPT.append(pool.empty(1000, stream))
        KEPT.extend([stream, pool])

    def test_passes_afterwards(gpu_memory):
        assert gpu_memory.leaked == 0
    """
    result = run(text)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*__ test_leaves __*",
            "3 blocks left behind, 6.00 MiB, which the test's marker does not allow: gpu_memory(leaks=False)",
            "  2 x 3.00 MiB on device 0, in the default pool, of the default stream",
            "  1 x 1.00 KiB on device 0, in pool (0, *), of stream 0x*",
            "Which lines allocated them: pytest --gpu-memory-history",
            "FAILED *::test_leaves*",
        ]
    )


def test_the_lines_are_named_while_they_are_recorded(run, pytester):
    text = """
    def make(size):
        return gpupool.empty(size)

    @pytest.mark.gpu_memory(peak="4MiB")
    def test_peak():
        first = make(2 * MIB)
        first.free()
        second, third = make(3 * MIB), make(2 * MIB)
        del second, third
        fourth = make(MIB)

    @pytest.mark.gpu_memory
    def test_leaves():
        KEPT.append(make(MIB))

    def test_nothing_is_recorded_elsewhere():
        assert gpupool.get_memory_history() is None
    """
    result = run(text, "--gpu-memory-history")
    result.assert_outcomes(passed=1, failed=2)
    name = "test_the_lines_are_named_while_they_are_recorded.py"
    line = (pytester.path / name).read_text().splitlines().index("    return gpupool.empty(size)") + 1
    lines = [
        "5.00 MiB live at once on device 0, 1.00 MiB more than the peak of 4.00 MiB that the test's marker allows: "
        "gpu_memory(peak='4MiB', leaks=False)",
        "",
        "Live at the peak:",
        "  1 x 3.00 MiB on device 0, in the default pool, of the default stream",
        f"      {name}:{line} in make",
        f"      {name}:{line + 6} in test_peak",
        "  1 x 2.00 MiB on device 0, in the default pool, of the default stream",
        f"      {name}:{line} in make",
        f"      {name}:{line + 6} in test_peak",
        "*__ test_leaves __*",
        "1 block left behind, *",
        f"      {name}:{line} in make",
        f"      {name}:{line + 12} in test_leaves",
    ]
    result.stdout.fnmatch_lines(lines)
    assert "--gpu-memory-history" not in said(result)
    # A configuration file may say so too.
    pytester.makeini("[pytest]\ngpu_memory_history = true")
    again = start("-p", "gpupool.pytest")
    again.assert_outcomes(passed=1, failed=2)
    assert f"{name}:{line + 12} in test_leaves" in said(again)


def test_a_recording_of_the_users_goes_on_and_names_lines_too(run):
    text = """
    @pytest.fixture(scope="module", autouse=True)
    def recording():
        gpupool.record_memory_history(max_entries=5000)
        # More than is kept.
        for _ in range(2500):
            gpupool.empty(9 * MIB).free()
        yield
        assert gpupool.get_memory_history()["max_entries"] == 5000
        assert any(event["size"] == 9 * MIB for event in gpupool.memory_snapshot()["device_traces"][0])
        gpupool.record_memory_history(None)

    @pytest.mark.gpu_memory(peak=MIB)
    def test_peak():
        gpupool.empty(2 * MIB)
    """
    result = run(text, "--gpu-memory-history")
    result.assert_outcomes(failed=1)
    assert re.search(r"Live at the peak: 1 x 2.00 MiB [^:]*\.py:\d+ in test_peak", said(result))


def test_a_peak_that_is_not_recorded_tells_what_is_still_live(run):
    text = """
    @pytest.fixture
    def buffer():
        return gpupool.empty(MIB)

    @pytest.mark.gpu_memory(peak=2 * MIB - 1)
    def test_holds(buffer):
        gpupool.empty(MIB)

    @pytest.mark.gpu_memory(peak=0)
    def test_holds_nothing():
        gpupool.empty(MIB)
    """
    result = run(text)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "2.00 MiB (2097152 bytes) live at once on device 0, 1 B more than the peak of 2.00 MiB (2097151 bytes) *",
            "Of that is still live at the end of the call:",
            "  1 x 1.00 MiB on device 0, *",
            "*pytest --gpu-memory-history",
            "1.00 MiB live at once on device 0, 1.00 MiB more than the peak of 0 B *",
            "At the end of the call nothing of it is live any more.",
        ]
    )


def test_another_failure_is_kept_and_the_memory_told_beside_it(run):
    text = """
    @pytest.mark.gpu_memory(peak="1MiB")
    def test_fails():
        KEPT.append(gpupool.empty(2 * MIB))
        raise KeyError("its own")

    @pytest.fixture
    def breaks():
        yield
        raise KeyError("of the teardown")

    @pytest.mark.gpu_memory
    def test_breaks(breaks):
        KEPT.append(gpupool.empty(2 * MIB))

    @pytest.fixture
    def broken():
        KEPT.append(gpupool.empty(2 * MIB))
        raise KeyError("of the setup")

    @pytest.mark.gpu_memory
    def test_never_runs(broken):
        pass

    @pytest.mark.gpu_memory
    def test_skips():
        KEPT.append(gpupool.empty(2 * MIB))
        pytest.skip("its own reason")

    @pytest.mark.gpu_memory
    @pytest.mark.xfail(raises=KeyError, strict=True)
    def test_is_known_to_fail():
        KEPT.append(gpupool.empty(2 * MIB))
        raise KeyError
    """
    result = run(text, "-rs")
    result.assert_outcomes(failed=1, errors=2, skipped=1, xfailed=1)
    text = said(result)
    for words in ("KeyError: 'of the teardown'", "KeyError: 'its own'", "KeyError: 'of the setup'", "its own reason"):
        assert words in text
    # Of the test that failed and of the one whose teardown did.
    assert text.count("1 block left behind, 2.00 MiB") == 2
    assert text.count("2.00 MiB live at once") == 1
    assert text.count("The test has failed: ") == 1


def test_the_closest_marker_decides_on_each_argument(run):
    text = """
    pytestmark = pytest.mark.gpu_memory(peak="1MiB", leaks=True)

    class TestMore:
        pytestmark = pytest.mark.gpu_memory(peak="2MiB")

        def test_passes(self):
            KEPT.append(gpupool.empty(2 * MIB))

        @pytest.mark.gpu_memory(leaks=False)
        def test_leaves(self):
            KEPT.append(gpupool.empty(2 * MIB))

    @pytest.mark.parametrize("mebibytes", [1, pytest.param(2, marks=pytest.mark.gpu_memory(peak=2 * MIB)), 3])
    def test_each(mebibytes):
        gpupool.empty(mebibytes * MIB)
    """
    result = run(text, "-v")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        ["*::test_passes PASSED*", "*::test_leaves FAILED*", "*[[]1] PASSED*", "*[[]2] PASSED*", "*[[]3] FAILED*"]
    )
    assert "gpu_memory(peak='2MiB', leaks=False)" in said(result)


@pytest.fixture(scope="module")
def run_all(tmp_path_factory):
    """Return what runs the tests of several cases at once, by verbose pytest."""

    def run(texts):
        folder = tmp_path_factory.mktemp("cases")
        (folder / "test_cases.py").write_text("".join(map(textwrap.dedent, (HEAD, *texts))))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            return start("-p", "gpupool.pytest", "--strict-markers", "-W", "error", "-v")

    return run


WRONG = {
    "peak='2 GiB of'": "has peak='2 GiB of', which is no size: give bytes, or a text such as '2GiB'",
    "peak=-1": "has peak=-1, which is no size",
    "peak=True": "has peak=True, which is no size",
    "peak=1.5": "has peak=1.5, which is no size",
    "leaks='1MiB'": "has leaks='1MiB': give False",
    "device='cuda:0'": "has device='cuda:0': give a device's ordinal",
    "peek=1": "has no argument peek",
    "1": "takes keywords alone, and has 1",
}


@pytest.fixture(scope="module")
def wrong_ones(run_all):
    """Run a test with each of the wrong markers, and one without."""
    return run_all(
        (
            *(
                f"""
                @pytest.mark.gpu_memory({arguments})
                def test_{number}():
                    pass
                """
                for number, arguments in enumerate(WRONG)
            ),
            """
            def test_other():
                pass
            """,
        )
    )


@pytest.mark.parametrize(("arguments", "words"), WRONG.items())
def test_a_wrong_marker_is_an_error_that_names_it_and_the_test(wrong_ones, arguments, words):
    name = f"test_{list(WRONG).index(arguments)}"
    wrong_ones.stdout.fnmatch_lines([f"*::{name} ERROR*"])
    wrong_ones.stdout.no_fnmatch_line(f"*::{name} PASSED*")
    wrong_ones.stdout.fnmatch_lines(["*::test_other PASSED*"])
    assert re.search(rf"the marker gpu_memory of \S+::{name} {re.escape(words)}", said(wrong_ones))


def test_classes_of_unittest(run):
    text = """
    @pytest.mark.gpu_memory(peak="4MiB")
    class TestOwn(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.wide = gpupool.empty(8 * MIB)

        def setUp(self):
            self.block = gpupool.empty(2 * MIB)

        def test_attributes(self):
            self.other = gpupool.empty(MIB)

        def test_fails(self):
            self.other = gpupool.empty(4 * MIB)
            self.fail("its own")

        def test_leaves(self):
            KEPT.append(gpupool.empty(MIB))

        def test_peak(self):
            gpupool.empty(4 * MIB)
    """
    result = run(text, "-v", "--gpu-memory-history")
    result.assert_outcomes(passed=1, failed=3)
    text = said(result)
    assert "::test_attributes PASSED" in text
    assert "AssertionError: its own" in text
    assert "1 block left behind, 1.00 MiB" in text
    assert text.count("6.00 MiB live at once on device 0, 2.00 MiB more") == 2
    # Frames of unittest's are no lines of the test.
    assert "case.py" not in text


def test_what_pytest_keeps_of_a_class_is_said(run):
    text = """
    @pytest.mark.gpu_memory
    class TestOwn:
        def setup_method(self):
            self.block = gpupool.empty(MIB)

        def test_keeps(self):
            pass

    @pytest.mark.gpu_memory
    class TestFreed(TestOwn):
        def teardown_method(self):
            del self.block
    """
    result = run(text)
    result.assert_outcomes(passed=1, failed=1)
    assert "free what its attributes hold in teardown_method" in said(result)


def test_processes_of_xdist_do_not_see_each_others_memory(pytester):
    pytest.importorskip("xdist")
    pytester.makeconftest('pytest_plugins = ["gpupool.pytest"]')
    pytester.makepyfile(
        """
        import gpupool, pytest

        KEPT = []

        @pytest.mark.gpu_memory(peak="4MiB", leaks=False)
        @pytest.mark.parametrize("number", range(8))
        def test_passes(number, gpu_memory):
            block = gpupool.empty(4 << 20)
            assert gpu_memory.peak == 4 << 20

        @pytest.mark.gpu_memory
        @pytest.mark.parametrize("number", range(2))
        def test_leaves(number):
            KEPT.append(gpupool.empty(4 << 20))

        @pytest.mark.gpu_memory(peak=0)
        def test_peak():
            gpupool.empty(4 << 20)
        """
    )
    result = pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider", "--gpu-memory-history", "-v")
    result.assert_outcomes(passed=8, failed=3)
    text = said(result)
    assert text.count("] PASSED ") == 8
    assert re.search(r"1 block left behind, 4.00 MiB, .*? 1 x 4.00 MiB [^:]*\.py:\d+ in test_leaves", text)
    assert "4.00 MiB live at once on device 0, 4.00 MiB more than the peak of 0 B" in text


def test_without_the_option_nothing_of_it_is_loaded(pytester):
    pytester.makepyfile(
        """
        import sys

        import gpupool

        def test_none(request):
            assert not [name for name in sys.modules if name.startswith("gpupool.pytest")]
            assert not request.config.pluginmanager.has_plugin("gpupool.pytest")

        def test_needs_it(gpu_memory):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    assert "fixture 'gpu_memory' not found" in said(result)


def test_a_test_that_does_not_ask_for_it_is_left_alone(pytester):
    pytester.makeconftest(
        """
        pytest_plugins = ["gpupool.pytest"]

        def pytest_sessionfinish():
            from gpupool import _native

            assert _native.devices_in_use() == []
        """
    )
    pytester.makepyfile("def test_one():\n    pass")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--gpu-memory-history")
    result.assert_outcomes(passed=1)
    assert result.ret == 0


def test_markers_and_options_are_described():
    result = start("-p", "gpupool.pytest", "--help")
    assert "--gpu-memory-history" in said(result)
    result = start("-p", "gpupool.pytest", "--markers")
    assert "@pytest.mark.gpu_memory(peak=None, leaks=False, device=None): " in said(result)


def test_the_class_can_be_named_in_annotations_before_the_plugin_is_loaded(pytester):
    pytester.makeconftest('from gpupool.pytest import GpuMemory\n\npytest_plugins = ["gpupool.pytest"]')
    pytester.makepyfile(
        """
        from gpupool.pytest import GpuMemory

        def test_one(gpu_memory: GpuMemory):
            assert isinstance(gpu_memory, GpuMemory)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=1)


def test_docstrings_of_the_module():
    import gpupool.pytest as plugin

    assert all(getattr(plugin, name).__doc__ for name in plugin.__all__)
    members = [value for name, value in vars(plugin.GpuMemory).items() if not name.startswith("_")]
    assert all(value.__doc__ for value in members)
