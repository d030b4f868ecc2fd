"""How long it takes to share memory with another process, and how fast that memory is there.

    python benches/share.py [--output FILE]

Prints a JSON line for each work: sharing and attaching a block of 64 extents, the first time, later with nothing in
use (it stays mapped), and later while it is attached; a copy within attached memory beside the same copy of the owner's
own, in turns, on the same GPU and on a second one where there is one; and making extents with and without the flags
for export and RDMA, by the driver alone.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

MIB = 1 << 20
EXTENT = 2 * MIB
EXTENTS = 64
COPIED = 512 * MIB
ROUNDS = 9
# How often the owner and the other process copy, one after the other.
TURNS = 7


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def copy_rate(source: Any, target: Any, stream: Any) -> float:
    """Return the GB/s of a copy between two buffers of one size."""
    import cupy

    copy = cupy.cuda.runtime.memcpyAsync
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    rates = []
    for _ in range(ROUNDS):
        begin.record(stream)
        copy(target.ptr, source.ptr, source.nbytes, 3, stream.ptr)
        end.record(stream)
        end.synchronize()
        rates.append(source.nbytes / cupy.cuda.get_elapsed_time(begin, end) / 1e6)
    return statistics.median(rates)


def other_process() -> None:
    """Attach tokens, one a line, and say how long it took and how fast a copy from there is."""
    import cupy
    import gpupool

    kept = {}
    for line in sys.stdin:
        order, name, *rest = line.split()
        answer: dict[str, float] = {}
        if order == "attach":
            token, device = bytes.fromhex(rest[0]), int(rest[1])
            with cupy.cuda.Device(device):
                # A context takes long to make, and gpupool's first use of a device some milliseconds.
                cupy.zeros(1)
                gpupool.empty(1).free()
                stream = cupy.cuda.Stream(non_blocking=True)
                start = time.perf_counter()
                kept[name] = gpupool.attach(token, stream, device=device)
                answer["ms"] = (time.perf_counter() - start) * 1e3
        elif order == "copy":
            device = int(rest[0])
            with cupy.cuda.Device(device):
                stream = cupy.cuda.Stream(non_blocking=True)
                target = gpupool.empty(kept[name].nbytes, stream)
                answer["GB/s"] = copy_rate(kept[name], target, stream)
        else:
            kept.pop(name).free()
            while gpupool.memory_stats().attached_bytes and not kept:
                time.sleep(1e-3)
        print(json.dumps(answer), flush=True)


class OtherProcess:
    """The process that attaches."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--other"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *order: object) -> dict[str, float]:
        """Give an order, and return the answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(" ".join(map(str, order)) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))


def in_extents(count: int) -> Any:
    """Return a buffer of so many extents."""
    import gpupool

    small = [gpupool.empty(EXTENT) for _ in range(count)]
    for buffer in small:
        buffer.free()
    return gpupool.empty(count * EXTENT)


def attaching(other: OtherProcess) -> Iterator[dict[str, Any]]:
    """Measure sharing and attaching: first, later, and later while it is attached."""
    buffer = in_extents(EXTENTS)
    work = f"share and attach {EXTENTS} extents of 2 MiB"
    share = milliseconds(buffer.share)
    first = other("attach", "a", bytes(buffer.share()).hex(), 0)["ms"]
    yield {"work": work, "when": "first", "share_ms": share, "attach_ms": first}
    again = [other("attach", f"b{turn}", bytes(buffer.share()).hex(), 0)["ms"] for turn in range(ROUNDS)]
    for turn in range(ROUNDS):
        other("free", f"b{turn}")
    other("free", "a")
    later, shares = [], []
    for _ in range(ROUNDS):
        shares.append(milliseconds(buffer.share))
        later.append(other("attach", "a", bytes(buffer.share()).hex(), 0)["ms"])
        other("free", "a")
    yield {"work": work, "when": "later", "share_ms": statistics.median(shares), "attach_ms": statistics.median(later)}
    yield {"work": work, "when": "while attached", "attach_ms": statistics.median(again)}


def copying(other: OtherProcess) -> Iterator[dict[str, Any]]:
    """Measure a copy from attached memory beside the owner's own copy."""
    import cupy
    import gpupool

    source = gpupool.empty(COPIED)
    for device in range(min(gpupool.device_count(), 2)):
        if device and not cupy.cuda.runtime.deviceCanAccessPeer(device, 0):
            continue
        if device:
            gpupool.enable_peer_access(0, device)
        with cupy.cuda.Device(device):
            stream = cupy.cuda.Stream(non_blocking=True)
            target = gpupool.empty(COPIED, stream)
        other("attach", "c", bytes(source.share()).hex(), device)
        own, attached = [], []
        for _ in range(TURNS):
            with cupy.cuda.Device(device):
                own.append(copy_rate(source, target, stream))
            attached.append(other("copy", "c", device)["GB/s"])
        other("free", "c")
        ratio = statistics.median(there / here for here, there in zip(own, attached, strict=True))
        rates = {"own GB/s": statistics.median(own), "attached GB/s": statistics.median(attached)}
        yield {"work": "copy", "device": device, **rates, "ratio": ratio}


class Properties(ctypes.Structure):
    """CUmemAllocationProp of memory on device 0."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handle_kind", ctypes.c_int),
        ("location_kind", ctypes.c_int),
        ("device", ctypes.c_int),
        ("meta_data", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


def making() -> Iterator[dict[str, Any]]:
    """Measure cuMemCreate and cuMemRelease of 512 extents for each set of flags, in turns."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuMemRelease.argtypes = [ctypes.c_ulonglong]
    flags = {"plain": (0, 0), "shareable": (1, 0), "shareable, rdma": (1, 1)}
    took: dict[str, list[float]] = {name: [] for name in flags}

    def create(handle_kind: int, rdma: int) -> None:
        properties = Properties(kind=1, handle_kind=handle_kind, location_kind=1, device=0, rdma=rdma)
        for place in handles:
            status = driver.cuMemCreate(
                ctypes.byref(place), ctypes.c_size_t(EXTENT), ctypes.byref(properties), ctypes.c_ulonglong(0)
            )
            if status:
                raise RuntimeError(f"cuMemCreate: {status}")

    handles = [ctypes.c_ulonglong() for _ in range(512)]
    for turn in range(ROUNDS + 1):
        for name, asked in flags.items():
            try:
                spent = milliseconds(lambda asked=asked: create(*asked))
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            for handle in handles:
                driver.cuMemRelease(handle)
            if turn:
                took[name].append(spent)
    for name, times in took.items():
        if times:
            micros = statistics.median(times) / len(handles) * 1e3
            yield {"work": "make an extent", "flags": name, "us": micros}


def main() -> None:
    """Measure all, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", help="a file for the lines too")
    parser.add_argument("--other", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.other:
        other_process()
        return
    import cupy

    cupy.zeros(1)
    other = OtherProcess()
    lines = []
    for results in (attaching(other), copying(other), making()):
        for result in results:
            lines.append(json.dumps(result))
            print(lines[-1], flush=True)
    assert other.process.stdin
    other.process.stdin.close()
    other.process.wait(60)
    if arguments.output:
        with open(arguments.output, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
