"""Frameworks that gpupool plugs into: imported when first used, never before, and refused if missing or too old."""

import importlib
import re
import threading
from collections.abc import Callable
from types import ModuleType

from gpupool._native import LibraryNotFound, set_stream_source

# What names the current stream on a device, by its address, in each framework that is enabled; the last one counts.
_sources: list[Callable[[int], int]] = []
_lock = threading.Lock()


def require(name: str, minimum: tuple[int, ...], package: str) -> ModuleType:
    """Import a framework, of this version at least; any version for `()`. `package` is what pip calls it.

    Raises LibraryNotFound with what mends it.
    """
    wanted = ".".join(map(str, minimum))
    mend = f"pip install '{package}{'>=' if wanted else ''}{wanted}'"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise LibraryNotFound(f"{name} cannot be imported: {error}. It is needed here: {mend}") from error
    found = str(getattr(module, "__version__", ""))
    numbers = tuple(int(number) for number in re.findall(r"\d+", found.split("+")[0])[: len(minimum)])
    if numbers < minimum:
        raise LibraryNotFound(f"{name} {found or 'of an unknown version'} is too old: {wanted} is needed: {mend}")
    return module


def follow(source: Callable[[int], int]) -> None:
    """Let calls that name no stream follow a framework's current one: ``source(device) -> address``."""
    with _lock:
        if source in _sources:
            _sources.remove(source)
        _sources.append(source)
        set_stream_source(source)


def unfollow(source: Callable[[int], int]) -> None:
    """Follow it no longer, but again the one that was enabled before it."""
    with _lock:
        if source in _sources:
            _sources.remove(source)
        set_stream_source(_sources[-1] if _sources else None)
