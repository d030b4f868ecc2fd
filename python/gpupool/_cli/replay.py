"""The command ``gpupool replay``: a row for each trace and allocator, as text or JSON, and a picture on request."""

import argparse
import json
import os
import textwrap
import time
from dataclasses import asdict
from typing import Any

import gpupool
from gpupool._cli.arguments import memory, whole
from gpupool._cli.output import say
from gpupool._cli.trace_file import trace_path, warn_of_cut
from gpupool._plot import comparison as _comparison
from gpupool._plot import output as _output
from gpupool._plot.picture import AddressMap, Chart, Picture
from gpupool._report.printable import printable
from gpupool._report.units import size
from gpupool._traces import trace as _trace
from gpupool._traces.bounds import MAX_LAG, MAX_THREADS
from gpupool._traces.progress import Progress, Turn
from gpupool._traces.replay import ALLOCATORS, HOST_MEMORY, Row, rows


def add(commands: Any) -> None:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="replay a program's allocations; a table shows the memory and time they take",
        description="Replay trace files, and print for each the memory and the time that it takes.",
        epilog="Events and times are those of one thread, times in nanoseconds for each event: cold in a first pass "
        "without cached memory, warm in later passes. Peak live is the peak of requested bytes, times --threads: an "
        "upper bound, because threads seldom reach their peaks together. Ratio is peak reserved over peak live.",
    )
    parser.add_argument(
        "traces",
        nargs="+",
        type=trace_path,
        metavar="TRACE",
        help="a CSV log of RMM or a memory snapshot of PyTorch, also with gzip; - is standard input",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line, sizes in bytes")
    parser.add_argument(
        "--threads",
        type=whole(1, MAX_THREADS),
        default=1,
        help=f"threads that replay the trace at once, at most {MAX_THREADS} (default: 1)",
    )
    parser.add_argument(
        "--allocator",
        choices=ALLOCATORS,
        default="gpupool",
        help="whose memory: gpupool's (default), the driver's (cuMemAlloc) or its pool's (cuMemAllocAsync); the last "
        "two need a GPU",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="replay with every allocator that is available here, simulate PyTorch's, and show what a snapshot says "
        "about the program's own",
    )
    parser.add_argument(
        "--memory",
        type=memory(1),
        metavar="SIZE",
        help="replay on a simulated device with this much memory, such as 22GiB: does the program fit there?",
    )
    parser.add_argument(
        "--lag",
        type=whole(0, MAX_LAG),
        default=0,
        metavar="N",
        help="replay on a simulated device that lags behind: each event is work on its stream, which ends when N more "
        f"were submitted on any, at most {MAX_LAG} (default: 0, so no work is ever under way). Times are then also "
        "those of simulating it. PyTorch's simulated rows need no lag, for it moves no memory between streams",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        help="also draw it: a .html, .png or .svg file, or several by giving it again",
    )


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Replay each trace, print a line for it as soon as it is done, and return the exit code."""
    _check(parser, options)
    paths, allocator, threads, outputs = options.traces, options.allocator, options.threads, options.output
    as_json, compare, lag = options.json, options.compare, options.lag
    for output in outputs:
        _output.check(output)
    if options.memory is not None or lag:
        os.environ["GPUPOOL_RUNTIME"] = "host"
    if options.memory is not None:
        os.environ["GPUPOOL_HOST_MEMORY"] = str(options.memory)
    os.environ.setdefault("GPUPOOL_HOST_MEMORY", str(HOST_MEMORY))
    runtime = gpupool.runtime()
    if allocator != "gpupool" and runtime == "host":
        raise gpupool.RuntimeUnavailable(
            f"--allocator {allocator} needs a GPU, and runtime host simulates one: leave the option out, or run where "
            "there is a CUDA driver and GPUPOOL_RUNTIME does not say host"
        )
    allocators = [allocator] if not compare else ["gpupool"] if runtime == "host" else list(ALLOCATORS)
    width = max(len("trace"), *(len(printable(os.path.basename(path))) for path in paths))
    device = "simulated device" if options.memory is None else f"simulated device of {size(options.memory)}"
    if not as_json:
        where = f"host ({device})" if runtime == "host" else runtime
        what = "allocators compared" if compare else f"allocator {allocator}"
        behind = f", lag {lag}" if lag else ""
        say(f"runtime {where}, {what}, {threads} thread{'s' if threads > 1 else ''}{behind}")
        if compare and runtime == "host":
            say("the driver's own allocators need a GPU, and are left out")
        if compare and threads == 1:
            say("torch and torch-exp: PyTorch's own, by default and with expandable segments, simulated by its rules")
        say(
            f"{'trace':<{width}} {'allocator ' if compare else ''}{'events':>8} {'peak live':>10} {'peak reserved':>13}"
            f" {'ratio':>6} {'driver calls':>12} {'moved pages':>11} {'cold ns':>8} {'warm ns':>8}"
        )
    charts: list[Chart | AddressMap] = []
    start = time.monotonic()
    for number, path in enumerate(paths, 1):
        turn = Turn(number, len(paths), start)
        with Progress(f"reading {printable(os.path.basename(path))}", turn) as progress:
            trace = _trace.read(path, progress)
        warn_of_cut(path, trace)
        found: list[Row] = []
        for row in rows(trace, threads, allocators, compare, lag=lag, draw=bool(outputs), turn=turn):
            say(_as_json(row, compare) if as_json else _as_text(row, width, compare))
            if row.out_of_memory is not None and not as_json:
                text = f"{row.allocator} ran out of memory{row.out_of_memory}"
                say(textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="    "))
            found.append(row)
        if not as_json and trace.device_count > 1:
            say(f"  device {trace.device}, which has most events of {trace.device_count} devices")
        if outputs:
            charts.append(_comparison.chart(trace, found))
    if outputs:
        title = "Allocators compared" if compare else f"Replay with {allocator}"
        where = f"a {device}" if runtime == "host" else runtime
        subtitle = f"what programs asked for, and what allocators reserved for it in a replay on {where}"
        picture = Picture(title, subtitle, [], charts)
    for output in outputs:
        with Progress(f"drawing {printable(output)}", counts=False):
            _output.write(output, picture)
        if not as_json:
            say(f"wrote {printable(output)}")
    return 0


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.compare and options.allocator != "gpupool":
        parser.error("--compare takes every allocator; leave --allocator out")
    if options.output and options.threads > 1:
        parser.error("a picture shows one thread; leave --threads out")
    simulating = "--memory" if options.memory is not None else "--lag" if options.lag else None
    if simulating and options.allocator != "gpupool":
        parser.error(f"{simulating} simulates a device, which has gpupool's allocator alone; leave --allocator out")


def _as_json(row: Row, compare: bool) -> str:
    line = asdict(row)
    del line["changes"]
    if row.out_of_memory is not None:
        line["out_of_memory"] = row.out_of_memory.lstrip(": ")
    if not compare:
        del line["allocator"], line["out_of_memory"], line["fails_at"]
    for name, digits in (("ratio", 4), ("cold_ns", 1), ("warm_ns", 1)):
        line[name] = None if line[name] is None else round(line[name], digits)
    return json.dumps(line)


def _as_text(row: Row, width: int, compare: bool) -> str:
    def whole(number: float | None) -> str:
        return "-" if number is None else f"{number:.0f}"

    reserved = "-" if row.peak_reserved is None else size(row.peak_reserved)
    ratio = "-" if row.ratio is None else f"{row.ratio:.3f}"

    return (
        f"{row.trace:<{width}} {f'{row.allocator:<9} ' if compare else ''}{row.events:>8} {size(row.peak_live):>10}"
        f" {reserved:>13} {ratio:>6} {whole(row.driver_calls):>12} {whole(row.moved_pages):>11}"
        f" {whole(row.cold_ns):>8} {whole(row.warm_ns):>8}"
    )
