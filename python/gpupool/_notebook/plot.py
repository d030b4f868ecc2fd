"""``gpupool.plot()``: the picture that the command ``gpupool plot`` draws, as an object that a notebook shows."""

import os
import pickle
import subprocess
import sys
from typing import SupportsIndex

import gpupool
from gpupool import _native
from gpupool._frameworks import plug as _plug
from gpupool._plot import draw as _draw
from gpupool._plot import output as _output
from gpupool._plot import thin as _thin
from gpupool._plot.picture import Picture
from gpupool._traces import trace as _trace
from gpupool._traces.bounds import MAX_TIME

__all__ = ["Plot", "plot"]


class Plot:
    """A picture of memory, which a notebook shows in its page's colours; :func:`plot` draws it."""

    def __init__(self, picture: Picture) -> None:
        """Keep a picture that is drawn."""
        self._picture = picture

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file: ``.html``, a page that zooms and tells of each block, ``.png`` or ``.svg``.

        Raises:
            gpupool.InvalidValue: The name has another suffix, or its folder is missing.
            gpupool.LibraryNotFound: vl-convert is missing: ``pip install 'gpupool[plot]'``.
            gpupool.Error: The file cannot be written.
        """
        name = os.fsdecode(path)
        _output.check(name)
        _output.write(name, self._picture)

    def __repr__(self) -> str:
        """Return what the picture is of, and its most important numbers."""
        told = [self._picture.subtitle, *(f"{name} {value}" for name, value in self._picture.facts)]
        return f"<gpupool.typing.Plot of {self._picture.title}: {'; '.join(told)}>"

    def _repr_html_(self) -> str:
        """Return the picture as HTML with a drawing in SVG, for a notebook."""
        from gpupool._notebook.markup import around, box, element

        try:
            _output.need()
        except gpupool.LibraryNotFound as error:
            return box(element("pre", f"{self!r}\n{error}"))
        return box(around("div", _output.render(_thin.thin(self._picture), ".svg").decode(), "color:inherit"))


def plot(
    file: str | os.PathLike[str] | None = None,
    *,
    device: SupportsIndex | None = None,
    at: str | float | None = None,
) -> Plot:
    """Draw a trace file, or the memory of this process: what ``gpupool plot`` draws, for a notebook.

    >>> buffer = gpupool.empty(1 << 20)
    >>> gpupool.plot()
    <gpupool.typing.Plot of this process: ...>

    Args:
        file: A snapshot or a log, as for ``gpupool plot``. It is read in a process of its own, in which devices are
            simulated, so that a log that has to be replayed takes none of a GPU's memory. Without one the picture is of
            this process now; its memory over time is in it after :func:`record_memory_history`.
        device: The device's ordinal; by default the one with most events.
        at: The moment of the address map: ``"end"``, ``"peak"``, or seconds from the start.

    Raises:
        gpupool.InvalidValue: The moment is none, or the snapshot has no trace to tell of it.
        gpupool.Error: The file cannot be read, or has nothing to draw.
        gpupool.Forked: The process is a forked child.
    """
    moment = _moment(at)
    ordinal = None if device is None else _plug.index_of("device", device, "a device's ordinal, or None")
    if file is not None:
        return Plot(_drawn_apart(os.fsdecode(file), ordinal, moment))
    return Plot(_draw.draw(_trace.of_process(_native.memory_snapshot(), ordinal), moment))


def _moment(at: str | float | None) -> str | None:
    if at is None or (isinstance(at, str) and at in ("end", "peak")):
        return at
    try:
        seconds = -1.0 if isinstance(at, bool) else float(at)
    except (TypeError, ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds * 1e6 <= MAX_TIME:
        raise gpupool.InvalidValue(f"at must be 'end', 'peak' or seconds from the start, not {at!r}")
    return str(seconds)


def _drawn_apart(path: str, device: int | None, moment: str | None) -> Picture:
    """Return the picture of a file, which a new process reads and draws."""
    command = [sys.executable, "-m", "gpupool._notebook.apart"]
    # This package may not be installed where a new process looks.
    folder = os.path.dirname(os.path.dirname(gpupool.__file__))
    known = os.environ.get("PYTHONPATH")
    variables = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{known}" if known else folder}
    asked = pickle.dumps((path, device, moment))
    done = subprocess.run(command, input=asked, capture_output=True, env=variables, check=False)
    try:
        name, told = pickle.loads(done.stdout)
    except (EOFError, pickle.UnpicklingError):
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise gpupool.Error(f"{path}: the process that reads it ended with {done.returncode}: {last}") from None
    if name == "picture":
        picture: Picture = told
        return picture
    raise (gpupool.InvalidValue if name == "InvalidValue" else gpupool.Error)(told)
