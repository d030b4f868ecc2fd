"""The Markdown of docstrings for the reference: links of Sphinx's roles and of addresses, blocks of doctest lines."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|func|meth|mod|obj):`~?([^`]+)`")
ADDRESS = re.compile(r"(?<![<\"`\w])(?<!\]\()(https://[^\s<>)`]*[^\s<>)`.,;:])")
PROMPT = re.compile(r"^((?:>>>|\.\.\.)(?: .*)?)$")


NATIVE = "gpupool._native."
# Where what the compiled part has is public, if not in the package itself: by its names there.
PUBLIC: dict[str, str] = {}


def target(name: str, place: griffe.Object) -> str | None:
    """Return the reference's name for what a name in an object's docstring means; None for what it does not have."""
    scope: griffe.Object | None = place
    while scope is not None:
        found: Any = scope
        for part in name.removeprefix("gpupool.").split("."):
            found = found.members.get(part) if found is not None else None
        # The reference has what has a docstring.
        if found is not None and found.docstring is not None:
            path = f"{scope.path}.{name.removeprefix('gpupool.')}"
            own, dot, member = path.removeprefix(NATIVE).partition(".")
            return PUBLIC.get(own, f"gpupool.{own}") + dot + member if path.startswith(NATIVE) else path
        scope = scope.parent
    return None


def markdown(text: str, place: griffe.Object) -> str:
    """Return the docstring of an object as Markdown."""

    def link(role: re.Match[str]) -> str:
        meant = target(role[1], place)
        return f"[`{role[1]}`][{meant}]" if meant else f"`{role[1]}`"

    lines: list[str] = []
    is_code = False
    for line in text.splitlines():
        # What a line prints follows it, up to a blank line.
        is_of_code = PROMPT.match(line) is not None or (is_code and line.strip() != "")
        if is_of_code != is_code:
            # A blank line before, so that Markdown takes the fence for one.
            lines += ["```", ""] if is_code else ["", "```pycon"]
            is_code = is_of_code
        lines.append(line if is_of_code else ADDRESS.sub(r"<\1>", ROLE.sub(link, line)))
    return "\n".join([*lines, "```"] if is_code else lines)


class Docstrings(griffe.Extension):
    """An extension that rewrites every docstring once the package is read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Begin with the package itself."""
        for module in ("typing", "torch"):
            for name, member in pkg.members[module].members.items():
                if isinstance(member, griffe.Alias) and member.target_path.startswith(NATIVE):
                    PUBLIC[name] = f"gpupool.{module}.{name}"
        self.rewrite(pkg)

    def rewrite(self, place: griffe.Object) -> None:
        """Rewrite an object's docstring and those of its members."""
        # griffe takes a class's parameters from this alone.
        if "__new__" in place.members and "__init__" not in place.members:
            place.members["__init__"] = place.members["__new__"]
        if place.docstring is not None:
            place.docstring.value = markdown(place.docstring.value, place)
        for member in place.members.values():
            if isinstance(member, griffe.Object):
                self.rewrite(member)
