"""The commands, their options and their exit codes."""

import argparse
import sys
import warnings
from collections.abc import Callable

import gpupool
from gpupool._cli import demo as _demo
from gpupool._cli import ending as _ending
from gpupool._cli import plot as _plot
from gpupool._cli import replay as _replay
from gpupool._cli import run as _run_program
from gpupool._cli.output import say
from gpupool._cli.top import command as _top
from gpupool._report.units import parse_size, size
from gpupool._traces.bounds import MAX_TIME
from gpupool._traces.replay import ALLOCATORS, MAX_THREADS

# The most memory of a simulated device.
_MOST_MEMORY = 1 << 47


def main(arguments: list[str] | None = None) -> int | Callable[[], int]:
    """Run one command and return the exit code, or what runs a program that is to end as it likes."""
    programs: list[Callable[[], int]] = []
    code = _ending.end(lambda: _run(arguments, programs))
    return programs[0] if programs else code


def _run(arguments: list[str] | None, programs: list[Callable[[], int]]) -> int:
    parser = argparse.ArgumentParser(prog="gpupool", description="Handle pools and device memory for GPU programs.")
    parser.add_argument("--version", action="version", version=f"gpupool {gpupool.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser(
        "info",
        help="what gpupool finds and uses here, and whether it works",
        description="Print versions, devices, libraries, frameworks, environment variables and problems. Every "
        "library is loaded, and on each device a handle of each is created and 2 MiB are allocated. The exit code is 1 "
        "if something is installed and does not work; a missing library does not count.",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.add_argument("--no-smoke-test", action="store_true", help="load, create and allocate nothing")
    demo = commands.add_parser("demo", help="threads come and go and share handles; a table shows what that saves")
    demo.add_argument(
        "--threads", type=int, default=16, help=f"threads alive at a time, at most {MAX_THREADS} (default: 16)"
    )
    demo.add_argument("--waves", type=int, default=8, help="how often all threads end and new ones start (default: 8)")
    replay = commands.add_parser(
        "replay",
        help="replay a program's allocations; a table shows the memory and time they take",
        description="Replay trace files, and print for each the memory and the time that it takes.",
        epilog="Events and times are those of one thread, times in nanoseconds for each event: cold in a first pass "
        "without cached memory, warm in later passes. Peak live is the peak of requested bytes, times --threads: an "
        "upper bound, because threads seldom reach their peaks together. Ratio is peak reserved over peak live.",
    )
    replay.add_argument(
        "traces", nargs="+", metavar="TRACE", help="a CSV log of RMM or a memory snapshot of PyTorch, also with gzip"
    )
    replay.add_argument("--json", action="store_true", help="print one JSON object a line, sizes in bytes")
    replay.add_argument(
        "--threads",
        type=int,
        default=1,
        help=f"threads that replay the trace at once, at most {MAX_THREADS} (default: 1)",
    )
    replay.add_argument(
        "--allocator",
        choices=ALLOCATORS,
        default="gpupool",
        help="whose memory: gpupool's (default), the driver's (cuMemAlloc) or its pool's (cuMemAllocAsync); the last "
        "two need a GPU",
    )
    replay.add_argument(
        "--compare",
        action="store_true",
        help="replay with every allocator that is available here, simulate PyTorch's, and show what a snapshot says "
        "about the program's own",
    )
    replay.add_argument(
        "--memory",
        type=_size,
        metavar="SIZE",
        help="replay on a simulated device with this much memory, such as 22GiB: does the program fit there?",
    )
    replay.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        help="also draw it: a .html or a .png file, or both by giving it twice",
    )
    plot = commands.add_parser(
        "plot",
        help="draw a trace file: memory over time, the address map of a moment, handles over time",
        description="Draw a trace file: memory over time, the address map of a moment, handles over time.",
        epilog="A log of RMM does not contain the reserved bytes; they come from a replay with gpupool on a simulated "
        "device. PNG needs matplotlib: pip install matplotlib.",
    )
    plot.add_argument("file", metavar="FILE", help="a CSV log of RMM, or a memory snapshot of PyTorch or gpupool")
    plot.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        action="append",
        default=[],
        help="a .html or a .png file, or both by giving it twice (default: FILE's name with .html, in this folder)",
    )
    plot.add_argument("--device", type=int, help="which device of a snapshot (default: the one with most events)")
    plot.add_argument(
        "--at",
        type=_moment,
        metavar="MOMENT",
        help="the address map's moment: end, peak, or seconds from the start (default: a snapshot's end, a log's peak)",
    )
    _top.add(commands)
    run = _run_program.add(commands)
    arguments, program = list(sys.argv[1:] if arguments is None else arguments), None
    if arguments[:1] == ["run"]:
        own, program = _run_program.split(arguments[1:])
        arguments[1:] = own
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        # With the usage of the command that was given, which argparse leaves to the program.
        commands.choices.get(options.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command != "run":
        # What they print says so.
        warnings.filterwarnings("ignore", "no GPU was found", RuntimeWarning)
    if options.command == "demo" and (options.threads < 1 or options.waves < 1):
        parser.error("--threads and --waves must be at least 1")
    if options.command == "demo" and options.threads > MAX_THREADS:
        parser.error(f"--threads must be at most {MAX_THREADS}")
    if options.command == "replay":
        if not 1 <= options.threads <= MAX_THREADS:
            parser.error(f"--threads must be at least 1 and at most {MAX_THREADS}")
        if options.compare and options.allocator != "gpupool":
            parser.error("--compare takes every allocator; leave --allocator out")
        if options.output and options.threads > 1:
            parser.error("a picture shows one thread; leave --threads out")
        if options.memory is not None and options.allocator != "gpupool":
            parser.error("--memory simulates a device, which has gpupool's allocator alone; leave --allocator out")
    if options.command == "info":
        found = gpupool.info(smoke_test=not options.no_smoke_test)
        say(found.to_json() if options.json else str(found))
        return 0 if found.ok else 1
    if options.command == "run":
        programs.append(_run_program.prepare(run, options, program))
    elif options.command == "demo":
        _demo.run(threads=options.threads, waves=options.waves)
    elif options.command == "top":
        _top.run(options)
    elif options.command == "plot":
        _plot.run(options.file, options.output, options.device, options.at)
    else:
        _replay.run(
            options.traces,
            options.threads,
            options.allocator,
            options.json,
            options.compare,
            options.output,
            options.memory,
        )
    return 0


def _size(text: str) -> int:
    try:
        nbytes = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 1 <= nbytes <= _MOST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text!r} is the memory of no device: at most {size(_MOST_MEMORY)}")
    return nbytes


def _moment(text: str) -> str:
    try:
        if text in ("end", "peak") or 0 <= float(text) * 1e6 <= MAX_TIME:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is neither end nor peak nor a number of seconds")
