"""The files that pictures are written to: PNG needs matplotlib, HTML needs nothing."""

import os

import gpupool
from gpupool._plot.picture import Picture
from gpupool._traces import whole_file as _whole_file

SUFFIXES = (".html", ".png")


def check(path: str) -> None:
    """Refuse a file that could not be written, before the work for it.

    Raises:
        gpupool.InvalidValue: The name has another suffix, or its folder is missing.
        gpupool.LibraryNotFound: PNG needs matplotlib, which is missing.
    """
    if os.path.splitext(path)[1].lower() not in SUFFIXES:
        raise gpupool.InvalidValue(f"{path}: a picture is a .html or a .png file; name it so")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise gpupool.InvalidValue(f"{path}: cannot be written: there is no folder {folder}; make it first")
    if path.lower().endswith(".png"):
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise gpupool.LibraryNotFound(
                f"{path}: PNG needs matplotlib, which cannot be imported ({error}): pip install matplotlib; "
                "or write a .html file, which needs nothing"
            ) from error


def write(path: str, picture: Picture) -> None:
    """Write the picture, as a whole or not at all.

    Raises:
        gpupool.Error: The file cannot be written.
    """
    if path.lower().endswith(".png"):
        from gpupool._plot import figure as _figure

        content = _figure.png(picture)
    else:
        from gpupool._plot import page as _page

        content = _page.html(picture).encode()
    try:
        _whole_file.write(path, lambda file: file.write(content))
    except OSError as error:
        raise gpupool.Error(f"{path}: cannot be written: {error.strerror or error}") from error
