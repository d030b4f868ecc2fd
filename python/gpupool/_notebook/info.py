"""The report of ``gpupool.info()``, section by section as its text has them, and its problems marked."""

from typing import TYPE_CHECKING

from gpupool._notebook.markup import box, element, title
from gpupool._plot.picture import PALETTE
from gpupool._report.info import text as _text

if TYPE_CHECKING:
    from gpupool._report.info.report import Info

# Lines of a report are in columns, so that they keep their spaces.
_LINES = "margin:0 0 .5em;padding:.1em .8em;white-space:pre-wrap;background:none;color:inherit;border-left:3px solid "
_MARKS = {"error": PALETTE["vermillion"], "warning": PALETTE["orange"], "": "rgba(128,128,128,.35)"}


def html(info: "Info") -> str:
    """Return the report as HTML."""
    head, *sections = _text.sections(info)
    severities = {problem.severity for problem in info.problems}
    worst = "error" if "error" in severities else "warning" if severities else ""
    parts = [title("\n".join(head[1]))]
    for name, lines in sections:
        mark = _MARKS[worst if name == "Problems" else ""]
        parts += [title(name), element("pre", "\n".join(line.removeprefix("  ") for line in lines), _LINES + mark)]
    return box(*parts)
