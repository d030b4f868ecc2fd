"""The build backend of the source distribution: maturin's, once the Rust that gpupool needs is there.

Without Rust maturin would fetch a toolchain unasked, and an old Cargo fails over a line of Cargo.toml. So every hook
looks first, and says in one sentence which Rust is needed and what is there instead. What runs maturin by its own
command, as the Makefile does, goes past this.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import maturin

CARGO_TOML = Path(__file__).parents[1] / "Cargo.toml"


def needed() -> str:
    """Return the oldest Rust that compiles gpupool, as Cargo.toml tells."""
    version: str = tomllib.loads(CARGO_TOML.read_text())["package"]["rust-version"]
    return version


def missing(oldest: str) -> str | None:
    """Return what is wrong with the Rust that is here; nothing if it is new enough."""
    for name in ("cargo", "rustc"):
        path = shutil.which(os.environ.get(name.upper(), name))
        if path is None:
            return f"there is no {name} on PATH"
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        version = re.match(rf"{name} (\d+)\.(\d+)\S*", done.stdout)
        if done.returncode or version is None:
            said = (done.stderr or done.stdout).strip().partition("\n")[0]
            return f"{path} does not tell its version ({said or f'exit code {done.returncode}'})"
        if (int(version[1]), int(version[2])) < tuple(map(int, oldest.split(".")[:2])):
            return f"{path} is {version[0].removeprefix(name).strip()}"
    return None


def with_rust(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that ends the build, with what is needed, where Rust is not."""

    @functools.wraps(hook)
    def checked(*args: Any, **kwargs: Any) -> Any:
        oldest = needed()
        wrong = missing(oldest)
        if wrong is not None:
            sys.exit(
                f"To build gpupool from its sources takes Rust {oldest} or later, but {wrong}: get it from "
                "https://rustup.rs (with an older one of rustup's, `rustup update`), or install a wheel of gpupool."
            )
        return hook(*args, **kwargs)

    return checked


get_requires_for_build_wheel = with_rust(maturin.get_requires_for_build_wheel)
get_requires_for_build_editable = with_rust(maturin.get_requires_for_build_editable)
get_requires_for_build_sdist = with_rust(maturin.get_requires_for_build_sdist)
prepare_metadata_for_build_wheel = with_rust(maturin.prepare_metadata_for_build_wheel)
prepare_metadata_for_build_editable = with_rust(maturin.prepare_metadata_for_build_editable)
build_wheel = with_rust(maturin.build_wheel)
build_editable = with_rust(maturin.build_editable)
build_sdist = with_rust(maturin.build_sdist)
