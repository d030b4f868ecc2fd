"""The import of a framework when it is first used, and the choice of the framework whose streams gpupool follows."""

import importlib
import operator
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from gpupool._native import InvalidValue, LibraryNotFound, MemPool, PoolToken, set_stream_source, use_mem_pool

# The functions that return the address of the current stream on a device, one for each framework that is enabled; the
# last one counts.
_sources: list[Callable[[int], int]] = []
_lock = threading.Lock()


def require(name: str, minimum: tuple[int, ...], package: str) -> ModuleType:
    """Import a framework of at least this version, and return its module.

    Args:
        name: The name of the module.
        minimum: The lowest version; () for any version.
        package: The name that pip has for the framework.

    Raises:
        LibraryNotFound: The framework is missing or too old; the message says how to install it.
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


class MissingName(LibraryNotFound, AttributeError):
    """A name that is not there without a framework: ``help`` and ``hasattr`` take it for one that never is."""


def require_name(name: str, minimum: tuple[int, ...], package: str) -> ModuleType:
    """Import a framework as :func:`require`, for a name of a module of gpupool's.

    Raises:
        MissingName: The framework is missing or too old.
    """
    try:
        return require(name, minimum, package)
    except LibraryNotFound as error:
        raise MissingName(*error.args) from error


def wrong(name: str, value: object, accepted: str) -> InvalidValue:
    """Return the error of an argument that cannot be right."""
    return InvalidValue(f"{name} is {value!r}: give {accepted}")


def index_of(name: str, number: Any, accepted: str) -> int:
    """Return a number that was given as an argument.

    Raises:
        InvalidValue: It is none.
    """
    try:
        index = operator.index(number)
    except TypeError:
        raise wrong(name, number, accepted) from None
    if isinstance(number, bool):
        raise wrong(name, number, accepted)
    return index


def count_of(name: str, value: Any, least: int = 0, end: int = 2**63) -> int:
    """Return a number that is at least one and less than another.

    Raises:
        InvalidValue: It is none.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = end
    if not least <= count < end or isinstance(value, bool):
        bounds = f"from {least} to 2**{end.bit_length() - 1} - 1"
        raise InvalidValue(f"{name} must be a whole number {bounds}, not {value!r}")
    return count


def device_of(pool: object) -> int:
    """Return the device of what a caller gave for a pool.

    Raises:
        InvalidValue: It is no pool.
    """
    if not isinstance(pool, MemPool | PoolToken):
        raise wrong("pool", pool, "a MemPool, its token(), or None")
    return pool.device


@contextmanager
def scope(pool: MemPool | PoolToken | None) -> Iterator[Any]:
    """Let this thread's memory come from a pool, for a ``with`` block, which gets the pool; None changes nothing."""
    if pool is None:
        yield None
    else:
        with use_mem_pool(pool):
            yield pool


def follow(source: Callable[[int], int]) -> None:
    """Let calls that name no stream follow a framework's current one: ``source(device)`` returns its address."""
    with _lock:
        if source in _sources:
            _sources.remove(source)
        _sources.append(source)
        set_stream_source(source)


def unfollow(source: Callable[[int], int]) -> None:
    """Stop following a framework's current stream, and follow again the one that was enabled before it."""
    with _lock:
        if source in _sources:
            _sources.remove(source)
        set_stream_source(_sources[-1] if _sources else None)
