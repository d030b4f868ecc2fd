"""The options of ``gpupool top``, and which of its forms they ask for."""

import argparse
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from gpupool._cli.output import complain, say
from gpupool._cli.top.columns import KEYS
from gpupool._cli.top.snapshot import Snapshot, Watch
from gpupool._cli.top.view import LEAST, MOST, View, plain


def add(commands: Any) -> None:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "top",
        help="who holds the memory of each device: a live table of the processes that use gpupool",
        description="Show for each device the processes of this user that use gpupool and tell of themselves, and what "
        "they hold of its memory, from the largest on. All else on the device, such as programs without gpupool, "
        "contexts and libraries' own memory, is one row: what the driver counts beyond what these processes have "
        "reserved. In a terminal the table is live and has keys, of which h shows a list; elsewhere it is printed as "
        "text each time. Colours are left out if NO_COLOR is set.",
        epilog="It makes no context on any device and takes none of its memory: on NVIDIA's, NVML counts. A process "
        "tells of itself after gpupool.set_neighbour(), by gpupool run --neighbours, or with GPUPOOL_NEIGHBOURS=1 in "
        "its environment. In the table G is GiB and M is MiB; in JSON sizes are in bytes, and what is "
        "unknown or not set is null.",
    )
    parser.add_argument("--once", action="store_true", help="print the table once, as text, and end")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object a line: one each time, or with --once one alone"
    )
    parser.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help=f"how often to look, {LEAST:g} to {MOST:g} (default: 1)",
    )
    parser.add_argument(
        "--sort",
        choices=KEYS,
        default="reserved",
        metavar="COLUMN",
        help=f"the column to sort by: {', '.join(KEYS)} (default: reserved)",
    )
    parser.add_argument(
        "--pools",
        action="store_true",
        help="ask each process for its pools and what other libraries hold, and show those below it, from the largest "
        "on, at most 64 each",
    )
    parser.add_argument("--device", type=int, metavar="N", help="show this device alone (default: all)")


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Show devices and processes as the options say until the person ends it, and return the exit code."""
    look = Watch(options.device).look
    view = View(sort=options.sort, device=options.device, interval=options.interval, has_pools=options.pools)
    # Textual reads keys from the first and draws on the last; the table belongs to the second.
    streams = (sys.stdin, sys.stdout, sys.stderr)
    has_terminal = all(stream is not None and stream.isatty() for stream in streams)
    if options.once or options.json or not has_terminal or os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        _print(look, view, as_json=options.json, once=options.once)
        return 0
    try:
        from gpupool._cli.top.screen import watch
    except ImportError:
        complain("gpupool: the live table, with keys and colours, comes with: pip install 'gpupool[cli]'")
        _print(look, view, as_json=False, once=False)
        return 0
    return watch(look, view)


def _print(look: Callable[..., Snapshot], view: View, *, as_json: bool, once: bool) -> None:
    """Print what each look finds, as wide as a terminal is if there is one."""
    while True:
        snapshot = look(pools=view.has_pools).only(view.device)
        if as_json:
            say(snapshot.to_json())
        else:
            # Without a terminal, and without COLUMNS, nothing is left out.
            room = shutil.get_terminal_size((0, 0)).columns or None
            say(_as_text(snapshot, view, room) + ("" if once else "\n"))
        if once:
            return
        _pause(view.interval)


def _as_text(snapshot: Snapshot, view: View, room: int | None) -> str:
    try:
        from gpupool._cli.top.table import as_text
    except ImportError:
        return plain(snapshot, view)
    return as_text(snapshot, view, room)


def _pause(seconds: float) -> None:
    """Sleep, for at most a second at a time: a signal just before the system sleeps is seen only when that ends."""
    whole, rest = divmod(seconds, 1.0)
    for each in (*[1.0] * int(whole), rest):
        time.sleep(each)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not LEAST <= seconds <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from {LEAST:g} to {MOST:g}")
    return seconds
