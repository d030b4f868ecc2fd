"""Tells whether every file that names gpupool's version names that of Cargo.toml, from which all builds take it.

Usage: versions.py [--set VERSION] [TAG]. With --set it writes another version into all of them first. With the tag of
a release it also tells whether the changelog has that version, dated, with nothing left under Unreleased.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Where else a version stands, as what follows it there.
PLACES = {
    "Cargo.lock": r'name = "gpupool"\nversion = "(.*)"',
    "tests/user_crate/Cargo.lock": r'name = "gpupool"\nversion = "(.*)"',
    "crates/cuda-core/Cargo.lock": r'name = "gpupool"\nversion = "(.*)"',
    "python/gpupool/lib/pkgconfig/gpupool.pc": r"^Version: (.*)$",
    "python/gpupool/lib/cmake/gpupool/gpupool-config-version.cmake": r'^set\(PACKAGE_VERSION "(.*)"\)$',
    "packaging/conda/recipe.yaml": r'^  version: "(.*)"$',
}
# And the oldest Rust, beside rust-version of Cargo.toml.
RUST = {
    "README.md": r"Rust (\d[\d.]*\d)",
    "docs/installing.md": r"Rust (\d[\d.]*\d)",
    "docs/support.md": r"^- \*\*Rust\*\*: (\S+) or later",
}


def disagreements(root: Path) -> list[str]:
    """Return what says another version than Cargo.toml, one sentence each."""
    package = tomllib.loads((root / "Cargo.toml").read_text())["package"]
    found = []
    for right, places in ((package["version"], PLACES), (package["rust-version"], RUST)):
        for name, pattern in places.items():
            told = re.findall(pattern, (root / name).read_text(), re.MULTILINE)
            if not told:
                found.append(f"{name} has no version after {pattern!r}, where Cargo.toml says {right}")
            found += [f"{name} says {version}, and Cargo.toml {right}" for version in told if version != right]
    # The soname and the API's own number change by rules of their own; Python's version is Cargo's by maturin.
    python = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    if "version" in python:
        found.append("pyproject.toml has a version of its own, where maturin takes Cargo.toml's")
    return found


def unreleased(root: Path, tag: str) -> list[str]:
    """Return what must change before a version is published under a tag, one sentence each."""
    version = tomllib.loads((root / "Cargo.toml").read_text())["package"]["version"]
    found = [] if tag == f"v{version}" else [f"the tag is {tag}, and Cargo.toml says {version}: v{version} is its tag"]
    changelog = (root / "CHANGELOG.md").read_text()
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading `## [{version}] - YEAR-MONTH-DAY`")
    if not re.search(rf"^\[{re.escape(version)}\]: https://", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no link for [{version}] at its end")
    waiting = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |^\[)", changelog, re.MULTILINE | re.DOTALL)
    if waiting is None:
        found.append("CHANGELOG.md has no heading `## [Unreleased]` for what comes next")
    elif waiting[1].strip():
        found.append(f"CHANGELOG.md still has text under Unreleased, which belongs under {version}")
    return found


def set_version(root: Path, version: str) -> None:
    """Write a version into all files that name one."""
    for name, pattern in {"Cargo.toml": r'^version = "(.*)"$', **PLACES}.items():
        text = (root / name).read_text()
        found = re.search(pattern, text, re.MULTILINE)
        if found is not None:
            (root / name).write_text(text[: found.start(1)] + version + text[found.end(1) :])


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", metavar="VERSION")
    parser.add_argument("tag", nargs="?")
    given = parser.parse_args()
    if given.set:
        set_version(ROOT, given.set)
    found = disagreements(ROOT) + (unreleased(ROOT, given.tag) if given.tag else [])
    for sentence in found:
        print(f"versions.py: {sentence}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
