"""Fetches what programs are compiled with against PyTorch: its headers and two libraries, and CUDA's headers.

Usage: fetch.py FOLDER [VERSION...], by default all that gpupool has libraries for. Of each version, such as 2.11, the
newest release goes to FOLDER/2.11/torch, with ``include`` and ``lib``, and prints that folder and the one of CUDA's
headers. What is there already is not fetched again.

Of PyTorch's wheel, half a gigabyte, only these files are transferred where the index lets parts be read, as pip itself
reads metadata; else the wheel is downloaded and deleted again. The index is the one that pip is configured for.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

# The versions that gpupool's wheel has libraries for.
VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")

_HOST_ALLOCATOR = "include/ATen/core/CachingHostAllocator.h"
_TORCH = re.compile(
    r"torch/(include/c10/|include/torch/headeronly/|" + re.escape(_HOST_ALLOCATOR) + r"$|"
    r"lib/libc10(_cuda)?\.so$|version\.py$)"
)
CUDA = re.compile(r"nvidia/cu\d+/include/")
# Wheels of the platforms that gpupool's own are for, whatever Python runs this.
_PLATFORMS = [f"--platform=manylinux{glibc}_x86_64" for glibc in ("_2_28", "_2_27", "_2_17", "2014")]
_OPTIONS = ("--no-deps", "--only-binary=:all:", "--python-version=3.12", *_PLATFORMS)
# The bytes between two files that are read rather than skipped.
_GAP = 1 << 18


class Fetched(NamedTuple):
    """The folders of one version: PyTorch's package, and CUDA's headers."""

    torch: Path
    cuda: Path


class CannotFetch(Exception):
    """A package cannot be had; the message says which."""


def fetch(version: str, folder: Path) -> Fetched:
    """Return the folders of a version of PyTorch below a folder, once they are there.

    Raises:
        CannotFetch: The package index cannot be reached, or lacks a package.
    """
    torch = folder / version / "torch"
    # What was fetched before may lack what was not needed then.
    if not (torch / _HOST_ALLOCATOR).is_file():
        shutil.rmtree(torch.parent, ignore_errors=True)
        extract(f"torch=={version}.*", _TORCH, folder / version)
    told = re.search(r"^cuda.*= '([\d.]+)'$", (torch / "version.py").read_text(), re.MULTILINE)
    if told is None:
        raise CannotFetch(f"torch {version} of the package index is not built for CUDA")
    cuda = folder / f"cuda-{told[1]}"
    for name in ("runtime", "crt"):
        if not (cuda / name).is_dir():
            extract(f"nvidia-cuda-{name}=={told[1]}.*", CUDA, cuda / name)
    return Fetched(torch, _headers(cuda, f"cu{told[1].split('.')[0]}"))


def _headers(cuda: Path, name: str) -> Path:
    """Return one folder with the headers of both wheels, as they are when they are installed."""
    both = cuda / "include"
    both.mkdir(exist_ok=True)
    for wheel in ("runtime", "crt"):
        for path in (cuda / wheel / "nvidia" / name / "include").iterdir():
            if not (both / path.name).is_symlink():
                (both / path.name).symlink_to(path.resolve())
    return both


def extract(requirement: str, wanted: re.Pattern[str], out: Path) -> None:
    """Extract files of a wheel into a folder, which is there once it is whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        made = Path(name) / "made"
        try:
            # What pip has inside may itself be deprecated, which is not for those who fetch.
            with warnings.catch_warnings(action="ignore"), _read_in_parts(requirement) as file:
                _copy(file, wanted, made)
        except Exception as error:
            # What pip has inside may be another in its next version, and not every index lets parts be read.
            print(f"{requirement}: whole, since parts cannot be read: {error}", file=sys.stderr)
            with _download(requirement, Path(name)) as file:
                _copy(file, wanted, made)
        try:
            made.replace(out)
        except OSError:
            # Another process may have made the same meanwhile.
            if not out.is_dir():
                raise


def _copy(file: IO[bytes], wanted: re.Pattern[str], out: Path) -> None:
    """Copy the wanted files, reading those beside each other at once."""
    with zipfile.ZipFile(file) as wheel:
        entries = sorted(wheel.infolist(), key=lambda entry: entry.header_offset)
        ends = [*(entry.header_offset for entry in entries[1:]), wheel.start_dir]
        chosen = [(entry, end) for entry, end in zip(entries, ends, strict=True) if wanted.match(entry.filename)]
        if not chosen:
            raise CannotFetch("nothing of what is needed is in the wheel")
        runs: list[tuple[int, int]] = []
        for entry, end in chosen:
            is_near = runs and entry.header_offset - runs[-1][1] < _GAP
            runs.append((runs.pop()[0] if is_near else entry.header_offset, end))
        for start, end in runs:
            file.seek(start)
            file.read(end - start)
        wheel.extractall(out, [entry for entry, _ in chosen])


@contextmanager
def _read_in_parts(requirement: str) -> Iterator[IO[bytes]]:
    """Open a wheel of the package index, of which only what is read is transferred."""
    # What pip has inside, for it knows the index, its certificates and its passwords.
    from pip._internal.cli import cmdoptions
    from pip._internal.commands.download import DownloadCommand
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP
    from pip._vendor.packaging.requirements import Requirement

    command = DownloadCommand("download", "")
    options, _ = command.parse_args(list(_OPTIONS))
    parsed = Requirement(requirement)
    with command.main_context():
        session = command.get_default_session(options)
        target = cmdoptions.make_target_python(options)
        finder = command._build_package_finder(options=options, session=session, target_python=target)
        best = finder.find_best_candidate(parsed.name, parsed.specifier).best_candidate
        if best is None:
            raise CannotFetch(f"no wheel of {requirement} is there")
        with LazyZipOverHTTP(best.link.url_without_fragment, session) as file:
            yield file


@contextmanager
def _download(requirement: str, folder: Path) -> Iterator[IO[bytes]]:
    """Open a wheel that is downloaded whole."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *_OPTIONS]
    if subprocess.run([*command, "--dest", str(folder), requirement], check=False).returncode:
        raise CannotFetch(f"{requirement} cannot be downloaded: is there a network, and is pip's index right?")
    (path,) = folder.glob("*.whl")
    with path.open("rb") as file:
        yield file


def main(report: Callable[[str], None] = print) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    chosen = parser.parse_args()
    try:
        for version in chosen.versions:
            report(" ".join(map(str, fetch(version, chosen.folder))))
    except CannotFetch as error:
        print(f"fetch.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
