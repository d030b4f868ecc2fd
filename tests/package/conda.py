"""Fills the conda recipe in for a source distribution, and builds and tries the package with rattler-build.

Usage: conda.py SDIST OUT [CHANNEL]. OUT gets ``recipe.yaml``, as conda-forge gets it once SDIST is published, and the
package. CHANNEL is where the packages come from that the recipe names: ``conda-forge`` unless told; with ``stand-ins``
it is a channel made here of this machine's tools, for machines that cannot reach conda-forge.
"""

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

from rattler_build import RattlerBuildError, Stage0Recipe, ToolConfiguration, VariantConfig
from rattler_build.progress import SimpleProgressCallback

HERE = Path(__file__).parent
RECIPE = HERE.parents[1] / "packaging" / "conda" / "recipe.yaml"
# What conda-forge pins, of the keys that the recipe uses.
PINNED = {
    "c_compiler": ["gcc"],
    "c_compiler_version": ["14"],
    "c_stdlib": ["sysroot"],
    "c_stdlib_version": ["2.28"],
    "rust_compiler": ["rust"],
    "python": ["3.11.*"],
    "is_abi3": [True],
    "is_python_min": [True],
}
RUST = "https://rustup.rs"
LICENSES = "cargo install cargo-bundle-licenses"
TELL = SimpleProgressCallback()
TRY = ToolConfiguration(test_strategy="native")


def filled(sdist: Path) -> str:
    """Return the recipe with the sha256 of a source distribution.

    Raises:
        ValueError: The recipe has no such line.
    """
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    text, count = re.subn(r"^(  sha256:) 0{64}$", rf"\1 {digest}", RECIPE.read_text(), flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{RECIPE} has no line `  sha256: 000...`, which stands for that of {sdist}")
    return text


def made_here(folder: Path) -> str:
    """Return the address of a channel with what stands for conda-forge's packages, made of this machine's tools.

    Raises:
        LookupError: A tool is missing.
    """
    found = {"STAND_IN_PYTHON": sys.executable}
    for name, program, wanted in (("RUST", "cargo", RUST), ("LICENSES", "cargo-bundle-licenses", LICENSES)):
        path = shutil.which(program)
        if path is None:
            raise LookupError(f"there is no {program} on PATH: {wanted}")
        found[f"STAND_IN_{name}"] = path
    found["STAND_IN_RUST"] = str(Path(found["STAND_IN_RUST"]).parent)
    os.environ.update(found)
    shutil.rmtree(folder, ignore_errors=True)
    stand_ins = Stage0Recipe.from_file(HERE / "stand_ins.yaml")
    stand_ins.run_build(output_dir=folder, channels=[], no_include_recipe=True, progress_callback=TELL)
    return folder.resolve().as_uri()


def main(sdist: Path, out: Path, channel: str = "conda-forge") -> int:
    """Run the command; return its exit code."""
    text = filled(sdist)
    (out / "local").mkdir(parents=True, exist_ok=True)
    (out / "recipe.yaml").write_text(text)
    # What is not published yet is taken from here.
    url = re.compile(r"^  url: .*$", re.MULTILINE)
    (out / "local" / "recipe.yaml").write_text(url.sub(f"  url: {sdist.resolve().as_uri()}", text))
    try:
        if channel == "stand-ins":
            channel = made_here(out / "stand-ins")
        recipe = Stage0Recipe.from_file(out / "local" / "recipe.yaml")
        made = recipe.run_build(VariantConfig(PINNED), TRY, out / "channel", [channel], progress_callback=TELL)
    except (LookupError, RattlerBuildError) as error:
        print(f"conda.py: {error} (channel {channel}; the lines above say more)", file=sys.stderr)
        return 1
    print(*(package for result in made for package in result.packages), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
