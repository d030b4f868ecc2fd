"""Each file of benches/results is used: a page, a test, a bench, a comment or a file that is used names it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benches" / "results"
# Where results are named: by a page and its hooks, by tables, and by comments that say why a number is what it is.
PLACES = {
    ".": ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".ci/run"),
    "docs": ("**/*.md", "**/*.py"),
    "src": ("**/*.rs",),
    "python": ("**/*.py", "**/*.pyi"),
    "benches": ("*.py", "*.rs", "*.cpp", "*.toml"),
    "examples": ("**/*.py", "**/*.rs", "**/*.cpp", "**/*.ipynb", "**/*.md"),
    "tests": ("**/*.py", "**/*.rs", "**/*.sh"),
}


def texts():
    """Return all texts that may name results, but this test's."""
    paths = {path for folder, globs in PLACES.items() for glob in globs for path in (ROOT / folder).glob(glob)}
    return "\n".join(path.read_text() for path in sorted(paths - {Path(__file__)}) if path.is_file())


def is_named(name, text):
    """Return whether a text has the name, and not as a part of a longer one."""
    places = (found.start() for found in re.finditer(re.escape(name), text))
    around = (text[max(place - 1, 0) : place] + text[place + len(name) : place + len(name) + 1] for place in places)
    return any(not re.search(r"[\w-]", each) for each in around)


def test_each_file_of_results_is_used():
    files = {f"{path.parent.name}/{path.name}": path for path in RESULTS.glob("*/*")}
    # What each folder has of its other files: when, where and of which commit they are, and their commands.
    unused = {name for name in files if not name.endswith(("/measured.json", "/run.txt"))}
    text = texts()
    # What is used may name what else was measured.
    while used := {name for name in unused if is_named(name, text)}:
        unused -= used
        text = "\n".join(files[name].read_text() for name in used if name.endswith(".txt"))
    assert unused == set(), "delete these, or name them where they are used"
