"""The functions that gather the facts and put them together."""

import contextlib
import os
import platform
import resource
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

from gpupool import _native
from gpupool._native import Error, Forked
from gpupool._report.info import frameworks, libraries, variables
from gpupool._report.info.report import Check, Device, Info, Neighbours, Pinned, Problem, Process, Runtime, error, tried

# The bytes that the smoke test allocates on each device: a page.
_BYTES = 2 << 20


def info(*, smoke_test: bool = False) -> Info:
    """Return what gpupool sees and uses here: ``print(gpupool.info())``, or ``.to_json()``, ``.ok`` and ``.problems``.

    It has versions, devices, libraries and how they were found, copies of them in the process, the allocator of each
    framework that is imported, the environment variables that matter, and what is wrong. The runtime is chosen if it
    was not yet, so call this after forking. Nothing is loaded, imported, created or allocated, and no context is made.

    Args:
        smoke_test: Load every library, make one handle of each, and allocate 2 MiB on each device and of pinned memory,
            as ``gpupool info`` does; the handles stay in their pools. Leave it out while a stream is captured.
    """
    process = _process()
    runtime = _runtime()
    count = _native.device_count() if runtime.name else 0
    devices = [_device(ordinal, smoke_test) for ordinal in range(count)]
    pinned = _pinned(count, smoke_test and count > 0)
    found, files = libraries.gather(runtime.name, count, smoke_test and not process.forked)
    environment = variables.gather()
    explained = {variable.name for variable in environment if variables.leads_nowhere(variable)}
    problems = [
        *_problems_of_runtime(runtime),
        *_problems_of_devices(devices),
        *_problems_of_pinned(pinned),
        *libraries.problems(found, files, explained),
        *variables.problems(environment),
    ]
    return Info(
        version=_native.__version__,
        smoke_test=smoke_test,
        process=process,
        runtime=runtime,
        devices=devices,
        pinned=pinned,
        libraries=found,
        loaded_files=files,
        frameworks=frameworks.gather(count if runtime.name == "cuda" else 0),
        environment=environment,
        problems=sorted(problems, key=lambda problem: problem.severity),
    )


def _process() -> Process:
    try:
        # This is the one call that a forked child refuses and that starts no driver.
        _native.handle_stats()
        forked = False
    except Forked:
        forked = True
    multiprocessing = sys.modules.get("multiprocessing")
    return Process(
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        forked=forked,
        watched=_native.is_watched(),
        start_method=multiprocessing.get_start_method(allow_none=True) if multiprocessing else None,
    )


def _runtime() -> Runtime:
    name, version, failed = None, None, None
    try:
        name, version = _native.runtime(), _native.driver_version()
    except Error as refusal:
        failed = str(refusal)
    return Runtime(
        name=name,
        chosen_by="environment" if os.environ.get("GPUPOOL_RUNTIME") else "default",
        driver_version=None if version is None else ".".join(map(str, version)),
        kernel_driver=_kernel_driver("amdgpu" if name == "hip" else "nvidia") if name != "host" else None,
        passed_over={kind: reason for kind, reason, _ in _native.runtimes_passed_over()},
        error=failed,
    )


def _kernel_driver(module: str) -> str | None:
    try:
        return Path(f"/sys/module/{module}/version").read_text().strip()
    except OSError:
        return None


def _problems_of_runtime(runtime: Runtime) -> list[Problem]:
    found = [] if runtime.error is None else [error(runtime.error)]
    for kind, reason, is_present in _native.runtimes_passed_over():
        # With CUDA_VISIBLE_DEVICES set, the program may want no device.
        seen = kind == "cuda" and os.path.exists("/dev/nvidiactl") and "CUDA_VISIBLE_DEVICES" not in os.environ
        if is_present or seen:
            found.append(error(f"a GPU or its driver is there, and {kind} does not work: {reason}"))
    return found


def _device(ordinal: int, smoke_test: bool) -> Device:
    # First, since the context that it leaves lets the driver tell of free memory.
    allocation = _try_allocation(ordinal) if smoke_test else None
    try:
        info, neighbours = _native.device_info(ordinal), _neighbours(ordinal)
    except Error as refusal:
        return Device(ordinal=ordinal, allocation=allocation, error=str(refusal))
    capability = info.pop("compute_capability")
    return Device(
        ordinal=ordinal,
        compute_capability=None if capability is None else ".".join(map(str, capability)),
        neighbours=neighbours,
        holders=_holders(ordinal),
        allocation=allocation,
        **info,
    )


def _holders(device: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for holder in _native.holders():
        if holder["device"] == device:
            found[holder["name"]] += holder["nbytes"]
    return dict(found)


def _neighbours(device: int) -> Neighbours | None:
    # On another device this would be the first use, with a context.
    if device not in _native.devices_in_use():
        return None
    stats = _native.summarize(device)
    if not stats["asked_neighbours"] and not stats["asked_by_neighbours"]:
        return None
    return Neighbours(**{field.name: stats[field.name] for field in fields(Neighbours)})


def _try_allocation(device: int) -> Check:
    # The stream makes the context where there is none, which is no part of the allocation.
    return tried(lambda: _native.Stream(device), lambda stream: _native.empty(_BYTES, stream).free())


def _pinned(count: int, smoke_test: bool) -> Pinned:
    nodes = {}
    for ordinal in range(count):
        # A device that does not start has its error told where it is listed.
        with contextlib.suppress(Error):
            nodes[ordinal] = _native.nearest_numa_node(ordinal)
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    lock_limit = None if limit == resource.RLIM_INFINITY else limit
    allocation = tried(lambda: _BYTES, lambda nbytes: _native.empty_pinned(nbytes).free()) if smoke_test else None
    return Pinned(numa_nodes=nodes, lock_limit=lock_limit, allocation=allocation)


def _problems_of_pinned(pinned: Pinned) -> list[Problem]:
    failed = pinned.allocation and pinned.allocation.error
    return [error(f"pinned memory cannot be allocated: {failed}")] if failed else []


def _problems_of_devices(devices: list[Device]) -> list[Problem]:
    failed = [why for device in devices for why in (device.error, device.allocation and device.allocation.error) if why]
    # A device that does not start has the error twice.
    return [error(why) for why in dict.fromkeys(failed)]
