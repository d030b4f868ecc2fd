"""The module with RMM's resources in C++, which is compiled once for all tests of the same sources."""

import fcntl
import functools
import hashlib
from pathlib import Path
from types import ModuleType

import pytest
from gpupool._compiled import cache
from gpupool._rmm import commands, library
from gpupool._torch import compiler

KEPT = Path(__file__).parents[2] / "build" / "rmm-tests"


def cache_of(rmm: ModuleType) -> Path:
    """Return the folder that is XDG_CACHE_HOME for it: another for each file that has a part in making it."""
    digest = hashlib.sha256(library.cache_path(rmm).name.encode())
    for part in (cache, commands, compiler, library):
        digest.update(Path(part.__file__).read_bytes())
    return KEPT / digest.hexdigest()[:16]


@functools.cache
def compiled_module(rmm: ModuleType) -> ModuleType:
    """Import the module, which the first test compiles.

    Raises:
        gpupool._rmm.library.NoLibrary: It cannot be.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    folder = cache_of(rmm)
    with pytest.MonkeyPatch.context() as patch, open(folder.with_suffix(".lock"), "w") as lock:
        # Tests of other processes may want the same.
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return library.load(rmm)
