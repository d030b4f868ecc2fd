"""The report as data: frozen dataclasses, whose fields are the keys of the JSON.

docs/command-line.md sends the JSON's readers here; a field that goes or changes its meaning makes a new ``schema``.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from gpupool._native import Error, PoolExhausted

_Prepared = TypeVar("_Prepared")

# The version of the JSON's form.
SCHEMA = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """An error, which is something that does not work, or a warning, which is something that may surprise."""

    severity: Literal["error", "warning"]
    what: str


def error(what: str) -> Problem:
    """Return the problem of something that does not work."""
    return Problem(severity="error", what=what)


def warning(what: str) -> Problem:
    """Return the problem of something that may surprise."""
    return Problem(severity="warning", what=what)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One step of the smoke test: how long it took, or why it failed."""

    seconds: float | None
    error: str | None


def tried(prepare: Callable[[], _Prepared], work: Callable[[_Prepared], object]) -> Check:
    """Do one step of the smoke test with what is prepared for it, which takes no part of its time."""
    try:
        prepared = prepare()
        start = time.perf_counter()
        work(prepared)
        return Check(seconds=time.perf_counter() - start, error=None)
    except PoolExhausted:
        # The program has set a limit, and uses all handles that it allows.
        return Check(seconds=None, error=None)
    except Error as refusal:
        return Check(seconds=None, error=str(refusal))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """The platform in use. Without one ``name`` is None, and ``error`` says why."""

    name: str | None
    chosen_by: Literal["environment", "default"]
    """The reason for the choice: GPUPOOL_RUNTIME is set, or this is the first platform that has a device."""
    driver_version: str | None
    """The CUDA version that the driver supports, or HIP's."""
    kernel_driver: str | None
    """The version of the kernel's driver, as ``nvidia-smi`` shows it."""
    passed_over: dict[str, str]
    """The reasons why other platforms were passed over, by their names."""
    error: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Neighbours:
    """What this process has asked its neighbours for and given them, as in :class:`gpupool.typing.MemoryStats`."""

    asked_neighbours: int
    received_bytes: int
    asking_seconds: float
    asked_by_neighbours: int
    given_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A device that the process sees. Where the driver refuses to tell of it, ``error`` says so."""

    ordinal: int
    name: str | None = None
    uuid: str | None = None
    compute_capability: str | None = None
    pci_bus_id: str | None = None
    is_mig: bool = False
    is_shareable: bool = False
    """True if gpupool's memory of it can be shared with other processes."""
    is_rdma: bool = False
    """True if network cards can register gpupool's memory of it."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    """The bytes that are free; None where the process has no context on the device."""
    neighbours: Neighbours | None = None
    """What passed between this process and its neighbours; None if none of them has asked another."""
    holders: dict[str, int] = dataclasses.field(default_factory=dict)
    """The bytes that other libraries of a process that is watched hold, by their names."""
    allocation: Check | None = None
    """The smoke test's allocation."""
    error: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pinned:
    """What matters for pinned memory of the host."""

    numa_nodes: dict[int, int]
    """The NUMA nodes nearest to the devices, by the devices' ordinals."""
    lock_limit: int | None
    """The bytes that the process may lock (RLIMIT_MEMLOCK, ``ulimit -l``); None for no limit."""
    allocation: Check | None = None
    """The smoke test's allocation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Library:
    """A library whose handles gpupool pools."""

    name: str
    state: Literal["loaded", "not loaded", "missing", "broken"]
    """The state: not loaded if the program has not needed it yet, broken if a file is there that cannot be used."""
    version: str | None = None
    path: str | None = None
    origin: str | None = None
    """The way in which the file was found, as :attr:`gpupool.HandlePool.origin`."""
    other_copies: list[str] = dataclasses.field(default_factory=list)
    """The other files of the same library in the process."""
    error: str | None = None
    remedy: str | None = None
    """The command or step that brings the library."""
    handles: dict[int, Check] = dataclasses.field(default_factory=dict)
    """The smoke test's handles, by the ordinal of the device."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework that gpupool works with."""

    name: str
    packages: dict[str, str]
    """The versions of its packages, by the names that pip has for them."""
    imported: bool
    allocator: str | None = None
    """The allocator of its device memory; None where it is not imported or has none for the process."""
    uses_gpupool: bool | None = None
    """True if that allocator is gpupool."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable that is set and matters here."""

    name: str
    value: str
    known: bool
    """False for a GPUPOOL_ name that gpupool does not know."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Process:
    """The process that the report is of."""

    python: str
    executable: str
    platform: str
    forked: bool
    """True if the process was forked after the GPU was first used, so that nothing works."""
    watched: bool
    """True if other libraries' memory is counted, as in a program of ``gpupool run --watch``."""
    start_method: str | None
    """The way in which ``multiprocessing`` starts workers; None where that was not chosen yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Info:
    """The report of what gpupool sees and uses.

    ``str()`` returns it as text for people, :meth:`to_json` as JSON for programs.
    """

    schema: int = SCHEMA
    version: str
    smoke_test: bool
    process: Process
    runtime: Runtime
    devices: list[Device]
    pinned: Pinned
    libraries: list[Library]
    loaded_files: dict[str, list[str]]
    """The files of GPU libraries in the process, by the name of the library."""
    frameworks: list[Framework]
    environment: list[Variable]
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """True if nothing is broken. Libraries that are missing and warnings don't count."""
        return not any(problem.severity == "error" for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {"ok": self.ok, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """Return the report as JSON, indented."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        from gpupool._report.info.text import text

        return text(self)

    def _repr_html_(self) -> str:
        """Return the report as HTML, for a notebook."""
        from gpupool._notebook import info

        return info.html(self)
