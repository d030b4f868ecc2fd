"""Every sample of the guide and the README runs on a GPU, those too that need none."""

import subprocess
import sys

import guide
import pytest


@pytest.mark.parametrize("name", guide.programs(on_gpu=True))
def test_samples_run(name):
    missing = guide.missing(guide.programs(on_gpu=True)[name])
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    command = [sys.executable, guide.__file__, name, "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=guide.ROOT)
    assert done.returncode == 0, done.stderr
