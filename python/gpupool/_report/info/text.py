"""The report as text: for a terminal of 100 columns, and for a bug report."""

import re
from collections.abc import Iterator

from gpupool._report.info.report import Check, Device, Framework, Info, Library, Neighbours, Pinned, Runtime
from gpupool._report.printable import printable
from gpupool._report.units import duration

_WIDTH = 100
_HOST = (
    "Devices and one library are simulated in plain memory: programs run and can be tested, but nothing computes on "
    "a GPU"
)


def text(info: Info) -> str:
    """Return the whole report, without a final newline."""
    (_, head), *others = sections(info)
    return "\n".join([*head, *(line for title, section in others for line in ("", title, *section))])


def sections(info: Info) -> list[tuple[str, list[str]]]:
    """Return the lines of the report, by the titles of its sections; the first has none."""
    process = info.process
    every = [
        ("", list(_fold(f"gpupool {info.version}, Python {process.python}, {process.platform}"))),
        ("Runtime", _runtime(info.runtime)),
        ("Devices", [line for device in info.devices for line in _device(device)]),
        ("Pinned memory", list(_pinned(info.pinned))),
        ("Libraries", [line for library in info.libraries for line in _library(library)]),
        ("Frameworks", list(_frameworks(info.frameworks))),
        (
            "Environment",
            [line for each in info.environment for line in _fold(f"{each.name}={each.value}", "  ", "      ")],
        ),
        ("Process", list(_process(info))),
        ("Problems", list(_problems(info))),
    ]
    return [(title, lines) for title, lines in every if lines]


def size(nbytes: int) -> str:
    """Return a number of bytes as text."""
    mib = nbytes / (1 << 20)
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.1f} MiB"


def _fold(paragraph: str, first: str = "", further: str | None = None) -> Iterator[str]:
    """Yield the lines of a paragraph, with a margin before the first line and one before further ones.

    A path is cut only where it would not fit a line of its own.
    """
    margin = first if further is None else further
    for part in map(printable, paragraph.split("\n")):
        line, is_empty = first, True
        for word in re.findall(r"\S+\s*", part):
            pieces = [word]
            if len(margin) + len(word.rstrip()) > _WIDTH:
                room = _WIDTH - len(margin)
                pieces = [cut for piece in re.findall(r"[^/:,=]*[/:,=]?", word) for cut in _cut(piece, room)]
            for piece in pieces:
                if not is_empty and len(line) + len(piece.rstrip()) > _WIDTH:
                    yield line.rstrip()
                    line = margin
                line, is_empty = line + piece, False
        yield line.rstrip()
        first = margin


def _cut(text: str, room: int) -> list[str]:
    return [text[start : start + room] for start in range(0, len(text), room)]


def _runtime(runtime: Runtime) -> list[str]:
    said = " (GPUPOOL_RUNTIME)" if runtime.chosen_by == "environment" else ""
    if runtime.name is None:
        return list(_fold(f"none{said}: {runtime.error}", "  ", "    "))
    if runtime.name == "host":
        why = "" if said else "no GPU was found. "
        lines = list(_fold(f"host{said}: {why}{_HOST}", "  ", "    "))
        for kind, reason in runtime.passed_over.items():
            # The places where the linker looked stand in the JSON, and in the problem, if it is one.
            lines += _fold(f"not {kind}: {re.sub(r' [(].*[)]', '', reason)}", "    ", "      ")
        return lines
    platform = "CUDA" if runtime.name == "cuda" else "HIP"
    kernel = f", kernel driver {runtime.kernel_driver}" if runtime.kernel_driver else ""
    return [f"  {runtime.name}{said}: {platform} {runtime.driver_version}{kernel}"]


def _time(check: Check) -> str:
    return "not tried" if check.seconds is None else f"{check.seconds * 1e3:.2f} ms"


def _device(device: Device) -> Iterator[str]:
    if device.error:
        yield from _fold(f"{device.ordinal}  {device.error}", "  ", "     ")
        return
    facts = [device.name or "unknown"]
    if device.compute_capability:
        facts.append(f"compute capability {device.compute_capability}")
    if device.total_bytes is not None:
        free = "" if device.free_bytes is None else f", {size(device.free_bytes)} free"
        facts.append(f"{size(device.total_bytes)}{free}")
    yield from _fold(f"{device.ordinal}  {', '.join(facts)}", "  ", "     ")
    place = [device.uuid, device.pci_bus_id and f"PCI {device.pci_bus_id}", "a MIG instance" if device.is_mig else None]
    if any(place):
        yield from _fold(", ".join(each for each in place if each), "     ")
    uses = ["other processes"] * device.is_shareable + ["network cards (RDMA)"] * device.is_rdma
    yield from _fold(f"memory for {' and '.join(uses)} too" if uses else "memory for this process alone", "     ")
    if device.neighbours:
        yield from _fold(_asked(device.neighbours), "     ")
    if device.holders:
        named = [f"{name} {size(nbytes)}" for name, nbytes in device.holders.items()]
        yield from _fold(f"held by other libraries: {', '.join(named)}", "     ")
    if device.allocation:
        failed = device.allocation.error
        yield from _fold("allocation failed" if failed else f"allocation in {_time(device.allocation)}", "     ")


def _asked(neighbours: Neighbours) -> str:
    """Return who asked whom, and what came of it."""
    facts = []
    if neighbours.asked_neighbours:
        took = duration(round(neighbours.asking_seconds * 1e6))
        came = f"{size(neighbours.received_bytes)} came in {took}"
        facts.append(f"asked its neighbours {_times(neighbours.asked_neighbours)}: {came}")
    if neighbours.asked_by_neighbours:
        times = _times(neighbours.asked_by_neighbours)
        facts.append(f"was asked by its neighbours {times}: {size(neighbours.given_bytes)} given")
    return "; ".join(facts)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _pinned(pinned: Pinned) -> Iterator[str]:
    if not pinned.numa_nodes:
        return
    facts = []
    for node in sorted(set(pinned.numa_nodes.values())):
        near = [str(device) for device, nearest in pinned.numa_nodes.items() if nearest == node]
        facts.append(f"NUMA node {node} for device{'s' if len(near) > 1 else ''} {', '.join(near)}")
    if pinned.lock_limit is not None:
        facts.append(f"the process may lock {size(pinned.lock_limit)} (ulimit -l)")
    if pinned.allocation:
        failed = pinned.allocation.error
        facts.append("allocation failed" if failed else f"allocation in {_time(pinned.allocation)}")
    yield from _fold("; ".join(facts), "  ", "    ")


def _library(library: Library) -> Iterator[str]:
    margin = " " * 14
    start = f"  {library.name:<11} "
    if library.state == "loaded":
        facts = [library.version or "", {"simulated": "built in"}.get(library.name, library.origin or "")]
        times = [check.seconds for check in library.handles.values() if check.seconds is not None]
        if any(check.error for check in library.handles.values()):
            facts.append("no handle can be created")
        elif len(times) == 1:
            facts.append(f"handle in {times[0] * 1e3:.2f} ms")
        elif times:
            facts.append(f"{len(times)} handles in {min(times) * 1e3:.2f} to {max(times) * 1e3:.2f} ms")
        yield f"{start}{facts[0]:<10} {facts[1]:<12}{' '.join(facts[2:])}".rstrip()
        if library.path:
            yield from _fold(library.path, margin)
    elif library.state == "missing":
        yield from _fold(f"missing: {_command(library)}", start, margin)
    else:
        yield from _fold("not loaded yet" if library.state == "not loaded" else "broken, see below", start, margin)
    for copy in library.other_copies:
        whose = "a second copy" if library.state == "loaded" else "in the process"
        yield from _fold(f"{whose}: {copy}", margin)


def _command(library: Library) -> str:
    """Return the command that brings a library, without the introduction."""
    return (library.remedy or "").split("\n")[0].removeprefix("Install it with: ")


def _frameworks(frameworks: list[Framework]) -> Iterator[str]:
    for framework in frameworks:
        packages = ", ".join(f"{name} {version}" for name, version in framework.packages.items())
        if framework.imported:
            allocator = f"; allocator: {framework.allocator}" if framework.allocator else ""
            yield from _fold(f"{framework.name:<11} imported{allocator}", "  ", " " * 14)
            if packages:
                yield from _fold(packages, " " * 14)
        elif packages:
            yield from _fold(f"{framework.name:<11} {packages}", "  ", " " * 14)
    absent = [each.name for each in frameworks if not each.packages and not each.imported]
    if absent:
        yield from _fold(f"not installed: {', '.join(absent)}", "  ", "    ")


def _process(info: Info) -> Iterator[str]:
    process = info.process
    if process.forked:
        yield "  forked after the GPU was first used"
    if process.watched:
        yield "  watched: what other libraries hold is counted"
    if process.start_method:
        yield f"  multiprocessing starts workers by {process.start_method}"


def _problems(info: Info) -> Iterator[str]:
    for problem in info.problems:
        yield from _fold(f"{problem.severity}: {problem.what}", "  ", "    ")
    if not info.problems:
        yield "  none"
    if not info.smoke_test:
        yield from _fold(
            "Nothing was loaded or tried; gpupool.info(smoke_test=True) and `gpupool info` do.", "  ", "  "
        )
