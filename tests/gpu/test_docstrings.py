"""The examples in docstrings of what plugs into frameworks run on a GPU, where the framework is there."""

import subprocess
import sys

import docstring_examples
import pytest
from guide import is_installed

# What each module's examples import.
NEEDS = {
    "cuda_core": ["cuda.core"],
    "cupy": ["cupy"],
    "dask": ["distributed", "cupy"],
    "numba": ["numba"],
    "nvmath": ["nvmath", "cupyx"],
    "ray": ["ray", "cupy"],
    "rmm": ["rmm"],
    "warp": ["warp"],
    "worker": ["cupy"],
}


@pytest.mark.parametrize("name", NEEDS)
def test_examples_run(name, tmp_path):
    missing = [package for package in NEEDS[name] if not is_installed(package)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    command = [sys.executable, docstring_examples.__file__, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    if "requires cuDSS version" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
