"""``gpupool run`` on a GPU: frameworks' programs that do not know of gpupool."""

import re

import pytest
from gpu_helpers import PROGRAMS, import_or_skip
from gpupool._traces import trace as _trace
from processes import start_python


def run(*arguments, **variables):
    """Run a program, which must succeed; return what it printed and the report."""
    done = start_python("-m", "gpupool", "run", *arguments, timeout=110, **variables)
    assert done.returncode == 0, done.stderr
    assert "stays on its own memory" not in done.stderr, done.stderr
    return done.stdout, done.stderr


def reported(report):
    """Check that a report has all figures."""
    assert re.search(r"^enabled +\w", report, re.MULTILINE), report
    for name in ("requested at most", "reserved at most", "PyTorch's own allocator, simulated"):
        assert re.search(rf"^  {name} +[\d.]+ [KMG]?i?B", report, re.MULTILINE), report


# A child that was forked before CUDA was used works as it does without gpupool.
@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_of_pytorchs(method, tmp_path):
    import_or_skip("torch")
    path = tmp_path / "snapshot.pickle"
    printed, report = run("--torch", "--report", "--snapshot", path, PROGRAMS / "run" / "plain.py", method)
    assert printed == "True True\n"
    reported(report)
    assert _trace.read(str(path)).events > 0


def test_a_program_of_cupys():
    printed, report = run("--cupy", "--report", PROGRAMS / "run" / "cupy_plain.py")
    assert printed == "done\n"
    reported(report)
