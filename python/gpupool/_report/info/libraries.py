"""The libraries: which file each is, how it was found, and what other copies the process has."""

import contextlib
import os
import re

from gpupool import _native
from gpupool._native import Error, HandlePool, LibraryNotFound, Stream
from gpupool._report.info.report import Check, Library, Problem, error, tried, warning

# The pools, each with its platform and the part of its file's name after `lib`.
_POOLS: tuple[tuple[HandlePool, str, str], ...] = (
    (_native.cudnn, "cuda", "cudnn"),
    (_native.cublas, "cuda", "cublas"),
    (_native.cublaslt, "cuda", "cublasLt"),
    (_native.cusolver, "cuda", "cusolver"),
    (_native.cusparse, "cuda", "cusparse"),
    (_native.cudss, "cuda", "cudss"),
    (_native.custatevec, "cuda", "custatevec"),
    (_native.cutensornet, "cuda", "cutensornet"),
    (_native.cutensor, "cuda", "cutensor"),
    (_native.cusparselt, "cuda", "cusparseLt"),
    (_native.miopen, "hip", "MIOpen"),
    (_native.hipblas, "hip", "hipblas"),
    (_native.hipblaslt, "hip", "hipblaslt"),
    (_native.hipsolver, "hip", "hipsolver"),
    (_native.hipsparse, "hip", "hipsparse"),
    (_native.simulated, "host", "simulated"),
)
# The libraries of the drivers, and those that the pools' libraries need.
_OTHERS = ("cuda", "cudart", "nvrtc", "nvJitLink", "amdhip64")
_STEMS = (*(stem for _, _, stem in _POOLS), *_OTHERS)
# Wheels of PyTorch have some of the files with a hash in the name.
_FILE = re.compile(rf"(?:^|/)lib({'|'.join(_STEMS)})(?:-[0-9a-f]{{8,}})?\.so(?:\.\d+)*$")
# The seconds that the smoke test waits for a handle of a pool that is at its limit.
_WAIT = 1.0


def loaded_files() -> dict[str, list[str]]:
    """Return the files of these libraries that the process has loaded, by what stands after ``lib`` in their names."""
    files: dict[str, dict[str, str]] = {}
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            # address, access, offset, device, inode, path
            parts = line.rstrip("\n").split(maxsplit=5)
            match = _FILE.search(parts[5]) if len(parts) == 6 else None
            if match:
                # One file may have several names.
                files.setdefault(match[1], {}).setdefault(f"{parts[3]} {parts[4]}", parts[5])
    return {stem: sorted(files[stem].values()) for stem in _STEMS if stem in files}


def gather(runtime: str | None, devices: int, smoke_test: bool) -> tuple[list[Library], dict[str, list[str]]]:
    """Describe the libraries of the runtime, or of CUDA where there is no GPU, and all others that were loaded.

    With the smoke test they are loaded, and each makes a handle on each device.

    Returns:
        The libraries, and :func:`loaded_files`.
    """
    chosen = []
    for pool, platform, stem in _POOLS:
        expected = platform == runtime or (platform == "cuda" and runtime in (None, "host"))
        if expected or (pool.loaded and platform != "host"):
            ordinals = range(devices) if smoke_test and platform == runtime and _load(pool) else ()
            chosen.append((pool, stem, {ordinal: _try_handle(pool, ordinal) for ordinal in ordinals}))
    # After all are loaded, since one library may load others.
    files = loaded_files()
    return [_describe(pool, files.get(stem, []), smoke_test, handles) for pool, stem, handles in chosen], files


def _load(pool: HandlePool) -> bool:
    """Load the library, and return whether that worked; :func:`_describe` tells why not."""
    try:
        _ = pool.path
    except Error:
        return False
    return True


def _describe(pool: HandlePool, files: list[str], load: bool, handles: dict[int, Check]) -> Library:
    if not load and not pool.loaded:
        return Library(name=pool.name, state="not loaded", other_copies=files)
    try:
        version, path = pool.version, pool.path
    except LibraryNotFound as refusal:
        named = f"GPUPOOL_{pool.name.upper()}_PATH" in os.environ
        return Library(
            name=pool.name,
            state="broken" if refusal.is_present or named else "missing",
            error=str(refusal),
            remedy=refusal.remedy,
            other_copies=files,
        )
    except Error as refusal:
        return Library(name=pool.name, state="broken", error=str(refusal))
    own = None if path is None else os.path.realpath(path)
    return Library(
        name=pool.name,
        state="loaded",
        version=None if version is None else ".".join(map(str, version)),
        path=path,
        origin=pool.origin,
        other_copies=[file for file in files if os.path.realpath(file) != own],
        handles=handles,
    )


def _try_handle(pool: HandlePool, device: int) -> Check:
    """Borrow a handle, which is made if none is idle."""
    # A new stream rather than the current one, which a framework may have to name.
    return tried(lambda: Stream(device), lambda stream: pool.lease(stream, timeout=_WAIT).release())


def problems(libraries: list[Library], files: dict[str, list[str]], explained: set[str]) -> list[Problem]:
    """Return what is wrong with the libraries.

    ``explained`` are the environment variables that were found wrong already.
    """
    found = []
    for library in libraries:
        if library.state == "broken" and f"GPUPOOL_{library.name.upper()}_PATH" not in explained:
            found.append(error(library.error or f"{library.name} cannot be used"))
        found += [error(check.error) for check in library.handles.values() if check.error]
    for stem, copies in files.items():
        if len(copies) > 1:
            found.append(
                warning(
                    f"the process has {len(copies)} copies of lib{stem}: {', '.join(copies)}. Handles of one mean "
                    "nothing to the other. Keep one: uninstall the other, or let GPUPOOL_<NAME>_PATH name the one that "
                    "the frameworks load"
                )
            )
    return found + _mixtures()


def _mixtures() -> list[Problem]:
    """Return the problem that libraries of two versions of CUDA are loaded, if they are."""
    loaded: dict[int, dict[str, dict[int, str]]] = {}
    for name, cuda, packages in _native.cuda_builds():
        if cuda is not None:
            loaded.setdefault(cuda, {})[name] = packages
    if len(loaded) < 2:
        return []
    parts = [f"CUDA {cuda} ({', '.join(loaded[cuda])})" for cuda in sorted(loaded)]
    ways = []
    for kept in sorted(loaded, reverse=True):
        others = {cuda: libraries for cuda, libraries in loaded.items() if cuda != kept}
        removed = dict.fromkeys(packages[cuda] for cuda, all_of in others.items() for packages in all_of.values())
        wanted = dict.fromkeys(packages[kept] for all_of in others.values() for packages in all_of.values())
        ways.append(f"for CUDA {kept} alone: pip uninstall {' '.join(removed)}; pip install {' '.join(wanted)}")
    return [
        warning(
            f"libraries of {' and of '.join(parts)} are used together. Each needs others of its own version, so "
            f"that there are two of these, with memory for each. Keep one version, {'; '.join(ways)}"
        )
    ]
