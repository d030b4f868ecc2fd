"""What PyTorch's own allocator would have reserved for what this process has recorded."""

from dataclasses import dataclass

from gpupool import _native
from gpupool._report.units import size
from gpupool._traces import pytorch as _pytorch
from gpupool._traces import trace as _trace
from gpupool._traces.progress import Progress


@dataclass(frozen=True)
class Simulated:
    """The peaks of a device's history, as it was and as it would have been."""

    peak_requested: int
    peak_reserved: int | None
    """The bytes that gpupool reserved; None if the history does not tell."""
    plain: _pytorch.Simulation
    expandable: _pytorch.Simulation


def simulate(device: int, capacity: int | None) -> Simulated | str:
    """Simulate PyTorch's allocator over a device's whole history.

    Args:
        device: The device's ordinal.
        capacity: The device's bytes.

    Returns:
        The figures, or why there are none.
    """
    allocations = _native.memory_stats(device).allocations
    content = _native.memory_snapshot(device=device)
    if device >= len(content["device_traces"]):
        return "nothing was recorded"
    recorded = sum(event["action"] == "alloc" for event in content["device_traces"][device])
    if recorded < allocations:
        return (
            f"not known, for the recording has {recorded} of {allocations} allocations: it was longer than is kept, "
            "so give --max-entries more; or the program has changed it"
        )
    trace = _trace.of_snapshot(content, device, f"device {device}")
    del content
    if trace is None:
        return "nothing was allocated"
    with Progress("simulating PyTorch's allocator") as progress:
        plain, expandable = (
            _pytorch.simulate(trace, expandable=choice, capacity=capacity, watch=progress) for choice in (False, True)
        )
    return Simulated(trace.peak_live, max(trace.reserved) if trace.reserved else None, plain, expandable)


def text(simulation: _pytorch.Simulation, requested: int) -> str:
    """Return a simulation's outcome as text."""
    if simulation.fails_at is not None:
        return f"out of memory, after {size(simulation.peak_reserved)} were reserved"
    ratio = f" ({simulation.peak_reserved / requested:.2f} of what was requested)" if requested else ""
    retries = simulation.retries
    gave = f", all that was free given back {retries} time{'s' if retries > 1 else ''}" if retries else ""
    return f"{size(simulation.peak_reserved)}{ratio}{gave}"
