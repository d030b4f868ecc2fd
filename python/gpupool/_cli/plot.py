"""The command ``gpupool plot``: it reads a trace file, has it drawn and writes the picture."""

import argparse
import os
from typing import Any

from gpupool._cli.output import say
from gpupool._cli.trace_file import trace_path, warn_of_cut
from gpupool._plot import draw as _draw
from gpupool._plot import output as _output
from gpupool._plot import page as _page
from gpupool._report.printable import printable
from gpupool._traces import bounds as _bounds
from gpupool._traces import trace as _trace
from gpupool._traces.progress import Progress
from gpupool._traces.replay import HOST_MEMORY


def add(commands: Any) -> None:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "plot",
        help="draw a trace file: memory over time, the address map of a moment, handles over time",
        description="Draw a trace file: memory over time, the address map of a moment, handles over time.",
        epilog="A log of RMM does not contain the reserved bytes; they come from a replay with gpupool on a simulated "
        "device. Pictures need vl-convert: pip install 'gpupool[plot]'.",
    )
    parser.add_argument(
        "file",
        type=trace_path,
        metavar="FILE",
        help="a CSV log of RMM, or a memory snapshot of PyTorch or gpupool, also with gzip; - is standard input",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        action="append",
        default=[],
        help="a .html, .png or .svg file, or several by giving it again (default: FILE's name with .html, in this "
        "folder)",
    )
    parser.add_argument("--device", type=int, help="which device of a snapshot (default: the one with most events)")
    parser.add_argument(
        "--at",
        type=_moment,
        metavar="MOMENT",
        help="the address map's moment: end, peak, or seconds from the start (default: a snapshot's end, a log's peak)",
    )


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Draw the file once, print the name of each picture, and return the exit code."""
    _simulate()
    path = options.file
    outputs = options.output or [_page.name_for(path)]
    for output in outputs:
        _output.check(output)
    with Progress(f"reading {printable(os.path.basename(path))}") as progress:
        file = _trace.read_file(path, options.device, progress)
    if file.trace is not None:
        warn_of_cut(path, file.trace)
    with Progress(f"laying out {printable(file.name)}", counts=False):
        picture = _draw.draw(file, options.at)
    for output in outputs:
        with Progress(f"drawing {printable(output)}", counts=False):
            _output.write(output, picture)
    others = [other for other in file.devices if other != file.device]
    if others and options.device is None:
        say(f"device {file.device}, which has most; --device {_bounds.first_of(others, ' or ')} draws another")
    for output in outputs:
        say(f"wrote {printable(output)}")
    return 0


def _simulate() -> None:
    """Let replays run on a simulated device: a picture needs no GPU, and takes none of its memory."""
    os.environ.setdefault("GPUPOOL_RUNTIME", "host")
    os.environ.setdefault("GPUPOOL_HOST_MEMORY", str(HOST_MEMORY))


def _moment(text: str) -> str:
    try:
        if text in ("end", "peak") or 0 <= float(text) * 1e6 <= _bounds.MAX_TIME:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is neither end nor peak nor a number of seconds")
