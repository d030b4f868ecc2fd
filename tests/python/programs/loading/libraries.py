"""Where a library is found, what is told of it, and what is told where it is not."""

import ctypes
import re
import shutil
import sys
from pathlib import Path

import gpupool
from errors import assert_says, assert_starts, raised


def not_found(name):
    """Return the error where a library is not found."""
    return raised(gpupool.LibraryNotFound, lambda: getattr(gpupool, name).path)


def is_found(name, file, *loaded_first):
    """Find the library as this file, also when others were loaded first."""
    for other in loaded_first:
        ctypes.CDLL(other)
    path = getattr(gpupool, name).path
    assert path == file, f"{name} is {path}, not {file}"


def is_of_version(name, version):
    """Tell the version, if it can be told without a handle, and that none can be made without a GPU."""
    pool = getattr(gpupool, name)
    assert ".".join(map(str, pool.version or ())) == version, f"{name} is of version {pool.version}, not {version}"
    assert not pool.available, f"{name} is available without a GPU"


def is_refused(name, *said):
    """Find no library, and say all this in the error."""
    message = str(not_found(name))
    assert_starts(message, f"{name} was not found.")
    assert_says(message, *said)


def is_tried_only_as(name, said):
    """Find no library, and say that only this was tried."""
    message = str(not_found(name))
    assert message.count("tried") == 1, f"more than one place was tried: {message}"
    assert_says(message, f"tried {said}")


def is_never_tried_as(name, pattern):
    """Find no library, and try none of these."""
    message = str(not_found(name))
    assert not re.search(pattern, message), f"another major version was tried: {message}"


def is_the_copy_that_is_loaded(name, file):
    """Take a copy that the process has, and load no other."""
    ctypes.CDLL(file)
    path = getattr(gpupool, name).path
    assert path == file, f"{name} is {path}, not the copy that is loaded"
    mapped = set(re.findall(rf"/\S*lib{name}\S*", Path("/proc/self/maps").read_text()))
    assert mapped == {file}, f"the process has {mapped}"


def is_too_old_as_loaded(name, file, symbol):
    """Take a copy that the process has also if it cannot be used."""
    ctypes.CDLL(file)
    message = str(not_found(name))
    assert_says(message, f"{file} (already loaded): lacks the symbol {symbol}, so it is too old")


def is_found_once_it_is_installed(name, template, target):
    """Look for a library anew as long as it is not found."""
    not_found(name)
    Path(target).parent.mkdir(parents=True)
    shutil.copy(template, target)
    assert getattr(gpupool, name).path == target, f"{name} is {getattr(gpupool, name).path}"


def has_origin(origin, *names):
    """Ask libraries, in this order, how they were found."""
    for name in names:
        assert getattr(gpupool, name).origin == origin, f"{name}: {getattr(gpupool, name).origin}, not {origin}"


def loaded_has_origin(origin, name, file):
    """Have a library that was loaded first say that it was found so."""
    ctypes.CDLL(file)
    has_origin(origin, name)


def is_loaded_when_first_used():
    """Tell whether a pool's library is loaded, and load none for that."""
    pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None)
    assert [gpupool.cusparse.loaded, gpupool.cusparse.loaded] == [False, False], "asking whether it is loaded loads it"
    assert gpupool.cusparse.version == (1, 2, 3), f"the version is {gpupool.cusparse.version}"
    assert gpupool.cusparse.loaded, "the version is told of a library that is not loaded"
    assert not gpupool.cublas.loaded, "a library that is missing is loaded"
    assert not gpupool.cublas.available, "a library that is missing is available"
    assert not gpupool.cublas.loaded, "a library that is missing is loaded once it was asked for"
    assert gpupool.simulated.loaded, "the simulated library is not loaded"
    assert pool.loaded, "a pool of one's own functions is not loaded"
    assert (pool.origin, gpupool.simulated.origin) == (None, None), "what is no file was found somewhere"


def is_present(whether, remedy):
    """Tell a library that is missing from one that cannot be used, and always what helps."""
    error = not_found("cusparse")
    assert error.is_present == (whether == "present"), f"is_present is {error.is_present}: {error}"
    assert error.library == "cusparse", f"the library is {error.library}"
    assert len(error.tried) > 0, "no place was tried"
    assert error.remedy == remedy, f"what helps is {error.remedy!r}"


def gives_no_handle_without_a_gpu(*said):
    """Say in the error why."""
    message = str(raised(gpupool.RuntimeUnavailable, gpupool.cudnn.handle))
    start = "the cuda runtime is unavailable: no NVIDIA driver was found (libcuda.so.1: "
    assert_starts(message, start)
    assert_says(message, *said)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
