"""Others in a process that is watched: they get memory that a cache has, and what they hold is known.

Each test fills the device in a process of its own. So nothing else may run on it meanwhile.
"""

import os
from pathlib import Path

import gpupool
import pytest
from gpu_helpers import PROGRAMS, import_or_skip
from processes import start_python, succeeded

pytestmark = pytest.mark.alone

LIBRARY = Path(gpupool.__file__).parent / "lib/libgpupool_watch.so"
TAKERS = ["nccl", "jax", "of_the_driver", "cublas"]


def start(name, *arguments, is_watched):
    """Run a program, watched or not."""
    before = os.environ.get("LD_PRELOAD", "")
    preload = f"{LIBRARY}:{before}" if before else str(LIBRARY)
    variables = {"LD_PRELOAD": preload} if is_watched else {}
    return start_python(PROGRAMS / "watch" / name, *arguments, timeout=100, PYTHONWARNINGS="ignore", **variables)


@pytest.mark.parametrize("taker", TAKERS)
def test_who_takes_memory_gets_what_a_cache_has(taker):
    import_or_skip("torch")
    if taker == "jax":
        import_or_skip("jax")
    done = start("takers.py", "gpupool", taker, is_watched=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


# Without it, and on PyTorch's own allocator: what the feature is for.
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("memory", ["gpupool", "pytorch"])
def test_who_takes_memory_fails_unwatched(memory, taker):
    import_or_skip("torch")
    if taker == "jax":
        import_or_skip("jax")
    done = start("takers.py", memory, taker, is_watched=False)
    assert "cached" in done.stdout, done.stderr
    assert done.returncode != 0, f"{taker} got memory without it: {done.stdout}"
    print(done.stdout, done.stderr.strip().splitlines()[-1])


def test_what_each_library_holds_is_what_nvml_counts():
    import_or_skip("torch")
    print(succeeded(start("holders.py", is_watched=True)))
