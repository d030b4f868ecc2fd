"""The answer as data: frozen dataclasses, whose fields are the keys of the JSON.

docs/info.md describes the JSON; a change here is a change there, and a field that goes or changes its meaning makes a
new ``schema``.
"""

import dataclasses
import json
from typing import Any, Literal

#: The number of the JSON's form.
SCHEMA = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that does not work (an error), or that may surprise (a warning)."""

    severity: Literal["error", "warning"]
    what: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One step of the smoke test: how long it took, or why it failed."""

    seconds: float | None
    error: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """The platform in use. ``name`` is None where there is none, and ``error`` says why."""

    name: str | None
    #: "environment" if GPUPOOL_RUNTIME is set, else "default": the first that has a device.
    chosen_by: Literal["environment", "default"]
    #: The CUDA version that the driver supports, or HIP's.
    driver_version: str | None
    #: The version of the kernel's driver, as ``nvidia-smi`` shows it.
    kernel_driver: str | None
    #: Why other platforms were passed over, by name.
    passed_over: dict[str, str]
    error: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A device that the process sees. Where the driver refuses to tell of it, ``error`` says so."""

    ordinal: int
    name: str | None = None
    uuid: str | None = None
    compute_capability: str | None = None
    pci_bus_id: str | None = None
    is_mig: bool = False
    total_bytes: int | None = None
    #: None where the process has no context on the device.
    free_bytes: int | None = None
    #: The smoke test's allocation.
    allocation: Check | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Library:
    """A library whose handles gpupool pools."""

    name: str
    #: "not loaded" where it was not asked for yet; "broken" where a file is there that cannot be used.
    state: Literal["loaded", "not loaded", "missing", "broken"]
    version: str | None = None
    path: str | None = None
    #: How it was found, as :attr:`gpupool.HandlePool.origin`.
    origin: str | None = None
    #: Other files of the same library in the process.
    other_copies: list[str] = dataclasses.field(default_factory=list)
    error: str | None = None
    #: What brings the library.
    remedy: str | None = None
    #: The smoke test's handles, by the ordinal of the device.
    handles: dict[int, Check] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework that gpupool works with."""

    name: str
    #: The versions of its packages, by what pip calls them.
    packages: dict[str, str]
    imported: bool
    #: What allocates its device memory; None where it is not imported or has no allocator of the process.
    allocator: str | None = None
    #: Whether that is gpupool.
    uses_gpupool: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable that is set and matters here."""

    name: str
    value: str
    #: False for a GPUPOOL_ name that gpupool does not know.
    known: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Process:
    """This process."""

    python: str
    executable: str
    platform: str
    #: Whether it was forked after the GPU was first used, so that nothing works.
    forked: bool
    #: How ``multiprocessing`` starts workers; None where that was not chosen yet.
    start_method: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Info:
    """What gpupool sees and uses. ``str()`` is the text for people, :meth:`to_json` the same for programs."""

    schema: int = SCHEMA
    version: str
    smoke_test: bool
    process: Process
    runtime: Runtime
    devices: list[Device]
    libraries: list[Library]
    #: The files of GPU libraries in the process, by the name of the library.
    loaded_files: dict[str, list[str]]
    frameworks: list[Framework]
    environment: list[Variable]
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """Whether nothing is broken. Libraries that are missing and warnings don't count."""
        return not any(problem.severity == "error" for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {"ok": self.ok, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """Return the same as JSON, indented."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        from gpupool._report.info.text import text

        return text(self)
