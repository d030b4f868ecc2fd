"""What NVIDIA's own profiling library, CUPTI, receives of gpupool's ranges."""

import sysconfig
from pathlib import Path

import pytest
from gpu_helpers import run_program


def find_cupti() -> Path | None:
    folders = [Path(sysconfig.get_path("purelib")) / "nvidia", *Path("/usr/local").glob("cuda*")]
    found = (file for folder in folders for file in sorted(folder.rglob("libcupti.so.1?")))
    return next(found, None)


def test_cupti_receives_the_ranges():
    cupti = find_cupti()
    if cupti is None:
        pytest.skip("needs CUPTI: pip install nvidia-cuda-cupti")
    variables = {"GPUPOOL_NVTX": "1", "NVTX_INJECTION64_PATH": str(cupti)}
    run_program("telling/ranges_through_cupti.py", **variables)
