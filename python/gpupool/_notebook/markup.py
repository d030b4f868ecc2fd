"""Elements of HTML, from values that may be any text."""

from collections.abc import Iterable, Sequence
from html import escape

# The ground of a heading, and lines: of the colour of the text, but paler.
_LINE = "1px solid rgba(128,128,128,.35)"
_TABLE = "color:inherit;font-size:inherit;border-collapse:collapse;margin:.3em 0 .6em;font-variant-numeric:tabular-nums"
_CELL = "padding:.1em .8em .1em 0;vertical-align:top"


def element(name: str, text: str, style: str = "", **attributes: str) -> str:
    """Return an element around a text."""
    return around(name, escape(text), style, **attributes)


def around(name: str, inner: str, style: str = "", **attributes: str) -> str:
    """Return an element around what is HTML already."""
    given = {"style": style, **attributes} if style else attributes
    told = "".join(f' {key}="{escape(value)}"' for key, value in given.items())
    return f"<{name}{told}>{inner}</{name}>"


def box(*parts: str) -> str:
    """Return what a notebook shows of an object."""
    return around("div", "".join(parts), "color:inherit;max-width:100%;overflow-x:auto", **{"class": "gpupool"})


def title(name: str, states: Iterable[str] = ()) -> str:
    """Return the line that names an object, and says in which states it is."""
    badge = f"border:{_LINE};border-radius:.6em;padding:0 .5em;margin-left:.5em;font-weight:normal"
    told = "".join(element("span", state, badge) for state in states)
    return around("div", escape(name) + told, "font-weight:bold;margin:.2em 0")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first row has its headings.

    As in a table of text the first column is at the left, further ones with a heading at the right, and what stands
    beyond the headings are remarks.
    """
    head, *body = rows
    columns = max(map(len, rows))
    # A column whose heading is empty holds remarks.
    sides = ["left", *("right" if heading else "left" for heading in head[1:])]
    sides += ["left"] * (columns - len(sides))

    def row(cells: Sequence[str], name: str, more: str) -> str:
        filled = [*cells, *[""] * (columns - len(cells))]
        made = []
        for cell, side in zip(filled, sides, strict=True):
            # The rows of a table of text are indented below the one that they belong to.
            text = cell.lstrip(" ")
            # Numbers keep their units beside them; remarks may be long.
            space = "nowrap" if side == "right" or cell is filled[0] else "pre-wrap"
            style = f"{_CELL};white-space:{space};text-align:{side}{more}" + (
                ";padding-left:1.2em" if text != cell else ""
            )
            made.append(element(name, text, style))
        return around("tr", "".join(made))

    heads = row(head, "th", f";border-bottom:{_LINE};font-weight:600")
    rows_below = "".join(row(each, "td", "") for each in body)
    # Its own class, so that styles for tables without one, which some sites have, leave it alone.
    return around("table", around("thead", heads) + around("tbody", rows_below), _TABLE, **{"class": "gpupool"})


def bar(parts: Sequence[tuple[str, int, str, str]], whole: int) -> str:
    """Return a bar of the parts of a whole: the name, the number, the number as text, and the colour of each."""
    style = f"display:flex;height:.9em;max-width:46em;border:{_LINE};border-radius:.2em;overflow:hidden"
    drawn, named = [], []
    for name, number, shown, colour in parts:
        if number > 0:
            width = f"flex:none;width:{100 * number / max(whole, 1):.3f}%;background:{colour}"
            drawn.append(element("div", "", width, title=f"{name} {shown}"))
            named.append(around("span", swatch(colour) + escape(f"{name} {shown}"), "margin-right:1.2em"))
    return around("div", "".join(drawn), style) + around("div", " ".join(named), "margin:.2em 0 .4em;font-size:.9em")


def swatch(colour: str) -> str:
    """Return the mark of a legend."""
    style = f"display:inline-block;width:.7em;height:.7em;margin-right:.35em;background:{colour}"
    return element("span", "", f"{style};border:{_LINE}")
