#!/usr/bin/env bash
# Builds all that is published for Python, wheels for x86-64 and aarch64, each for Python with a GIL and without, and the
# source distribution; tries each in a fresh virtual environment, those for aarch64 under emulation. What must be there and
# is not, it names, with what to install, before it builds anything. Run it by `make dist`, on x86-64.
# Usage: tests/package/dist.sh FOLDER PYTHON FREE_THREADED [PYTHON_SOURCES]
# FREE_THREADED is a Python without a GIL; that and its like for aarch64 are built into build/pythons from PYTHON_SOURCES,
# CPython's source archive, if they are not there.
set -euo pipefail
cd "$(dirname "$0")/../.."
usage="usage: tests/package/dist.sh FOLDER PYTHON FREE_THREADED [PYTHON_SOURCES]"
out=${1:?$usage}
python=${2:?$usage}
free_threaded=${3:?$usage}
sources=${4:-}
pythons=$PWD/build/pythons
root=$pythons/aarch64-root

lacking=()
# has COMMAND WHERE: notes that a command is missing, and where it comes from.
has() { command -v "$1" >/dev/null || lacking+=("$1: $2"); }
# first FILE...: prints the first of these that is there.
first() { for file; do [ ! -x "$file" ] || { echo "$file" && return; }; done; }
[ "$(uname -m)" = x86_64 ] || lacking+=("x86-64: this is $(uname -m), whose wheels alone tests/package/wheel.sh builds")
has cargo "https://rustup.rs"
has qemu-aarch64 "apt-get install qemu-user"
standard=$(rustc --print target-libdir --target aarch64-unknown-linux-gnu || true)
[ -d "$standard" ] || lacking+=("Rust's library for aarch64: rustup target add aarch64-unknown-linux-gnu")
if [ ! -d "$root" ]; then
  has apt-get "Debian or Ubuntu, or a folder $root with an aarch64 Python 3.11"
  [ -f /usr/share/keyrings/debian-archive-keyring.gpg ] ||
    lacking+=("debian-archive-keyring: apt-get install debian-archive-keyring")
fi
here=$(first "$(command -v "$free_threaded" || true)" "$pythons"/x86_64/bin/python3.*t)
there=$(first "$pythons"/aarch64/bin/python3.*t)
if [ -z "$here" ] || [ -z "$there" ]; then
  if [ -z "$sources" ]; then
    [ -n "$here" ] || lacking+=("$free_threaded: name a free-threaded Python 3.14 or later as FREE_THREADED=..., or")
    lacking+=("what to build a free-threaded Python from: name CPython's source archive as PYTHON_SOURCES=...")
  elif [ ! -f "$sources" ]; then
    lacking+=("$sources, CPython's source archive: https://www.python.org/downloads/source/")
  fi
  [ -n "$there" ] || has aarch64-linux-gnu-gcc "apt-get install gcc-aarch64-linux-gnu"
  has pkg-config "apt-get install pkg-config"
fi
if [ ${#lacking[@]} -gt 0 ]; then
  echo "make dist cannot build what is published, for these are missing:" >&2
  printf '  %s\n' "${lacking[@]}" >&2
  exit 1
fi

.venv/bin/python tests/package/versions.py
[ -d "$root" ] || bash tests/package/aarch64_root.sh "$root"
if [ -z "$here" ]; then here=$(bash tests/package/build_python.sh "$sources" "$pythons/x86_64"); fi
"$here" -c 'import sysconfig; assert sysconfig.get_config_var("Py_GIL_DISABLED"), "this Python has a GIL"' ||
  { echo "$here is no free-threaded Python: name one as FREE_THREADED=..." && exit 1; }
if [ -z "$there" ]; then there=$(bash tests/package/build_python.sh "$sources" "$pythons/aarch64" "$root" "$here"); fi

rm -rf "$out"
bash tests/package/wheel.sh "$out" x86_64 abi3 "$python"
bash tests/package/wheel.sh "$out" x86_64 free-threaded "$here"
bash tests/package/wheel.sh "$out" aarch64 abi3 "$(bash tests/package/emulate.sh "$root/usr/bin/python3.11" "$root")"
bash tests/package/wheel.sh "$out" aarch64 free-threaded "$(bash tests/package/emulate.sh "$there" "$root")"
bash tests/package/sdist.sh "$out"
(cd "$out" && sha256sum ./*.whl ./*.tar.gz >SHA256SUMS)
du -h "$out"/*
