"""Every sample of the guide and the README runs on a GPU, those too that need none."""

import os
import subprocess
import sys

import guide
import pytest


@pytest.mark.parametrize("name", guide.programs(on_gpu=True))
def test_samples_run(name, tmp_path):
    missing = guide.missing(guide.programs(on_gpu=True)[name])
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    command = [sys.executable, guide.__file__, name, "gpu"]
    # JAX leaves the GPU's memory to others as well.
    variables = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    if "requires cuDSS version" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
