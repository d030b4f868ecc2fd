"""The report at the end of ``gpupool run --report``, as text: peaks, what they would have been, and where time went."""

from collections.abc import Iterable, Iterator
from typing import Any

import _gpupool_enable

import gpupool
from gpupool import _native
from gpupool._report.printable import printable
from gpupool._report.units import duration, size
from gpupool._run import enabling as _enabling
from gpupool._run import simulated as _simulated

# The width of the names of figures.
_WIDTH = 36


def report(program: str, names: Iterable[str], seconds: float) -> str:
    """Return the report on this process.

    Args:
        program: What ran.
        names: The frameworks that were to be enabled.
        seconds: How long it ran.
    """
    return "\n".join(map(printable, _lines(program, sorted(names), seconds)))


def _lines(program: str, names: list[str], seconds: float) -> Iterator[str]:
    yield f"gpupool run: {program}, {duration(round(seconds * 1e6))}"
    enabled = [name for name in names if name in _enabling.enabled]
    missed = [name for name in names if name in _gpupool_enable.failed]
    if enabled or not missed:
        yield _line("enabled", ", ".join(enabled) or "nothing: none of the frameworks was imported")
    if missed:
        yield _line("could not be enabled", ", ".join(missed))
    in_use = _native.devices_in_use()
    if not in_use:
        yield "gpupool was asked for no memory and for no handle"
    # In the order of what they hold.
    holders = _native.holders()
    for device in sorted({*in_use, *(holder["device"] for holder in holders)}):
        found = _native.device_info(device)
        yield f"device {device}, {found['name'] or 'of an unknown name'}"
        if device in in_use:
            yield from _device(device, found["total_bytes"])
        yield from _others(device, [holder for holder in holders if holder["device"] == device])
    yield from _handles()
    pinned = gpupool.pinned_stats()
    if pinned.allocations:
        yield "pinned memory of the host"
        yield _line("  reserved at most", size(pinned.peak_reserved_bytes))
        yield _line("  allocations, driver calls", f"{pinned.allocations}, {pinned.driver_calls}")
        yield _line("  time in the driver", duration(sum(_native.pinned_times())))


def _device(device: int, total_bytes: int | None) -> Iterator[str]:
    stats = gpupool.memory_stats(device)
    if not stats.allocations:
        yield _line("  memory", "none was requested")
        return
    peak_requested, retries, failures = _native.request_counts(device)
    simulated = _simulated.simulate(device, total_bytes)
    if isinstance(simulated, str):
        yield _line("  requested at most", size(peak_requested))
        yield _line("  reserved at most", size(stats.peak_reserved_bytes))
        yield _line("  PyTorch's own allocator, simulated", simulated)
    else:
        requested = simulated.peak_requested
        reserved = simulated.peak_reserved or stats.peak_reserved_bytes
        yield _line("  requested at most", size(requested))
        yield _line("  reserved at most", f"{size(reserved)} ({reserved / requested:.2f} of what was requested)")
        yield _line("  PyTorch's own allocator, simulated", _simulated.text(simulated.plain, requested))
        yield _line("    with expandable segments", _simulated.text(simulated.expandable, requested))
    yield _line("  allocations, driver calls", f"{stats.allocations}, {stats.driver_calls}")
    yield _line("  pages of 2 MiB moved", str(stats.moved_pages))
    yield _line("  memory ran out", f"{retries} requests tried again, {failures} failed")
    if stats.asked_neighbours:
        took = duration(round(stats.asking_seconds * 1e6))
        asked = f"{stats.asked_neighbours} time{'s' if stats.asked_neighbours > 1 else ''}"
        yield _line("  given by neighbours", f"{size(stats.received_bytes)}, asked {asked}, in {took}")


def _others(device: int, holders: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what others than gpupool hold, in a process that is watched."""
    for holder in holders:
        yield _line(f"  {holder['name']}", f"{size(holder['peak_bytes'])}, {size(holder['nbytes'])} at the end")
    # Nothing is asked of a driver where a program is done with it.
    if any(holder["nbytes"] for holder in holders):
        rest = _native.summarize(device)["context_bytes"]
        if rest is not None:
            yield _line("  contexts, code", f"{size(rest)} at the end")


def _handles() -> Iterator[str]:
    made = {name: stats for name, stats in gpupool.handle_stats().items() if stats.created}
    if made:
        yield "handles"
    for name, stats in made.items():
        time = duration(round(stats.create_seconds * 1e6))
        requests = stats.hits + stats.misses
        uses = f"{requests} request{'s' if requests != 1 else ''}"
        yield _line(f"  {name}", f"{stats.created} made in {time}, {size(stats.peak_device_bytes)}, {uses}")


def _line(name: str, value: str) -> str:
    return f"{name:<{_WIDTH}}  {value}"
