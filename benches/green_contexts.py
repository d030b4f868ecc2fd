"""What a product takes on a part of the GPU's processors, alone and beside one that fills the other part.

Two green contexts have disjoint parts of one size, each with a stream and a leased cuBLAS handle. A product of fp32
matrices runs on one, alone and while a product that would fill the whole GPU runs on the other; and the same on two
plain streams, which share the whole GPU. Times are between events around one product, so they have what it waits for
processors. The script prints one JSON object a line, and a table of them to stderr; it needs a GPU and CuPy.
"""

import argparse
import contextlib
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cupy
import gpupool

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "gpu"))
from partitions import halves

SIZES = [512, 1024, 2048]
FILLING = 8192
# Products that are timed, and how long they may take in all.
RUNS, SECONDS = 200, 2.0
WARM_UP = 10


class Product:
    """A product of square matrices, and the lease of the handle that computes it on a stream."""

    def __init__(self, size: int, stream: int, seed: int) -> None:
        random = cupy.random.default_rng(seed)
        self.size, self.stream = size, cupy.cuda.ExternalStream(stream)
        self.left, self.right = (random.standard_normal((size, size), dtype=cupy.float32) for _ in range(2))
        self.result = cupy.zeros((size, size), dtype=cupy.float32)
        self.lease = gpupool.cublas.lease(stream)
        self.gemm = ctypes.CDLL(gpupool.cublas.path).cublasSgemm_v2
        cupy.cuda.runtime.deviceSynchronize()

    def compute(self) -> None:
        """Compute it once, in the order of the stream."""
        n, one, zero = self.size, ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
        left, right, result = (ctypes.c_void_p(array.data.ptr) for array in (self.left, self.right, self.result))
        handle = ctypes.c_void_p(int(self.lease))
        # Rows come last for cuBLAS, so the factors change places.
        assert self.gemm(handle, 0, 0, n, n, n, one, right, n, left, n, zero, result, n) == 0

    def timed(self) -> tuple[cupy.cuda.Event, cupy.cuda.Event]:
        """Compute it once, and return events before and behind it."""
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(self.stream)
        self.compute()
        end.record(self.stream)
        return start, end

    def check(self) -> None:
        """Fail if the result is wrong."""
        cupy.cuda.runtime.deviceSynchronize()
        rows = slice(0, 64)
        expected = self.left[rows].astype(cupy.float64) @ self.right.astype(cupy.float64)
        assert float(abs(self.result[rows] - expected).max()) < 0.1, "a wrong product"


def microseconds(events: tuple[cupy.cuda.Event, cupy.cuda.Event]) -> float:
    """Return the time between events that are done."""
    return cupy.cuda.get_elapsed_time(*events) * 1000


def alone(product: Product) -> list[float]:
    """Return the times of a product that has its stream's processors for itself."""
    times, deadline = [], time.perf_counter() + SECONDS
    for _ in range(WARM_UP):
        product.compute()
    cupy.cuda.runtime.deviceSynchronize()
    while len(times) < RUNS and (len(times) < 5 or time.perf_counter() < deadline):
        events = product.timed()
        events[1].synchronize()
        times.append(microseconds(events))
    return times


def beside(product: Product, filling: Product) -> tuple[list[float], list[float]]:
    """Return the times of a product and of the one that fills the other stream, while both run."""
    times, filled, deadline = [], [], time.perf_counter() + SECONDS
    product.compute()
    cupy.cuda.runtime.deviceSynchronize()
    while len(times) < RUNS and time.perf_counter() < deadline:
        others = [filling.timed() for _ in range(8)]
        while not others[0][0].done:
            pass
        # Its kernel has begun by then.
        time.sleep(0.002)
        while True:
            events = product.timed()
            events[1].synchronize()
            if others[-1][1].done:
                break
            times.append(microseconds(events))
        others[-1][1].synchronize()
        filled += [microseconds(events) for events in others[1:-1]]
    return times, filled


@contextlib.contextmanager
def released(*products: Product) -> Iterator[None]:
    """Check the products and give their handles back."""
    yield
    for product in products:
        product.check()
        product.lease.release()


def tell(size: int, where: str, sms: int, other: str, times: list[float]) -> dict[str, object]:
    """Print a line, and return it."""
    ordered = sorted(times)
    line = {
        "work": "sgemm",
        "shape": [size] * 3,
        "where": where,
        "sms": sms,
        "beside": other,
        "runs": len(times),
        "us": round(statistics.median(ordered), 1) if times else None,
        "us_p95": round(ordered[int(len(ordered) * 0.95)], 1) if times else None,
    }
    print(json.dumps(line), flush=True)
    return line


def table(lines: list[dict[str, object]]) -> str:
    """Return the lines as a table."""
    rows = [["product", "where", "processors", "beside", "median", "95 %", "runs"]]
    for line in lines:
        times = [f"{line[key]} us" for key in ("us", "us_p95")]
        size = line["shape"][0]
        rows.append([f"{size}^3", line["where"], str(line["sms"]), line["beside"], *times, str(line["runs"])])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def measure(size: int, where: str, sms: int, streams: list[int]) -> list[dict[str, object]]:
    """Measure a product on the first stream, alone and beside the one that fills the second."""
    product, filling = Product(size, streams[0], 1), Product(FILLING, streams[1], 2)
    filler = f"{FILLING}^3, {where}"
    with released(product, filling):
        lines = [tell(size, where, sms, "nothing", alone(product))]
        if size == SIZES[0]:
            lines.append(tell(FILLING, where, sms, "nothing", alone(filling)))
        times, filled = beside(product, filling)
        lines.append(tell(size, where, sms, filler, times))
        lines.append(tell(FILLING, where, sms, f"{size}^3, {where}", filled))
    return lines


def main() -> None:
    """Measure every size on two parts and on two plain streams."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    cupy.cuda.runtime.deviceSynchronize()
    parts, plain = halves(), [gpupool.Stream(), gpupool.Stream()]
    whole = cupy.cuda.Device().attributes["MultiProcessorCount"]
    streams = [part.stream() for part in parts]
    gpupool.cublas.warm(2)
    created, lines = gpupool.cublas.stats().created, []
    for size in SIZES:
        lines += measure(size, "part", parts[0].sms, streams)
        lines += measure(size, "whole", whole, [stream.ptr for stream in plain])
    print(json.dumps({"handles created after warm-up": gpupool.cublas.stats().created - created}))
    print(table(lines), file=sys.stderr)
    for part in parts:
        part.close()


if __name__ == "__main__":
    main()
