"""Checks by auditwheel that all libraries in a wheel run where its name says, also those that maturin did not build.

Usage: audit.py WHEEL.
"""

import json
import subprocess
import sys
from pathlib import Path

# Of PyTorch and RMM, whose processes alone load what is linked to them.
EXPECTED = {"libc10.so", "libc10_cuda.so", "librmm.so"}


def wrong(told: dict, tag: str) -> list[str]:
    """Return what auditwheel tells against a wheel with a platform's tag, one sentence each."""
    found = []
    if told["sym_tag"] != tag:
        symbols = ", ".join(f"{library}: {' '.join(names)}" for library, names in told["versioned_symbols"].items())
        found.append(f"its symbols are those of {told['sym_tag']}, its name says {tag} ({symbols})")
    if told["unsupported_isa"]:
        found.append("it takes instructions that not all such processors have")
    if more := sorted(set(told["external_libs"]) - EXPECTED):
        found.append(f"it needs {', '.join(more)}, which systems may lack")
    return found


def main(wheel: Path) -> int:
    """Run the command; return its exit code."""
    command = [Path(sys.executable).parent / "auditwheel", "show", "--json", wheel]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    tag = wheel.stem.rpartition("-")[2]
    found = wrong(told, tag)
    for sentence in found:
        print(f"audit.py: {wheel.name}: {sentence}", file=sys.stderr)
    if not found:
        print(f"{wheel.name}: all libraries in it run on {tag}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
