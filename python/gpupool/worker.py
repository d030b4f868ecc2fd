"""The settings of gpupool in a worker process, in one description for every launcher.

>>> settings = gpupool.worker.Settings(enable=["cupy"], memory_fraction=0.9, warm={"cublas": 2})
>>> gpupool.worker.set_up(settings)  # in the worker process itself

:mod:`gpupool.dask` and :mod:`gpupool.ray` do this on every worker of a cluster. With any other launcher set the
environment variable ``GPUPOOL_WORKER`` to :meth:`Settings.to_json` for the workers, and let each call
:func:`set_up` without arguments: as ``initializer`` of a ``multiprocessing`` pool, or in the first line of a program
that ``mpirun`` or ``torchrun`` starts. Importing gpupool does not set anything up, because schedulers and parents of
workers import it too.
"""

import dataclasses
import functools
import importlib
import json
import numbers
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import gpupool
from gpupool import Error, HandlePool, InvalidValue, _native
from gpupool._frameworks import plug as _plug
from gpupool._report import summary as _summary
from gpupool._report.printable import printable

__all__ = ["VARIABLE", "SetUpFailed", "Settings", "set_up", "stats", "tear_down", "warm"]

# The environment variable with a worker's settings, as JSON.
VARIABLE = "GPUPOOL_WORKER"

_FRAMEWORKS = ("cuda_core", "cupy", "numba", "rmm", "torch", "warp")


class SetUpFailed(Error):
    """A worker could not be set up. The message says which worker, what failed, and why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a worker process.

    Raises:
        gpupool.InvalidValue: A setting is invalid; this is raised on the client already.
    """

    enable: Sequence[str] = ()
    """The frameworks to call ``gpupool.<name>.enable()`` for, in this order."""
    memory_fraction: float | None = None
    """The part of each device's memory that the process may reserve through gpupool, 0 to 1."""
    memory_bytes: int | None = None
    """The bytes of each device's memory that the process may reserve; with both, the lesser counts."""
    handle_limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The most handles on each device, by the name of the pool, as :attr:`gpupool.HandlePool.limit`."""
    warm: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The number of handles to make ahead of need on the current device, by the name of the pool."""
    guarantee: int | None = None
    """The bytes of each device that the process is never asked to go below.

    With this or one of the three that follow the process becomes a neighbour: see :func:`gpupool.set_neighbour`.
    """
    most: int | None = None
    """The bytes of each device beyond which the process is asked for memory first."""
    priority: int | None = None
    """How much the process matters: those with the lowest number are asked for memory first; without one it is 0."""
    name: str | None = None
    """The process's name as a neighbour, by default that of the worker in error messages."""

    def __post_init__(self) -> None:
        # The settings are compared and sent in one form, and do not change when the caller's own objects do.
        for field, check in _CHECKS.items():
            object.__setattr__(self, field, check(field, getattr(self, field)))
        if self.most is not None and self.most < (self.guarantee or 0):
            raise InvalidValue(
                f"guarantee={self.guarantee} is above most={self.most}: lower the guarantee, or raise the most"
            )

    def to_json(self) -> str:
        """Return the settings that differ from the defaults, as JSON for ``GPUPOOL_WORKER``."""
        given = {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, (), {})}
        return json.dumps(given)

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        """Return the settings that :meth:`to_json` wrote.

        Raises:
            gpupool.InvalidValue: The text is anything else.
        """
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidValue(f"the settings are not JSON: {error}") from error
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(fields, dict) or not fields.keys() <= set(names):
            raise InvalidValue(f"the settings are one JSON object with some of {', '.join(names)}; they are {text}")
        try:
            return cls(**fields)
        except TypeError as error:
            raise InvalidValue(f"the settings have a value of a wrong type: {error}") from error

    @classmethod
    def from_environment(cls) -> "Settings":
        """Return the settings in ``GPUPOOL_WORKER``; without the variable, the defaults.

        Raises:
            gpupool.InvalidValue: The variable's value is wrong.
        """
        text = os.environ.get(VARIABLE)
        if not text:
            return cls()
        try:
            return cls.from_json(text)
        except InvalidValue as error:
            raise InvalidValue(f"{VARIABLE}: {error}") from error


def _names(what: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str):
        raise InvalidValue(f"{what} is a list of names: give [{names!r}]")
    if not isinstance(names, Iterable):
        raise InvalidValue(f"{what} is a list of names, not {names!r}")
    found = tuple(names)
    for name in found:
        if name not in _FRAMEWORKS:
            raise InvalidValue(f"{name!r} is not a framework to enable; there are: {', '.join(_FRAMEWORKS)}")
    return found


def _fraction(what: str, value: Any) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:
        raise InvalidValue(f"{what}={value!r} is no fraction: give 0 to 1")
    return float(value)


def _counts(what: str, counts: Any, least: int) -> dict[str, int]:
    if not isinstance(counts, Mapping):
        raise InvalidValue(f"{what} gives a number for each name of a pool, as in {{'cublas': 2}}; it is {counts!r}")
    return {_pool(name).name: _plug.count_of(f"{what}[{name!r}]", count, least) for name, count in counts.items()}


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"{what}={value!r} is no text")
    return value


def _optional(check: Callable[..., Any], *bounds: int) -> Callable[[str, Any], Any]:
    return lambda what, value: None if value is None else check(what, value, *bounds)


# What returns a setting in its one form, or raises InvalidValue.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "enable": _names,
    "memory_fraction": _optional(_fraction),
    "memory_bytes": _optional(_plug.count_of),
    "handle_limits": functools.partial(_counts, least=1),
    "warm": functools.partial(_counts, least=0),
    "guarantee": _optional(_plug.count_of),
    "most": _optional(_plug.count_of),
    "priority": _optional(_plug.count_of, -(2**31), 2**31),
    "name": _optional(_text),
}


def _pool(name: str) -> HandlePool:
    pool = getattr(_native, name, None) if isinstance(name, str) else None
    if not isinstance(pool, HandlePool):
        known = sorted(key for key, value in vars(_native).items() if isinstance(value, HandlePool))
        raise InvalidValue(f"there is no pool {name!r}; there are: {', '.join(known)}")
    return pool


@dataclasses.dataclass
class _Setup:
    """The settings that were applied in this process, the holders that asked for them, and how to undo them."""

    settings: Settings
    undo: ExitStack
    holders: set[str]
    has_devices: bool = False


_setup: _Setup | None = None
_failure: str | None = None
_lock = threading.Lock()


def _forget() -> None:
    """Forget, in a forked child, what was set up in its parent, and replace the lock, which may be held for ever."""
    global _setup, _failure, _lock
    _setup, _failure, _lock = None, None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def _doing(what: str, worker: str) -> Iterator[None]:
    """Say in which worker and in which step an error came up, and keep that for :func:`stats`."""
    global _failure
    try:
        yield
    except Exception as error:
        place = f"process {os.getpid()} on {socket.gethostname()}"
        _failure = f"{printable(worker) or 'worker'} ({place}): {what} failed: {type(error).__name__}: {error}"
        raise SetUpFailed(_failure) from error


def _check(settings: object) -> None:
    if not isinstance(settings, Settings | None):
        raise InvalidValue(
            f"settings is {settings!r}: give a gpupool.worker.Settings, or None for those of GPUPOOL_WORKER"
        )


def set_up(
    settings: Settings | None = None, *, worker: str = "", holder: str = "", before_devices: bool = False
) -> None:
    """Set this process up with the settings.

    A second call with the same settings does nothing. Other settings replace the previous ones. If any of it fails, all
    of it is undone. Memory limits apply to devices that are in use, and to those used later.

    Args:
        settings: The settings; by default those of ``GPUPOOL_WORKER``.
        worker: The name of the process in error messages.
        holder: The name of the worker that calls this, if several share one process: it is undone when the last of
            them calls :func:`tear_down`.
        before_devices: Leave out everything that would initialise the GPU driver, for launchers that assign devices to
            a process later: handles are then created by :func:`warm`. A process that the settings make a neighbour
            then becomes one by that, or with the first device that it uses, by the variables of its environment that
            say so.

    Raises:
        SetUpFailed: Something failed; the exception's cause is the error itself.
    """
    global _setup, _failure
    _check(settings)
    with _lock:
        _failure = None
        if settings is None:
            with _doing("reading the settings", worker):
                settings = Settings.from_environment()
        if _setup is None or _setup.settings != settings:
            holders = set() if _setup is None else _setup.holders
            _undo(worker)
            _setup = _Setup(settings, _apply(settings, worker, before_devices), holders)
        if not before_devices:
            try:
                _use_devices(_setup, worker)
            except SetUpFailed:
                _undo("")
                raise
        _setup.holders.add(holder)


def _apply(settings: Settings, worker: str, before_devices: bool) -> ExitStack:
    """Do all that needs no device, and return what undoes it."""
    with ExitStack() as undo:
        if settings.memory_fraction is not None or settings.memory_bytes is not None:
            with _doing("limiting memory", worker):
                former = _native.set_memory_limit(settings.memory_fraction, settings.memory_bytes)
            undo.callback(_native.set_memory_limit, *former)
        for name, limit in settings.handle_limits.items():
            pool = _pool(name)
            undo.callback(setattr, pool, "limit", pool.limit)
            with _doing(f"limiting the handles of {name}", worker):
                pool.limit = limit
        for name in settings.enable:
            with _doing(f"enabling {name}", worker):
                framework = importlib.import_module(f"gpupool.{name}")
                framework.enable()
            undo.callback(framework.disable)
        if before_devices and _makes_neighbour(settings):
            with _doing("becoming a neighbour", worker):
                for variable, value in _neighbour_variables(settings, worker).items():
                    undo.callback(_set_variable, variable, os.environ.get(variable))
                    _set_variable(variable, value)
        return undo.pop_all()


def _makes_neighbour(settings: Settings) -> bool:
    return any(value is not None for value in (settings.guarantee, settings.most, settings.priority, settings.name))


def _neighbour_variables(settings: Settings, worker: str) -> dict[str, str | None]:
    """Return what the environment is to say of a process that is to be a neighbour; None for what it is not to say."""
    place, name = (os.environ.get(variable) for variable in ("GPUPOOL_NEIGHBOURS", "GPUPOOL_NEIGHBOUR_NAME"))
    # More than there are addresses for is refused there.
    told = {
        "GUARANTEE": None if settings.guarantee is None else min(settings.guarantee, 2**47),
        "MOST": None if settings.most is None else min(settings.most, 2**47),
        "PRIORITY": settings.priority,
    }
    return {
        "GPUPOOL_NEIGHBOURS": "1" if place in (None, "", "0") else place,
        "GPUPOOL_NEIGHBOUR_NAME": settings.name or worker or name,
        **{f"GPUPOOL_NEIGHBOUR_{what}": None if number is None else str(number) for what, number in told.items()},
    }


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _use_devices(setup: _Setup, worker: str) -> None:
    """Do what needs the devices, once."""
    if setup.has_devices:
        return
    if _makes_neighbour(setup.settings):
        with _doing("becoming a neighbour", worker):
            _become_neighbour(setup, worker)
    for name, count in setup.settings.warm.items():
        with _doing(f"making {count} handles of {name}", worker):
            _pool(name).warm(count)
    setup.has_devices = True


def _become_neighbour(setup: _Setup, worker: str) -> None:
    settings = setup.settings
    for device in range(gpupool.device_count()):
        # A claim makes it one, as the environment says, if it is none yet.
        gpupool.claim(0, device).release()
        (former,) = (each for each in gpupool.neighbours(device) if each.is_self)
        setup.undo.callback(gpupool.set_neighbour, former.name, former.guarantee, former.most, former.priority, device)
        name = settings.name or worker or None
        gpupool.set_neighbour(name, settings.guarantee or 0, settings.most, settings.priority or 0, device)


def _undo(worker: str) -> None:
    global _setup
    setup, _setup = _setup, None
    if setup is not None:
        with _doing("undoing the former settings", worker):
            setup.undo.close()


def warm() -> None:
    """Create the handles in the settings' ``warm`` and become a neighbour, if :func:`set_up` left that out.

    Otherwise do nothing.

    Raises:
        SetUpFailed: Something failed; what :func:`set_up` did is kept.
    """
    with _lock:
        if _setup is not None:
            _use_devices(_setup, "")


def tear_down(holder: str = "") -> None:
    """Undo :func:`set_up` when the last holder asks for it; otherwise do nothing.

    Limits and what neighbours are told are restored, and the frameworks disabled. Handles are kept until
    :meth:`gpupool.HandlePool.trim`, and the process stays a neighbour.

    Raises:
        SetUpFailed: Something cannot be undone; everything else is.
    """
    with _lock:
        if _setup is not None:
            _setup.holders.discard(holder)
            if not _setup.holders:
                _undo("")


def stats() -> dict[str, Any]:
    """Return this process's statistics as plain values, which can be sent to other processes.

    ``host`` and ``process`` say which process it is, ``settings`` what was set up (None for nothing), ``failure`` why
    the last set-up failed (None if it did not), ``runtime`` the runtime in use (None before the first use), ``memory``
    what holds each device in use, by its ordinal, as :func:`gpupool.memory_summary` describes devices, ``handles``
    :func:`gpupool.handle_stats` of all devices together by the name of the pool. No driver is initialised.

    Raises:
        gpupool.Forked: The process is a forked child of one that had used a GPU.
    """
    setup, failure = _setup, _failure
    memory = {device.device: device.to_dict() for device in _summary.gather(_native.devices_in_use()).devices}
    handles = {name: counts.as_dict() for name, counts in gpupool.handle_stats().items()}
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "settings": None if setup is None else dataclasses.asdict(setup.settings),
        "failure": failure,
        "runtime": gpupool.runtime() if memory or handles else None,
        "memory": memory,
        "handles": handles,
    }


def stats_or_failure() -> dict[str, Any]:
    """Return :func:`stats`, or only the ``failure`` of a process that cannot report them.

    A cluster's statistics then arrive from the other processes.
    """
    try:
        return stats()
    except gpupool.Error as error:
        return {"failure": f"{type(error).__name__}: {error}"}


def __dir__() -> list[str]:
    return sorted(__all__)
