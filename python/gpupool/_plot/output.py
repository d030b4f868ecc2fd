"""The forms of a picture, all by vl-convert, which renders Vega-Lite without a browser and without the network."""

import importlib.util
import os
import subprocess
import sys

import gpupool
from gpupool._plot import page as _page
from gpupool._plot import spec as _spec
from gpupool._plot.picture import Picture
from gpupool._traces import whole_file as _whole_file

SUFFIXES = (".html", ".png", ".svg")
_RENDERER = os.path.join(os.path.dirname(__file__), "renderer.py")


def check(path: str) -> None:
    """Refuse a file that could not be written, before the work for it.

    Raises:
        gpupool.InvalidValue: The name has another suffix, or its folder is missing.
        gpupool.LibraryNotFound: vl-convert is missing.
    """
    if os.path.splitext(path)[1].lower() not in SUFFIXES:
        raise gpupool.InvalidValue(f"{path}: a picture is a .html, .png or .svg file; name it so")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise gpupool.InvalidValue(f"{path}: cannot be written: there is no folder {folder}; make it first")
    need()


def need() -> None:
    """Look for what renders, without importing it: its library takes address space that reading a file may need.

    Raises:
        gpupool.LibraryNotFound: It is missing.
    """
    if importlib.util.find_spec("vl_convert") is None:
        raise gpupool.LibraryNotFound("pictures need vl-convert, which is missing: pip install 'gpupool[plot]'")


def render(picture: Picture, form: str) -> bytes:
    """Return the picture as the bytes of a file: ``.html``, ``.png`` or ``.svg``, in which text has a page's colour.

    Raises:
        gpupool.Error: It cannot be rendered.
    """
    use = _spec.Use.PAGE if form == ".html" else _spec.Use.IMAGE
    spec = _spec.text(picture, use)
    command = [sys.executable, "-P", _RENDERER, form]
    # What this process can import, that one can.
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, input=spec.encode(), capture_output=True, env=variables, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip("# ")]
        raise gpupool.Error(f"vl-convert, which renders pictures, ended with {done.returncode}: {' '.join(lines[:1])}")
    return _page.html(picture.title, spec, done.stdout.decode()).encode() if use is _spec.Use.PAGE else done.stdout


def write(path: str, picture: Picture) -> None:
    """Write the picture, as a whole or not at all.

    Raises:
        gpupool.Error: It cannot be rendered, or the file cannot be written.
    """
    content = render(picture, os.path.splitext(path)[1].lower())
    try:
        _whole_file.write(path, lambda file: file.write(content))
    except OSError as error:
        raise gpupool.Error(f"{path}: cannot be written: {error.strerror or error}") from error
