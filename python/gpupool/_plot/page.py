"""A picture as a web page: one file that needs no network, with `page.html` as its frame."""

import html as markup
import json
import os
from importlib import resources

import gpupool
from gpupool._plot.picture import PALETTE, ROWS, Picture, Place, Region

# The line near the start of a page by which it is known as one of gpupool's.
GENERATOR = '<meta name="generator" content="gpupool">'


def html(picture: Picture) -> str:
    """Return the page."""
    template = resources.files("gpupool._plot").joinpath("page.html").read_text(encoding="utf-8")
    palette = " ".join(f"--{name}: {colour};" for name, colour in PALETTE.items())
    template = template.replace("@PALETTE@", palette).replace("@ROWS@", str(ROWS))
    # Only a less-than sign could end the script element.
    data = json.dumps(picture, default=_packed, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    head, rest = template.split("@TITLE@")
    middle, tail = rest.split("@DATA@")
    return f"{head}{markup.escape(picture.title)}{middle}{data}{tail}"


def _packed(part: object) -> object:
    if isinstance(part, Place):
        # There are many blocks: without the names of their fields they take a third.
        return list(vars(part).values())
    if isinstance(part, Region):
        # JavaScript's numbers do not hold every address.
        return {**vars(part), "address": f"{part.address:#x}"}
    return vars(part)


def name_for(path: str) -> str:
    """Return the name of the page for a file, in the current folder.

    Raises:
        gpupool.InvalidValue: A file of that name is there which gpupool did not write.
        gpupool.Error: A file of that name is there which cannot be read.
    """
    stem = os.path.basename(path)
    stem = stem[:-3] if stem.endswith(".gz") else stem
    name = os.path.splitext(stem)[0] + ".html"
    try:
        with open(name, encoding="utf-8", errors="replace") as file:
            if GENERATOR not in file.read(1000):
                raise gpupool.InvalidValue(f"{name} is there already, and not of gpupool; name another with -o")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise gpupool.Error(f"{name}: cannot be written: {error.strerror or error}") from error
    return name
