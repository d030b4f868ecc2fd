#!/usr/bin/env bash
# Builds a free-threaded Python from its sources, or with GIL=1 one that has a GIL, for machines that have none: a C
# compiler and the headers of zlib, libffi and OpenSSL must be there. ARCHIVE is the source archive of CPython 3.14 or later, from python.org or a distribution.
# For aarch64 on another machine it takes two more: ROOT is what aarch64_root.sh fetched, and BUILD_PYTHON the Python that
# the same archive became on this machine; gcc-aarch64-linux-gnu must be there.
# It prints the path of the Python. Usage:
# tests/package/build_python.sh ARCHIVE PREFIX [ROOT BUILD_PYTHON]
set -euo pipefail
usage="usage: tests/package/build_python.sh ARCHIVE PREFIX [ROOT BUILD_PYTHON]"
archive=$(realpath "${1:?$usage}")
prefix=$(realpath -m "${2:?$usage}")
cross=() gil=(--disable-gil)
[ -z "${GIL:-}" ] || gil=()
if [ $# -gt 2 ]; then
  root=$(realpath "$3")
  build_python=$(command -v "${4:?$usage}")
  export CC="aarch64-linux-gnu-gcc --sysroot=$root"
  export PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
  # What configure would otherwise try or look for on this machine.
  cross=(--host aarch64-linux-gnu --build "$(uname -m)-linux-gnu" "--with-build-python=$build_python"
    ac_cv_file__dev_ptmx=yes ac_cv_file__dev_ptc=no ac_cv_buggy_getaddrinfo=no)
fi
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
tar xf "$archive" -C "$sources" --strip-components 1
cd "$sources"
{
  ./configure --quiet "${gil[@]}" --without-ensurepip --prefix "$prefix" "${cross[@]}"
  make --quiet -j "$(nproc)"
  make --quiet install
} >&2
find "$prefix/bin" -regex '.*/python3\.[0-9]+t?'
