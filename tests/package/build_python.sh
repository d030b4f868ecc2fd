#!/usr/bin/env bash
# Builds a free-threaded Python from its sources, for machines that have none: a C compiler and the headers of zlib, libffi
# and OpenSSL must be there. ARCHIVE is the source archive of CPython 3.14 or later, from python.org or a distribution.
# Usage: tests/package/build_python.sh ARCHIVE PREFIX
set -euo pipefail
archive=$(realpath "${1:?usage: tests/package/build_python.sh ARCHIVE PREFIX}")
prefix=$(realpath -m "${2:?usage: tests/package/build_python.sh ARCHIVE PREFIX}")
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
tar xf "$archive" -C "$sources" --strip-components 1
cd "$sources"
./configure --quiet --disable-gil --without-ensurepip --prefix "$prefix"
make --quiet -j "$(nproc)"
make --quiet install
find "$prefix/bin" -name 'python3.*t'
