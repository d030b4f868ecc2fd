"""The replay: the allocations of a recorded program once more, and the memory and time that they take."""

import json
import os
from collections.abc import Sequence

import gpupool
from gpupool import _native, _trace
from gpupool._units import size

# The simulated device's memory unless GPUPOOL_HOST_MEMORY is set: traces of any device fit, with many threads too.
HOST_MEMORY = 1500 << 30

ALLOCATORS = ("gpupool", "driver", "async")


def run(paths: Sequence[str], threads: int, allocator: str, as_json: bool) -> None:
    """Replay each trace in every one of the threads at once, and print a line for each trace as soon as it is done."""
    os.environ.setdefault("GPUPOOL_HOST_MEMORY", str(HOST_MEMORY))
    runtime = gpupool.runtime()
    if allocator != "gpupool" and runtime == "host":
        raise gpupool.RuntimeUnavailable(
            f"--allocator {allocator} needs a GPU, and runtime host simulates one: leave the option out, or run where "
            "there is a CUDA driver and GPUPOOL_RUNTIME does not say host"
        )
    width = max(len("trace"), *(len(os.path.basename(path)) for path in paths))
    if not as_json:
        where = "host (simulated device)" if runtime == "host" else runtime
        print(f"runtime {where}, allocator {allocator}, {threads} thread{'s' if threads > 1 else ''}")
        print(
            f"{'trace':<{width}} {'events':>8} {'peak live':>10} {'peak reserved':>13} {'ratio':>6}"
            f" {'driver calls':>12} {'moved pages':>11} {'cold ns':>8} {'warm ns':>8}",
            flush=True,
        )
    for path in paths:
        trace = _trace.read(path)
        result = _native.replay(trace.slots, trace.sizes, trace.streams, trace.slot_count, threads, allocator)
        # No more can be live than if the threads reached their peaks at the same moment.
        peak_live = threads * trace.peak_live
        ratio = result.peak_reserved / peak_live
        if as_json:
            line = {
                "trace": trace.name,
                "events": trace.events,
                "peak_live": peak_live,
                "peak_reserved": result.peak_reserved,
                "ratio": round(ratio, 4),
                "driver_calls": result.driver_calls,
                "moved_pages": result.moved_pages,
                "cold_ns": round(result.cold_ns, 1),
                "warm_ns": round(result.warm_ns, 1),
            }
            print(json.dumps(line), flush=True)
            continue
        print(
            f"{trace.name:<{width}} {trace.events:>8} {size(peak_live):>10} {size(result.peak_reserved):>13}"
            f" {ratio:>6.3f} {result.driver_calls:>12} {result.moved_pages:>11}"
            f" {result.cold_ns:>8.0f} {result.warm_ns:>8.0f}",
            flush=True,
        )
        if trace.device_count > 1:
            print(f"  device {trace.device}, which has most events of {trace.device_count} devices", flush=True)
