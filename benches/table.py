"""The tables of the results that the benches left: `python benches/table.py FILE` prints those of a file.

The README and the guide have the tables of benches/results, by the names of TABLES.
"""

import functools
import json
import operator
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
LIBRARIES = {
    "cudnn": "cuDNN",
    "cusparse": "cuSPARSE",
    "cudss": "cuDSS",
    "cublas": "cuBLAS",
    "cublaslt": "cuBLASLt",
    "cusolver": "cuSOLVER",
}
CUPY = {"cusparse": "cupy get_cusparse_handle", "cublas": "cupy get_cublas_handle"}
TORCH = {"cublas": "torch current_blas_handle"}
TRACES = {
    "gpt_varlen-1": "training a transformer, varying lengths",
    "resnet_multiscale-1": "training ResNet-50, varying image sizes",
    "gnn_sampled-1": "training a graph network",
    "two_streams-1": "training, batches made on a second stream",
    "cupy_science-1": "CuPy: sparse, FFT, QR, SVD",
    "llm_serve-7": "serving a language model",
}
# What benches/devices.py measures.
OF_DEVICES = {
    "first use": "from the import to a block on each device",
    "peers of all": "`enable_peer_access` of all for all",
    "memory_stats of all": "`memory_stats()` of each",
    "info": "`info()`",
    "empty_cache": "`empty_cache()`, 64 MiB on each",
    "empty_cache among peers": "the same where all have access to all",
    "fork": "a fork, until the parent goes on",
    "fork and its child's end": "a fork, until its child has ended",
    "end of the process": "the end of the process",
}
EXPANDABLE = "expandable_segments:True"
# The names of peers in the benches' results, and those in the tables.
PEERS = {
    "gpupool.empty": "`gpupool.empty`",
    "cupy": "CuPy's own pool",
    "cupy async": "CuPy's `MemoryAsyncPool`",
    "cupy over gpupool": "CuPy over gpupool",
    "cupy over rmm pool": "CuPy over RMM's pool",
    "cupy over rmm arena": "CuPy over RMM's arena",
    "cupy over rmm async": "CuPy over RMM's `CudaAsyncMemoryResource`",
    "pool": "RMM's pool",
    "arena": "RMM's arena",
    "async": "RMM's `CudaAsyncMemoryResource`",
    "binning": "RMM's binning resource over its pool",
    "gpupool": "RMM over gpupool",
    "cuda.core": "cuda.core",
    "cuda.core over gpupool": "cuda.core over gpupool",
    "cuMemAllocAsync": "`cuMemAllocAsync`",
    "warp": "Warp",
    "warp without its pool": "Warp without its pool",
    "warp over gpupool": "Warp over gpupool",
    "numba": "Numba",
    "numba, gpupool": "Numba over gpupool",
}
# What was measured of PyTorch, by what each row of the table is called.
OF_PYTORCH = {
    "`torch.empty` of 1 KiB and its end, ns": {"work": "empty(1024, uint8)"},
    "of 1 MiB": {"work": "empty(1048576, uint8)"},
    "of 32 MiB": {"work": "empty(33554432, uint8)"},
    "a step of the mix in Python, ns": {"work": "mix", "threads": 1},
    "each of 16 threads of Python": {"work": "mix", "threads": 16},
    "allocate and free 1 KiB in C++, ns": {"work": "C++ pair", "size": 1024},
    "1 MiB": {"work": "C++ pair", "size": 1 << 20},
    "32 MiB": {"work": "C++ pair", "size": 32 << 20},
    "a step of the mix in C++, ns": {"work": "C++ mix", "threads": 1},
    "each of 16 threads of C++": {"work": "C++ mix", "threads": 16},
    "a step of training of many small operations, us": {"work": "step of small operations"},
    "peak of a transformer on sentences of varying length, MiB": {"work": "peak of transformer"},
    "peak of generating with a growing cache, MiB": {"work": "peak of growing cache"},
    "peak of ResNet-50 on pictures of varying size, MiB": {"work": "peak of ResNet-50"},
}
UNITS = ("ns", "ns_per_step", "ns_per_pair", "us", "mib")


def table(*rows: Iterable[str]) -> str:
    """Return a table of Markdown; its first row is the head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    columns = lines[0].count(" | ") + 1
    return "\n".join([lines[0], f"| {' | '.join(['---'] * columns)} |", *lines[1:]])


def number(figure: float | None) -> str:
    """Return a figure with its thousands apart; an empty text for None."""
    return "" if figure is None else f"{figure:,.0f}".replace(",", " ")


def runs(figures: list[float], written: Callable[[float], str] = number) -> str:
    """Return the median of several runs, and how far they are apart."""
    if not figures:
        return ""
    least, most = written(min(figures)), written(max(figures))
    return written(statistics.median(figures)) + (f" ({least} to {most})" if least != most else "")


def figure(figures: dict[str, float], name: str | None) -> str:
    """Return a figure for a cell; an empty text where there is none."""
    return f"{figures[name]:.0f}" if name in figures else ""


def checkouts(results: dict) -> str:
    """Return the table of what getting a handle costs that the thread has already."""
    rust, python = results.get("rust_ns", {}), results["python_ns"]
    torch = results.get("torch_cpp_ns", {})
    head = ["this thread's handle, ns", "gpupool, Rust", "PyTorch, C++", "gpupool, Python", "CuPy", "PyTorch, Python"]
    rows = [
        [
            title,
            figure(rust, f"{name}/handle(stream)"),
            figure(torch, name),
            figure(python, f"gpupool {name} handle()"),
            figure(python, CUPY.get(name)),
            figure(python, TORCH.get(name)),
        ]
        for name, title in LIBRARIES.items()
    ]
    return table(head, *rows)


def beyond(figures: dict[str, float], name: str, nothing: str) -> float | None:
    """Return a figure less what threads take that do nothing; None where there is none."""
    return figures[name] - figures[nothing] if name in figures else None


def compared(ours: float | None, *peers: float | None) -> list[str]:
    """Return the cells for our figure, for the peers', and for how many times ours each of those is."""
    cells = ["" if each is None else f"{each:.0f}" for each in (ours, *peers)]
    # Where a figure is less than the noise, there is nothing to compare.
    ratios = [f"{peer / ours:.1f}" if ours and peer and min(ours, peer) > 0 else "" for peer in peers]
    return cells + ratios


def churn(results: dict) -> str:
    """Return the table of what threads take that ask once and end, beyond those that do nothing."""
    rust, torch = results.get("rust_ns", {}), results.get("torch_cpp_churn_ns", {})
    head = ["a thread that asks once and ends, ns", "gpupool, Rust", "PyTorch, C++", "PyTorch / gpupool"]
    rows = []
    for name, title in LIBRARIES.items():
        figures = [beyond(each, f"churn/{name}, inside", "churn/nothing, inside") for each in (rust, torch)]
        rows.append([title, *compared(*figures)])
    return table(head, *rows)


def rush(results: dict) -> str:
    """Return the table of what each of sixteen such threads of Python at once takes."""
    python = {name: figures["rush"] for name, figures in results["python_churn_ns"].items()}
    head = [
        "each of 16 such threads at once, Python",
        "gpupool",
        "PyTorch",
        "CuPy",
        "PyTorch / gpupool",
        "CuPy / gpupool",
    ]
    rows = []
    for name in ("cusparse", "cublas", "cusolver"):
        figures = [beyond(python, f"{peer} {name}", "nothing") for peer in ("gpupool", "torch", "cupy")]
        rows.append([LIBRARIES[name], *compared(*figures)])
    return table(head, *rows)


def chosen(lines: list[dict], **wanted: object) -> list[dict]:
    """Return the lines of results with these values."""
    return [line for line in lines if all(line.get(key) == value for key, value in wanted.items())]


def pick(lines: list[dict], **wanted: object) -> dict:
    """Return the one line of results with these values; an empty one where it was not measured."""
    return next(iter(chosen(lines, **wanted)), {})


def every(lines: list[dict], unit: str, **wanted: object) -> list[float]:
    """Return a figure of all lines with these values."""
    return [line[unit] for line in chosen(lines, **wanted)]


def waste(lines: list[dict]) -> str:
    """Return the table of what allocators reserve for the programs of trace files, over what those request."""
    head = ["reserved / requested, at their peaks", "gpupool", "PyTorch", "with expandable segments"]
    rows = []
    for name, title in TRACES.items():
        trace = f"{name}.csv.gz"
        peers = [{"peer": "gpupool"}, {"peer": "torch", "conf": ""}, {"peer": "torch", "conf": EXPANDABLE}]
        rows.append([title, *(f"{pick(lines, trace=trace, **peer)['ratio']:.3f}" for peer in peers)])
    return table(head, *rows)


def passes(lines: list[dict]) -> str:
    """Return the table of what an event of a trace file takes in the first replay, and in later ones."""
    head = [
        "ns an event",
        "gpupool, first",
        "PyTorch with expandable segments, first",
        "gpupool, later",
        "PyTorch, later",
    ]
    rows = []
    for name, title in TRACES.items():
        rounds = chosen(lines, trace=f"{name}.csv.gz")
        if not rounds:
            continue
        figures = [
            statistics.median(every(rounds, unit, peer=peer))
            for unit in ("cold_ns", "warm_ns")
            for peer in ("gpupool", "torch")
        ]
        rows.append([title, *map(number, figures)])
    return table(head, *rows)


def simulated(results: dict) -> str:
    """Return the table of PyTorch's peaks as they were measured, and as the simulation of its allocator has them."""
    head = ["PyTorch's peak reserved, simulated over measured", "events", "by default", "with expandable segments"]
    found: dict[str, dict] = {}
    for row in results["rows"]:
        events = number(row["events"])
        found.setdefault(row["trace"], {"events": events})[row["conf"]] = f"{1 + row['deviation']:.4f}"
    rows = [[f"`{name}`", each["events"], each[""], each[EXPANDABLE]] for name, each in found.items()]
    return table(head, *rows)


def allocations(lines: list[dict]) -> str:
    """Return the table of what an allocation costs."""
    python = [
        ("gpupool", "empty(1024)"),
        ("torch", "empty(1024, uint8)"),
        ("cupy", "cuda.alloc(1024)"),
        ("cuda.core", "allocate(1024)"),
    ]
    return table(
        ["nanoseconds", "gpupool", "PyTorch", "CuPy", "cuda.core"],
        [
            "allocate and free 512 bytes, Rust or C++",
            runs(every(lines, "buffer_ns_per_pair", work="pair", size=512, peer="gpupool")),
            runs(every(lines, "ns_per_pair", work="pair", size=512, peer="torch", conf="")),
            "",
            "",
        ],
        ["`empty(1024)` and its end, Python", *(number(pick(lines, peer=p, work=work)["ns"]) for p, work in python)],
    )


def threads(lines: list[dict]) -> str:
    """Return the table of what a step of the random mix costs each of several threads on one stream."""
    counts = (1, 2, 4, 8, 16)
    head = ["a step of a random mix, ns", *(f"{count} thread{'s' * (count > 1)}" for count in counts)]
    steps = {
        title: [every(lines, "ns_per_step", work="mix", threads=count, peer=peer) for count in counts]
        for title, peer in {"gpupool": "gpupool", "PyTorch": "torch"}.items()
    }
    ratios = [
        [other / own for own, other in zip(*of_both, strict=True)] for of_both in zip(*steps.values(), strict=True)
    ]
    rows = [[title, *map(runs, figures)] for title, figures in steps.items()]
    last = ["PyTorch's over gpupool's", *(runs(each, "{:.1f}".format) for each in ratios)]
    return table(head, *rows, last)


def frameworks(lines: list[dict]) -> str:
    """Return the table of what the frameworks' allocators cost in Python, with and without gpupool."""
    head = ["in Python, ns", "allocate and free", "a step of the mix, 1 thread", "16 threads"]
    rows = []
    for peer, title in PEERS.items():
        # What was measured in turns comes first.
        of_peer = chosen(lines, peer=peer)
        if not of_peer:
            # It was not installed.
            continue
        mixes = chosen(of_peer, work="mix")
        measured = [of_peer[0], *(pick(mixes, threads=count) for count in (1, 16))]
        rows.append([title, *(number(next(line[unit] for unit in UNITS if unit in line)) for line in measured)])
    return table(head, *rows)


def pytorch(lines: list[dict]) -> str:
    """Return the table of what PyTorch takes on gpupool and on its own allocator."""
    head = ["PyTorch", "on gpupool", "on its own", "with expandable segments"]
    rows = []
    for title, wanted in OF_PYTORCH.items():
        measured = [pick(lines, peer=peer, **wanted) for peer in ("gpupool", "torch", "torch expandable")]
        figures = [next((line[unit] for unit in UNITS if unit in line), None) for line in measured]
        rows.append([title, *map(number, figures)])
    return table(head, *rows)


def devices(lines: list[dict]) -> str:
    """Return the table of what is done for every device, by their number."""
    counts = sorted({line["devices"] for line in lines if "least_us" in line})
    rows = []
    for work, title in OF_DEVICES.items():
        least = {line["devices"]: line["least_us"] for line in chosen(lines, work=work) if "least_us" in line}
        (grows,) = (line for line in chosen(lines, work=work) if "exponent" in line)
        power = "" if grows["exponent"] is None else f"{grows['exponent']:.2f}"
        power += f" of the {grows['of']}" if power and grows["of"] != "devices" else ""
        rows.append([title, *(number(least.get(count)) for count in counts), power])
    return table(["µs, by the number of devices", *map(str, counts), "power"], *rows)


def ranges(lines: list[dict]) -> str:
    """Return the table of what pages of ranges cost, and the driver's own calls."""

    def of(work: str, pages: int) -> str:
        found = [line for line in lines if (line["work"], line["pages"]) == (work, pages)]
        return f"{found[0]['us']:.1f} ({found[0]['least']:.1f} to {found[0]['most']:.1f})" if found else ""

    head = ["us a page of 2 MiB, median, least and most", "one page", "512 at once"]
    works = {
        "commit: created": "commit: new",
        "commit: moved from a free page elsewhere": "commit: moved",
        "commit: made ready before": "commit: prepared",
        "commit: there still": "commit: again",
        "decommit": "decommit",
        "commit beside a kernel": "commit beside a kernel",
        "decommit beside a kernel": "decommit beside a kernel",
        **{f"the driver alone: {call}": f"driver: {call}" for call in ("create", "map and open", "unmap", "release")},
        **{
            f"the driver alone, beside a kernel: {call}": f"driver: {call} beside a kernel"
            for call in ("create", "map and open", "unmap", "release")
        },
        "pin of 4,096 pages, all together": "pin of 4096 pages",
        "unpin of 4,096 pages": "unpin of 4096 pages",
    }
    return table(head, *([title, of(work, 1), of(work, 512)] for title, work in works.items()))


def kv_caches(lines: list[dict]) -> str:
    """Return the table of paged caches at several rates: the medians of the turns, and the least and most."""

    def cell(found: list[dict], name: str, form: str) -> str:
        values = sorted(line[name] for line in found)
        middle, least, most = (format(value, form) for value in (statistics.median(values), values[0], values[-1]))
        return middle if least == most else f"{middle} ({least} to {most})"

    shown = {
        "tokens a second": ("tokens_per_s", ".0f"),
        "ms to the first token": ("first_token_ms", ".1f"),
        "95 % of them": ("first_token_95_ms", ".0f"),
        "held over live": ("held_over_live", ".3f"),
    }
    rows = []
    lines = [line for line in lines if "rate" in line]
    for rate, kind in dict.fromkeys(
        (line["rate"], line["kind"]) for line in sorted(lines, key=lambda line: line["rate"])
    ):
        found = [line for line in lines if (line["rate"], line["kind"]) == (rate, kind)]
        rows.append([f"{rate:.0f}", kind, *(cell(found, *figure) for figure in shown.values())])
    return table(["requests a second", "pages", *shown], *rows)


def workspaces(lines: list[dict]) -> str:
    """Return the table of products that cuBLAS splits over its workspace.

    They run on gpupool's workspaces and on cuBLAS's own.
    """
    head = ["sgemm, m x n x k", "streams", "gpupool's workspaces, us", "cuBLAS's own, us", "ratio"]
    rows = []
    for line in lines:
        ours, theirs = line["us"]["gpupool"], line["us"]["cublas"]
        shape = " x ".join(map(str, line["shape"]))
        rows.append([shape, str(line["streams"]), f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}"])
    return table(head, *rows)


def leases(text: str) -> str:
    """Return the table of what leases and handles cost several threads at once."""
    units = {"ns": 1, "µs": 1000}
    figures = {}
    for line in text.splitlines():
        if " calls at once/" in line:
            continue
        found = re.fullmatch(r"(\w+) at once/(\w+), (\d+) threads time: \[\S+ \S+ (\S+) (\S+) \S+ \S+\]", line)
        if found is None:
            raise ValueError(f"no line of leases: {line}")
        name, call, count, figure, unit = found.groups()
        # The simulated library's name in older results.
        name = "simulated" if name == "host" else name
        figures[name, call, int(count)] = f"{float(figure) * units[unit]:.0f}"
    head = ["ns for each of so many threads", *(f"{call}, {n}" for call in ("handle", "lease") for n in (1, 4, 16))]
    titles = {**LIBRARIES, "simulated": "simulated"}
    cells = [(call, n) for call in ("handle", "lease") for n in (1, 4, 16)]
    measured = {name for name, *_ in figures}
    rows = [[title, *(figures[name, *cell] for cell in cells)] for name, title in titles.items() if name in measured]
    return table(head, *rows)


def of_text(file: str) -> str:
    """Return the text of a file of results."""
    return (RESULTS / file).read_text()


def of_json(file: str) -> dict:
    """Return the content of a file of results that is one JSON object."""
    return dict(json.loads((RESULTS / file).read_text()))


def of_lines(file: str) -> list[dict]:
    """Return the lines of a file of results that has one JSON object a line."""
    return [json.loads(line) for line in (RESULTS / file).read_text().splitlines()]


class Table(NamedTuple):
    """A table that pages have, and the files of results that it is made of."""

    files: tuple[str, ...]
    make: Callable[..., str]
    read: Callable[[str], Any] = of_json

    def __call__(self) -> str:
        """Return the table as Markdown."""
        return self.make(functools.reduce(operator.add, map(self.read, self.files)))


TABLES = {
    "checkouts": Table(("h200/peers.json",), checkouts),
    "churn": Table(("h200/peers.json",), churn),
    "rush": Table(("h200/peers.json",), rush),
    "leases": Table(("h200/leases.txt",), leases, of_text),
    "devices": Table(("devices/simulated.json",), devices, of_lines),
    "ranges": Table(("ranges/ranges-h100.json",), ranges, of_lines),
    "kv_caches": Table(("ranges/kv_peers.json",), kv_caches, of_lines),
    "workspaces": Table(("h200/workspaces.json",), workspaces, of_lines),
    "waste": Table(("h200/passes.json", "h200/memory.json"), waste, of_lines),
    "passes": Table(("h200/passes.json",), passes, of_lines),
    "allocations": Table(("h200/memory.json", "h200/turns.json"), allocations, of_lines),
    "threads": Table(("h200/turns.json",), threads, of_lines),
    "frameworks": Table(("h200/plugs.json", "h200/rmm.json", "h200/frameworks.json"), frameworks, of_lines),
    "simulated": Table(("pytorch-simulated/peaks.json",), simulated),
    "pytorch": Table(("h200/pytorch.json",), pytorch, of_lines),
}


def main() -> None:
    """Print the tables of a file of benches/peers.py."""
    results = json.loads(Path(sys.argv[1]).read_text())
    print(checkouts(results))
    # Older files lack it.
    if "python_churn_ns" in results:
        print(f"\n{churn(results)}\n\n{rush(results)}")


if __name__ == "__main__":
    main()
