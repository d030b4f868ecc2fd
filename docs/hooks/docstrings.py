"""The Markdown of docstrings for the reference: Sphinx's roles as links, and a block for lines of doctest."""

import re
from typing import Any

import griffe

# What a link means is found in the scope of its docstring (scoped_crossrefs in mkdocs.yml).
ROLE = re.compile(r":(?:attr|class|func|meth|mod|obj):`~?([^`]+)`")
# What a line prints follows it, up to a blank line.
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """An extension that rewrites every docstring once the package is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        # griffe takes a class's parameters from this alone.
        if "__new__" in obj.members and "__init__" not in obj.members:
            obj.members["__init__"] = obj.members["__new__"]
        if obj.docstring is not None:
            # A blank line before a block, so that Markdown takes its fence for one.
            text = DOCTEST.sub(r"\n```pycon\n\g<0>\n```\n", obj.docstring.value)
            obj.docstring.value = ROLE.sub(r"[`\1`][\1]", text)
