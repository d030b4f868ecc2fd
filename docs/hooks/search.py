"""Names in the site's search: who types one finds its place in the reference first.

The theme's search (lunr) looks for words that begin with what was typed, and weighs a match by its field alone. So each
section of the reference gets its names in fields of their own, each with a weight: what can only be a name (with a dot,
or in camel case) weighs most, a name that is a word as well little more than a title, and of a name that begins with
such a word (`memory_stats`) less, so that a question in words finds the guide.

What people type who look for a page, beside its title, is in `extra.asked` of mkdocs.yml.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority

# The weights of the fields where a section's own weight is 1; those of the theme are 1 for text and 1,000 for titles.
FIELDS = {
    "dotted": 1.2e4,
    "dotted_member": 4e3,
    "camel": 4e4,
    "word": 2e6,
    "member": 1e6,
    "snake": 1e4,
    "snake_member": 5e3,
    "whole": 1,
    "asked": 50,
}
# What is asked for, by the addresses of pages.
ASKED: dict[str, str] = {}
ANCHOR = re.compile(r"#(gpupool(?:\.\w+)+)$")
CAMEL = re.compile(r"[a-z][A-Z]")


def is_property(section: dict[str, Any]) -> bool:
    """Return whether a section is that of a property."""
    return "<code>property</code>" in section["title"]


def weight(path: str, is_light: bool) -> float:
    """Return what a section of the reference weighs: less than the guide's in its text, and less for long names.

    Those begin with shorter ones, and words that are seldom weigh more. Light are properties, and methods whose names
    begin with that of a property (`reserve_range`), which is found first.
    """
    length = len(path.removeprefix("gpupool."))
    return 0.01 * (10 / max(6, length)) ** 2 * (0.1 if is_light else 1)


def fields(path: str) -> dict[str, str]:
    """Return the fields of a name of the reference, such as ``gpupool.MemPool.trim``."""
    parts = path.split(".")
    last = parts[-1]
    # A class in a module is as much of a name as one of the package.
    is_member = len(parts) > 2 and not last[0].isupper()
    suffix = "_member" if is_member else ""
    found = {f"dotted{suffix}": " ".join(".".join(parts[start:]) for start in range(len(parts) - 1))}
    if "_" in last:
        found[f"snake{suffix}"] = last
    elif CAMEL.search(last):
        found["camel"] = last
    else:
        found["member" if is_member else "word"] = last
    return found


def named(section: dict[str, Any], properties: tuple[str, ...]) -> dict[str, Any]:
    """Return a section of the index, with its names if it is one of the reference, or with what it is asked for by.

    Properties are those of the reference, each with what a longer name has behind it.
    """
    anchor = ANCHOR.search(section["location"])
    if anchor is None:
        asked = ASKED.get(section["location"])
        return section if asked is None else {**section, "asked": asked}
    path, title = anchor[1], section["title"]
    last = path.rsplit(".", 1)[-1]
    if path not in title:
        # Members stand under their class there, and alone in what was found.
        title = title.replace(last, path.removeprefix("gpupool."), 1)
    # What was found is shown with its first paragraph; the rest is looked through, too.
    text = section["text"]
    first = text[: text.index("</p>") + 4] if "</p>" in text else text
    boost = weight(path, is_property(section) or path.startswith(properties))
    found = fields(path)
    if last.startswith(tuple(word for words in ASKED.values() for word in words.split())):
        # A member such as `leaked`, which is found by its class's name, is not before the page for the question.
        found.pop("member", None)
    return {**section, "title": title, "text": first, "whole": text, "boost": boost, **found}


def on_page_context(context: Any, page: Any, config: Any, **_: Any) -> Any:
    """Keep what a page is asked for by."""
    asked = config.extra["asked"].get(page.file.src_uri)
    if asked is not None:
        ASKED[page.url] = " ".join(asked)
    return context


# After the search has written its index.
@event_priority(-100)
def on_post_build(config: Any, **_: Any) -> None:
    """Give the names of the reference to the index."""
    place = Path(config.site_dir) / "search/search_index.json"
    index = json.loads(place.read_text())
    index["config"]["fields"] |= {name: {"boost": weight} for name, weight in FIELDS.items()}
    anchors = [ANCHOR.search(section["location"]) for section in index["docs"] if is_property(section)]
    properties = tuple(f"{anchor[1]}_" for anchor in anchors if anchor)
    index["docs"] = [named(section, properties) for section in index["docs"]]
    place.write_text(json.dumps(index, separators=(",", ":")))
