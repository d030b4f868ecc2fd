"""Others in a process that is watched: they get memory that a cache has, and what they hold is known.

Each test fills the device in a process of its own. So nothing else may run on it meanwhile.
"""

import os
import re
from pathlib import Path

import gpupool
import pytest
from gpu_helpers import PROGRAMS, import_or_skip
from processes import start_python, succeeded

pytestmark = pytest.mark.alone

LIBRARY = Path(gpupool.__file__).parent / "lib/libgpupool_watch.so"
TAKERS = ["nccl", "jax", "of_the_driver", "cublas"]


def start(name, *arguments, is_watched):
    """Run a program, watched or not, and print how it ends as a paragraph: `-s` shows what a page quotes."""
    before = os.environ.get("LD_PRELOAD", "")
    preload = f"{LIBRARY}:{before}" if before else str(LIBRARY)
    variables = {"LD_PRELOAD": preload} if is_watched else {}
    done = start_python(PROGRAMS / "watch" / name, *arguments, timeout=100, PYTHONWARNINGS="ignore", **variables)
    how = "gpupool run --watch" if is_watched else "python"
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
    done = start("takers.py", "gpupool", taker, is_watched=True)
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
    succeeded(start("holders.py", is_watched=True))
