"""What pip builds gpupool's sources by says which Rust it needs, before it does anything, where that is not there."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("maturin")
ROOT = Path(__file__).parents[2]
HOOKS = ("get_requires_for_build_wheel", "prepare_metadata_for_build_wheel", "build_wheel", "build_sdist")


@pytest.fixture
def backend():
    spec = importlib.util.spec_from_file_location("build_backend", ROOT / "packaging" / "build_backend.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Return what writes a program that says something, into the only folder of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CARGO", "RUSTC"):
        monkeypatch.delenv(name, raising=False)

    def write(name, says, code=0):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}' >&{1 + (code != 0)}\nexit {code}\n")
        (tmp_path / name).chmod(0o755)

    return write


def refusal(hook):
    with pytest.raises(SystemExit) as ended:
        hook("/nowhere")
    assert "\n" not in ended.value.code
    sentence = r"To build gpupool from its sources takes Rust ([\d.]+) or later, but (.*): get it .*"
    told = re.fullmatch(sentence, ended.value.code)
    assert told, ended.value.code
    assert f'rust-version = "{told[1]}"' in (ROOT / "Cargo.toml").read_text()
    return told[2]


@pytest.mark.parametrize("name", HOOKS)
def test_without_rust_every_hook_says_so(backend, tools, name):
    assert refusal(getattr(backend, name)) == "there is no cargo on PATH"


def test_an_old_one_is_named(backend, tools, tmp_path):
    tools("cargo", "cargo 1.95.0 (f2d3ce0bd 2026-03-21)")
    assert refusal(backend.build_wheel) == "there is no rustc on PATH"
    tools("rustc", "rustc 1.63.0")
    assert refusal(backend.build_wheel) == f"{tmp_path}/rustc is 1.63.0"
    tools("rustc", "rustc 1.87.0-nightly (0b8a17fb1 2026-03-21)")
    assert refusal(backend.build_wheel) == f"{tmp_path}/rustc is 1.87.0-nightly"
    tools("cargo", "cargo 1.9.0")
    assert refusal(backend.build_wheel) == f"{tmp_path}/cargo is 1.9.0"


def test_rustup_without_a_toolchain_is_told(backend, tools, tmp_path):
    tools("cargo", "error: rustup could not choose a version of cargo to run", 1)
    wrong = f"{tmp_path}/cargo does not tell its version (error: rustup could not choose a version of cargo to run)"
    assert refusal(backend.build_wheel) == wrong


def test_a_new_enough_one_builds_by_maturin(backend, tools):
    tools("cargo", f"cargo {backend.needed()}.0")
    tools("rustc", "rustc 2.0.0")
    assert backend.get_requires_for_build_wheel() == []


def test_pip_shows_the_sentence_alone(tools, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    shown = re.search(r"\[1 lines? of output\]\n +(.*)\n", done.stderr)
    assert shown, done.stderr
    assert shown[1].startswith("To build gpupool from its sources takes Rust")
