"""Fuzzes the readers of trace files, and the commands over them, by libFuzzer.

Each input is a trace file, after two bytes that choose a command and its options. Whatever it is, the command must
succeed or say in one line what is wrong, soon and in little memory.

``python tests/fuzz/readers.py FOLDER [OPTIONS]`` keeps the inputs that led somewhere new in the folder, and there, as a
file, what broke the promise. ``python tests/fuzz/readers.py FILE`` runs that once more. The options are libFuzzer's.
"""

import contextlib
import gzip
import io
import os
import sys
import warnings
from pathlib import Path
from random import Random

import atheris

# Before gpupool chooses a runtime: devices that are simulated, and so small that replays of much are refused.
os.environ.update(GPUPOOL_RUNTIME="host", GPUPOOL_HOST_DEVICES="1", GPUPOOL_HOST_MEMORY=str(256 << 20))
sys.path.append(str(Path(__file__).parents[1] / "python"))

with atheris.instrument_imports(include=["gpupool._cli", "gpupool._plot", "gpupool._report", "gpupool._traces"]):
    from gpupool.__main__ import main
    from gpupool._plot import output, spec

import mutations
import seeds

COMMANDS = [
    ["replay"],
    ["replay", "--json", "--threads", "2"],
    ["replay", "--compare", "-o", "OUT.html"],
    *(["plot", "-o", "OUT.html", *more] for more in ([], ["--at", "peak"], ["--at", "0.00003"], ["--device", "1"])),
    ["plot", "-o", "OUT.html", "--at", "9000000000", "--device", "0"],
]
RENDER = output.render
output.render = lambda picture, form: (
    RENDER(picture, form) if form == ".png" else spec.text(picture, spec.Use.PAGE).encode()
)
NAMES = [b"a.csv", b"a.pickle.gz", b"caf\xe9\n\x1b.csv"]
GZIP, PNG = 0x80, 0x40
# Files of 20 kB take a tenth of a second, and memory that does not show beside what is loaded.
LIMITS = ["-max_len=20000", "-rss_limit_mb=800", "-timeout=10"]


def run(data: bytes, folder: Path) -> None:
    """Run the command that the first two bytes choose on a file of the others."""
    choice, flags, content = data[:1], data[1:2], data[2:]
    if not flags:
        return
    path = os.path.join(folder, os.fsdecode(NAMES[flags[0] % len(NAMES)]))
    with open(path, "wb") as file:
        file.write(gzip.compress(content, 1) if flags[0] & GZIP else content)
    # To render takes a process, and a second, so few pictures are.
    suffix = "png" if flags[0] & GZIP and flags[0] & PNG and content[-1:] < b"\x10" else "html"
    picture = os.path.join(folder, f"out.{suffix}")
    name, *options = COMMANDS[choice[0] % len(COMMANDS)]
    arguments = [name, path, *(picture if option == "OUT.html" else option for option in options)]
    told, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(complaint):
        code = main(arguments)
    error = complaint.getvalue()
    # At most one line, but for a warning before it.
    lines = error.splitlines()
    errors = [line for line in lines if ": warning: cut off " not in line]
    is_fault = "a bug in gpupool" in error or "out of memory: this process" in error
    is_told = all(line.startswith("gpupool: ") for line in lines) and len(lines) - len(errors) <= 1
    expected = is_told and not is_fault and code in (0, 1) and len(errors) == code
    assert expected, f"{arguments} ended with {code}: {error}\n{told.getvalue()}"


def change(data: bytes, most: int, seed: int) -> bytes:
    """Return an input that differs a little: in its bytes, or in the values that they stand for."""
    random = Random(seed)
    changed = None
    if len(data) > 2 and random.random() < 0.7:
        content = data[2:]
        changed = (mutations.changed_snapshot if content[:1] == b"\x80" else mutations.changed_log)(content, random)
    if changed is None:
        return atheris.Mutate(data, most)
    head = data[:2] if random.random() < 0.8 else random.randbytes(2)
    return (head + changed)[:most]


def sow(folder: Path) -> None:
    """Write the files that fuzzing begins with, for every command."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in (seeds.logs, seeds.snapshots):
        for number, content in enumerate(kind()):
            for command in range(len(COMMANDS)):
                name = folder / f"seed-{kind.__name__}-{number}-{command}"
                name.write_bytes(bytes([command, number]) + content)


if __name__ == "__main__":
    # What Python warns of would be on standard error.
    warnings.simplefilter("error")
    target, options = Path(sys.argv[1]), sys.argv[2:]
    if target.is_file():
        folder, options = target.parent, [str(target)]
    else:
        folder = target
        sow(folder / "corpus")
        seed = Random().getrandbits(32)
        print(f"libFuzzer's -seed={seed}", flush=True)
        options = [f"-artifact_prefix={folder}/", f"-seed={seed}", *LIMITS, *options, str(folder / "corpus")]
    (folder / "files").mkdir(exist_ok=True)
    atheris.Setup([sys.argv[0], *options], lambda data: run(data, folder / "files"), custom_mutator=change)
    atheris.Fuzz()
