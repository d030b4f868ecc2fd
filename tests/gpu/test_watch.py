"""Others in a process that is watched: they get memory that a cache has, and what they hold is known.

Each test fills the device in a process of its own. So nothing else may run on it meanwhile.
"""

import contextlib
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpupool
import pytest
from gpu_helpers import PROGRAMS, import_or_skip
from processes import environment_with, succeeded

pytestmark = pytest.mark.alone

LIBRARY = Path(gpupool.__file__).parent / "lib/libgpupool_watch.so"
TAKERS = ["nccl", "jax", "of_the_driver", "cublas"]
# NVIDIA's tools that look on from inside of a process: where their installers leave them, and what they are told.
TOOLS = {
    "compute-sanitizer": ("/usr/local/cuda*/compute-sanitizer", "--tool memcheck --report-api-errors no"),
    "ncu": ("/opt/nvidia/nsight-compute/*", "--clock-control none --launch-count 2"),
    "nsys": (
        "/opt/nvidia/nsight-compute/*/host/target-linux-x64",
        "profile --trace cuda --output report",
    ),
}


def start(name, *arguments, is_watched=True, under=(), **variables):
    """Run a program, watched or not, and print how it ends as a paragraph: `-s` shows what a page quotes."""
    before = os.environ.get("LD_PRELOAD", "")
    preload = f"{LIBRARY}:{before}" if before else str(LIBRARY)
    variables |= {"LD_PRELOAD": preload} if is_watched else {}
    command = [*under, sys.executable, PROGRAMS / "watch" / name, *arguments]
    environment = environment_with((), PYTHONWARNINGS="ignore", **variables)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    how = " ".join([*map(os.path.basename, under[:1]), "gpupool run --watch" if is_watched else "python"])
    errors = re.findall(
        r"^.*(?:out of memory|OUT_OF_MEMORY|ALLOC_FAILED|answered|Failed).*$", done.stderr, re.MULTILINE
    )
    print("", " ".join([how, name, *arguments]), done.stdout.rstrip(), *errors[-1:], "", sep="\n")
    return done


def skip_without(taker):
    """Skip a test of what is not installed."""
    import_or_skip("torch")
    if taker == "jax":
        import_or_skip("jax")


@pytest.mark.parametrize("taker", TAKERS)
def test_who_takes_memory_gets_what_a_cache_has(taker):
    skip_without(taker)
    done = start("takers.py", "gpupool", taker)
    assert done.returncode == 0, done.stdout + done.stderr


# Without it, and on PyTorch's own allocator: what the feature is for.
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("memory", ["gpupool", "pytorch"])
def test_who_takes_memory_fails_unwatched(memory, taker):
    skip_without(taker)
    done = start("takers.py", memory, taker, is_watched=False)
    assert "cached" in done.stdout, done.stderr
    assert done.returncode != 0, f"{taker} got memory without it: {done.stdout}"


def test_what_each_library_holds_is_what_nvml_counts():
    import_or_skip("torch")
    succeeded(start("holders.py"))


def test_ranks_on_two_gpus_get_what_their_caches_have(tmp_path):
    skip_without("nccl")
    if gpupool.device_count() < 2:
        pytest.skip("needs two GPUs")

    def run(rank):
        return start("takers.py", "gpupool", "nccl", RANK=rank, WORLD_SIZE="2", MEETING=str(tmp_path / "meeting"))

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(run, "01"):
            assert done.returncode == 0, done.stdout + done.stderr


# They need memory of the device themselves, so the cache has less of it.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tool", TOOLS)
def test_beside_a_tool_that_is_in_the_process(tool, tmp_path, monkeypatch):
    skip_without("of_the_driver")
    # Where it leaves its report.
    monkeypatch.chdir(tmp_path)
    folder, options = TOOLS[tool]
    places = [shutil.which(tool), *glob.glob(f"{folder}/{tool}")]
    if not (found := next(filter(None, places), None)):
        pytest.skip(f"needs {tool}")
    done = start("takers.py", "gpupool", "of_the_driver", "20", under=(found, *options.split()))
    assert "of_the_driver got its memory" in done.stdout, done.stdout + done.stderr
    if tool == "compute-sanitizer":
        assert "ERROR SUMMARY: 0 errors" in done.stdout, done.stdout


@contextlib.contextmanager
def mps():
    """Run NVIDIA's daemon that has the GPU for all processes, and give the variables by which they find it."""
    if not (control := shutil.which("nvidia-cuda-mps-control")):
        pytest.skip("needs nvidia-cuda-mps-control")
    # Sockets' paths are short.
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = environment_with((), **variables)
        subprocess.run([control, "-d"], env=environment, check=True, timeout=60)
        try:
            yield variables
        finally:
            subprocess.run([control], input="quit\n", text=True, env=environment, check=True, timeout=60)


def test_under_mps():
    skip_without("of_the_driver")
    with mps() as variables:
        if start("takers.py", "pytorch", "cublas", "20", is_watched=False, **variables).returncode:
            pytest.skip("programs do not run under MPS here")
        done = start("takers.py", "gpupool", "of_the_driver", **variables)
        assert done.returncode == 0, done.stdout + done.stderr
