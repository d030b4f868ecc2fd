"""How far a command is, on a terminal: what the line says, that it fits, and that nothing of it is left."""

import contextlib
import os
import pty
import sys
import termios

import pytest
from gpupool._traces import progress as _progress


def test_progress_is_for_terminals(monkeypatch, capsys):
    with _progress.Progress("working") as progress:
        monkeypatch.setattr(_progress.time, "monotonic", lambda: 1e12)
        progress(0.5)
    assert capsys.readouterr().err == ""


def test_progress_bar(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "52")
    with _progress.Progress("working") as progress:
        now[0] = 101.9
        progress(0.1)
        assert capsys.readouterr().err == ""
        now[0] = 170.0
        progress(0.25)
        shown = capsys.readouterr().err
        assert shown == "\rworking [" + "#" * 5 + " " * 15 + "]  25% 1:10, 3:30 left\x1b[K"
        assert len(shown) - len("\r\x1b[K") < 52
        progress(0.51)
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "\r\x1b[K"


def test_progress_among_several_counts_from_the_first(monkeypatch, capsys):
    monkeypatch.setattr(_progress.time, "monotonic", lambda: 103.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with _progress.Progress("working", _progress.Turn(3, 40, 100.0)) as progress:
        progress(0.0)
    assert capsys.readouterr().err.startswith("\r3 of 40, working [")


@pytest.mark.parametrize("part", [None, 0.0, 0.5, 1.0])
def test_progress_fits_any_terminal(part):
    name = "a_long_name-1.csv.gz"
    for width in range(200):
        shown = _progress.line(f"replaying {name} with gpupool", part, 3661.0, width)
        assert len(shown) <= width
        assert part is None or width < 12 or f"{part:4.0%}" in shown, width
        assert width < 60 or name in shown, width
        assert width < 80 or "1:01:01" in shown, width


@contextlib.contextmanager
def terminal(monkeypatch):
    """A terminal of 30 columns as standard error, of which the other end is read."""
    seen, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 30))
    with open(end, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setenv("TERM", "xterm")
        # Of another terminal than the one that is written to.
        patch.setenv("COLUMNS", "200")
        yield seen
    os.close(seen)


def read_until(seen, end):
    shown = b""
    while not shown.endswith(end):
        shown += os.read(seen, 1 << 16)
    return shown


def test_progress_fits_the_terminal_that_it_is_on(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with terminal(monkeypatch) as seen, _progress.Progress("reading a_long_name-1.csv.gz") as progress:
        now[0] = 109.0
        progress(0.5)
        shown = read_until(seen, b"\x1b[K")
    assert shown == b"\rreading a_long... [##  ]  50%\x1b[K"
    assert len(shown) - len(b"\r\x1b[K") < 30


def test_work_without_parts_shows_its_time(monkeypatch):
    monkeypatch.setattr(_progress, "DELAY", -60)
    monkeypatch.setattr(_progress, "TICK", 0)
    with terminal(monkeypatch) as seen:
        with contextlib.suppress(KeyboardInterrupt), _progress.Progress("drawing a.png", counts=False):
            assert read_until(seen, b"\x1b[K").startswith(b"\rdrawing a.png 0:0")
            raise KeyboardInterrupt
        # The line is gone, and nothing comes after it.
        print("end", file=sys.stderr, end="", flush=True)
        assert read_until(seen, b"end").endswith(b"\r\x1b[Kend")


def test_progress_inside_takes_the_others_place(monkeypatch):
    monkeypatch.setattr(_progress, "DELAY", -60)
    with (
        terminal(monkeypatch) as seen,
        _progress.Progress("outside") as outside,
        _progress.Progress("inside") as inside,
    ):
        outside(0.5)
        inside(0.5)
        assert read_until(seen, b"\x1b[K").startswith(b"\rinside [")


def test_no_progress_on_a_terminal_that_erases_nothing(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "DELAY", -60)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with _progress.Progress("working") as progress:
        progress(0.5)
    assert capsys.readouterr().err == ""
