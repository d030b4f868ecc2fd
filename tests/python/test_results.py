"""Each file of benches/results is used: a page, a test, a bench or a comment names it, or its description does."""

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


def used_in(folder, text):
    """Return the files of a folder that are used: those named, their descriptions, and what these describe besides."""
    files = {path.name: path for path in folder.iterdir()}
    # That says when and where the others were measured.
    used = {name for name in files if name == "measured.json" or is_named(f"{folder.name}/{name}", text)}
    if used - {"measured.json"} or is_named(f"results/{folder.name}", text):
        used |= {"run.txt"} & files.keys()
    while True:
        told = {name: files[name].read_text() for name in files if name.endswith(".txt")}
        more = {name for name in files for each in used & told.keys() if is_named(name, told[each])}
        # A description of another run, of what is used.
        more |= {each for each in told if each.startswith("run") and any(is_named(name, told[each]) for name in used)}
        if more <= used:
            return used
        used |= more


def test_each_file_of_results_is_used():
    text, used = texts(), {}
    folders = sorted(RESULTS.iterdir())
    # What is used may name what another folder has.
    for _ in range(2):
        used = {folder: used_in(folder, text) for folder in folders}
        text += "".join(
            (folder / name).read_text() for folder in folders for name in used[folder] if name.endswith(".txt")
        )
    unused = {folder.name: {path.name for path in folder.iterdir()} - used[folder] for folder in folders}
    assert {name: files for name, files in unused.items() if files} == {}, (
        "delete these, or name them where they are used"
    )
