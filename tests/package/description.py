"""Makes the README's links absolute in what is uploaded to PyPI, whose project page has no files for relative ones.

Usage: description.py WHEEL_OR_SDIST. It rewrites the description in the metadata of that file, in place, and fails if a
link on the rendered page is then still relative, or leads to no file or heading of this repository. The links lead to
the tag of the version, at the address `Repository` in pyproject.toml. crates.io makes a README's links absolute itself.
"""

import base64
import hashlib
import io
import re
import sys
import tarfile
import tomllib
import zipfile
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A link's target; of code, which comes first and has none, nothing is changed.
TARGET = re.compile(r"```.*?```|`[^`]*`|(?<=\]\()(?P<target>[^)\s]+)(?=\))", re.DOTALL)


def base(root: Path) -> dict[str, str]:
    """Return where pages, pictures and folders of the version are, by the kind's name in GitHub's addresses."""
    repository = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    version = tomllib.loads((root / "Cargo.toml").read_text())["package"]["version"]
    return {kind: f"{repository}/{kind}/v{version}/" for kind in ("blob", "raw", "tree")}


def absolute(text: str, root: Path) -> str:
    """Return a README with absolute links."""
    addresses = base(root)

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or re.match(r"[a-z]+:", target):
            return found[0]
        # PyPI gives headings no names, so that links within the page would do nothing.
        if target.startswith("#"):
            target = f"README.md{target}"
        path = root / target.partition("#")[0]
        kind = "tree" if path.is_dir() else "raw" if path.suffix in (".png", ".svg") else "blob"
        return addresses[kind] + target

    return TARGET.sub(link, text)


class Links(HTMLParser):
    """Collects what a page links to and shows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]


def headings(text: str) -> set[str]:
    """Return the names that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead(text: str, root: Path) -> list[str]:
    """Return the links of a description that lead nowhere."""
    # Only what packages are made with has it.
    from markdown_it import MarkdownIt

    page = Links()
    page.feed(MarkdownIt("commonmark").enable("table").render(text))
    addresses = base(root)
    wrong = []
    for link in page.found:
        address = next((address for address in addresses.values() if link.startswith(address)), None)
        path, _, heading = link.removeprefix(address or "").partition("#")
        if address is None:
            good = link.startswith("https://")
        else:
            good = (root / path).exists() and (not heading or heading in headings((root / path).read_text()))
        if not good:
            wrong.append(link)
    return wrong


def rewritten(metadata: bytes, root: Path) -> bytes:
    """Return a distribution's metadata with its description's links made absolute."""
    head, _, description = metadata.decode().partition("\n\n")
    return f"{head}\n\n{absolute(description, root)}".encode()


def rewrite_wheel(wheel: Path, root: Path) -> bytes:
    """Rewrite a wheel; return its metadata."""
    with zipfile.ZipFile(wheel) as old:
        files = [(info, old.read(info)) for info in old.infolist()]
    (metadata,) = (rewritten(data, root) for info, data in files if info.filename.endswith(".dist-info/METADATA"))
    digest = base64.urlsafe_b64encode(hashlib.sha256(metadata).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for info, data in files:
            if info.filename.endswith(".dist-info/METADATA"):
                data = metadata
            elif info.filename.endswith(".dist-info/RECORD"):
                line = rf"\g<1>,sha256={digest},{len(metadata)}"
                data = re.sub(r"(?m)^(\S+\.dist-info/METADATA),.*$", line, data.decode()).encode()
            new.writestr(info, data)
    return metadata


def rewrite_sdist(sdist: Path, root: Path) -> bytes:
    """Rewrite a source distribution; return its metadata. Its README.md keeps its relative links."""
    with tarfile.open(sdist) as old:
        files = [(info, old.extractfile(info).read() if info.isfile() else b"") for info in old]
    (metadata,) = (rewritten(data, root) for info, data in files if re.fullmatch(r"[^/]+/PKG-INFO", info.name))
    with tarfile.open(sdist, "w:gz") as new:
        for info, data in files:
            if re.fullmatch(r"[^/]+/PKG-INFO", info.name):
                data = metadata
            info.size = len(data)
            new.addfile(info, io.BytesIO(data))
    return metadata


def main(distribution: Path) -> int:
    """Run the command; return its exit code."""
    rewrite = rewrite_wheel if distribution.suffix == ".whl" else rewrite_sdist
    wrong = dead(rewrite(distribution, ROOT).decode().partition("\n\n")[2], ROOT)
    for link in wrong:
        print(f"description.py: {distribution.name}: the README links to {link}, which is not there", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
