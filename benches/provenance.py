"""What a results file says of itself: when, on what machine, and of which code.

Each folder of benches/results has it in measured.json, by the names of its files. The code is identified by a digest of
each subject's sources without comments: so it can be seen without a GPU whether figures are of the code that is here.

Usage:
    provenance.py                  list the files whose figures the README or a page has
    provenance.py --check          fail where they are not of the code that is here, and say why
    provenance.py code             print the commit, the digests and the instructions of the code that is here
    provenance.py measured FOLDER  write FOLDER/measured.json for a run on this machine, of the code that code.json has
"""

import argparse
import datetime
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benches" / "results"
NAME = "measured.json"

_BELOW = (
    "src/ids.rs",
    "src/sync",
    "src/runtime/mod.rs",
    "src/runtime/platform.rs",
    "src/runtime/stream.rs",
    "src/runtime/driver",
)
# The sources that decide what a request costs and what it takes, by subject.
SUBJECTS = {
    "handles": (*_BELOW, "src/handle", "src/library"),
    "memory": (*_BELOW, "src/memory"),
    "python": ("src/python", "python/gpupool"),
}
# The subjects of files whose name begins so; of others it is memory. The first are of calls of drivers and libraries
# alone.
_SUBJECTS_OF = {
    "by_hand": (),
    "calls": (),
    "devices": ("memory", "python"),
    "two_gpus": ("memory", "python"),
    "streams": (),
    "peers": ("handles", "python"),
    "leases": ("handles",),
    "library_memory": ("handles", "memory"),
    "workspaces": ("handles",),
    "green_contexts": ("handles",),
    "frameworks": ("memory", "python"),
    "pinned.": ("memory", "python"),
    "plugs": ("memory", "python"),
    "pytorch_peers": ("memory", "python"),
    "rmm.": ("memory", "python"),
    "start": ("python",),
    "warp_turns": ("memory", "python"),
}
# How much the instructions of a call may differ where its sources do.
TOLERANCE = 0.02

_DOUBLE = r'"(?:\\.|[^"\\])*"'
_SINGLE = r"'(?:\\.|[^'\\\n])*'"
# What is no comment though it may look like one is matched too, and stays.
_COMMENTS = {
    # In Rust a single quote is that of one character, or of a lifetime.
    ".rs": r"(?P<comment>//[^\n]*|/\*.*?\*/)"
    r'|r(?P<marks>#*)".*?"(?P=marks)'
    r"|'(?:\\.|[^'\\])'|" + _DOUBLE,
    # A string that is a line of its own explains, as a docstring does.
    ".py": r'(?P<comment>^[ \t]*r?"{3}(?:(?!"{3}).)*"{3}[ \t]*$|\#[^\n]*)|"{3}.*?"{3}|' + f"{_DOUBLE}|{_SINGLE}",
}


def without_comments(text: str, suffix: str) -> str:
    """Return a source without comments, docstrings and the space around words."""
    kept = re.sub(
        _COMMENTS[suffix], lambda found: "" if found["comment"] else found[0], text, flags=re.DOTALL | re.MULTILINE
    )
    return " ".join(kept.split())


@functools.cache
def digest(subject: str, root: Path = ROOT) -> str:
    """Return the digest of a subject's sources."""
    found = hashlib.sha256()
    for name in SUBJECTS[subject]:
        place = root / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in _COMMENTS:
                text = without_comments(path.read_text(), path.suffix)
                found.update(f"{path.relative_to(root).as_posix()}\0{text}\0".encode())
    return found.hexdigest()[:16]


def subjects(file: str) -> tuple[str, ...]:
    """Return what the figures of a file are of."""
    name = file.rsplit("/", 1)[-1]
    return next((of for start, of in _SUBJECTS_OF.items() if name.startswith(start)), ("memory",))


def of(file: str) -> dict[str, Any]:
    """Return what is known of a file such as ``h200/peers.json``.

    That is ``date``, ``machine`` and ``commit``, and of newer files ``digests`` and ``instructions`` by subject.

    Raises:
        KeyError: Its folder's measured.json lacks it.
    """
    folder, name = file.rsplit("/", 1)
    found: dict[str, Any] = json.loads((RESULTS / folder / NAME).read_text())[name]
    return found


def told(file: str) -> str:
    """Return what a page says below the figures of a file: when, where and of which commit they were measured."""
    known = of(file)
    return f"{known['date']}, {known['machine']}, commit {known['commit']}"


def line(file: str) -> str:
    """Return the same with the file."""
    return f"`benches/results/{file}`: {told(file)}"


@functools.cache
def instructions() -> dict[str, float]:
    """Return the instructions of one call for the code that is here, by subject; builds what is counted.

    Without valgrind nothing can be counted.
    """
    if shutil.which("valgrind") is None:
        return {}
    done = subprocess.run(["bash", ROOT / "benches/instructions.sh"], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def differences(file: str) -> list[str]:
    """Return for each subject whose sources are others than those which a file's figures are of, how they differ.

    Comments do not count, nor do sources whose instructions of a call are the same but for :data:`TOLERANCE`.
    """
    if not subjects(file):
        return []
    known = of(file)
    if "digests" not in known:
        return [f"it is not known of which sources it is, only that it was kept at commit {known['commit']}"]
    changed = [subject for subject in subjects(file) if known["digests"][subject] != digest(subject)]
    found = []
    for subject in changed:
        then, now = (counted.get(subject) for counted in (known["instructions"], instructions()))
        if then is None or now is None:
            found.append(f"{subject} has changed since, and valgrind is missing, which counts instructions")
        elif abs(now / then - 1) > TOLERANCE:
            found.append(f"{subject} has changed since: a call took {then} instructions, and takes {now}")
    return found


def used() -> list[str]:
    """Return the files of results whose figures the README or a page has."""
    # Not above: those import this.
    from parts import files

    return files()


def code() -> dict[str, Any]:
    """Return the commit, the digests and the instructions of the code that is here."""
    head = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], stdout=subprocess.PIPE, text=True)
    return {
        "commit": head.stdout.strip() or "unknown",
        "digests": {subject: digest(subject) for subject in SUBJECTS},
        "instructions": instructions(),
    }


def machine() -> str:
    """Return the GPUs, the driver and the cores of this machine."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        gpus = []
    names = [each.split(", ") for each in gpus]
    cores = f"{len(os.sched_getaffinity(0))} cores"
    if not names:
        return f"no GPU, {cores} ({platform.machine()})"
    count = f"{len(names)} " if len(names) > 1 else ""
    return f"{count}{names[0][0]}, driver {names[0][1]}, {cores}"


def measured(folder: Path, of_code: Path) -> None:
    """Write what is known of each file of a folder that a run on this machine made."""
    known = {"date": datetime.date.today().isoformat(), "machine": machine(), **json.loads(of_code.read_text())}
    found = {path.name: known for path in sorted(folder.iterdir()) if path.is_file() and path.name != NAME}
    (folder / NAME).write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["code", "measured"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    if chosen.action == "code":
        print(json.dumps(code(), indent=1))
        return 0
    if chosen.action == "measured":
        measured(chosen.folder, ROOT / "code.json")
        return 0
    failed = False
    for file in used():
        found = differences(file) if chosen.check else []
        failed |= bool(found)
        print(line(file), *found, sep="\n    ")
    if failed:
        print("Figures that pages have are not of this code. CONTRIBUTING.md says how they are measured again.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
