#!/usr/bin/env bash
# Builds a wheel for all Linux with glibc 2.28 or later, and tries it in a fresh virtual environment. MACHINE is x86_64 or
# aarch64; ABI is abi3, for Python 3.11 and later with a GIL, or free-threaded, for the version that PYTHON has. PYTHON tries
# it, and for aarch64 is one that emulate.sh made. Usage: tests/package/wheel.sh FOLDER MACHINE ABI PYTHON
set -euo pipefail
cd "$(dirname "$0")/../.."
usage="usage: tests/package/wheel.sh FOLDER MACHINE ABI PYTHON"
out=${1:?$usage}
machine=${2:?$usage}
abi=${3:?$usage}
python=${4:?$usage}
target=$machine-unknown-linux-gnu
mkdir -p "$out"
PATH=$PWD/.venv/bin:$PATH # zig looks for `python3 -m ziglang`

# What comes along beside the sources is there only while the wheel is built, since it could be older than these.
libraries=(python/gpupool/_torch/allocator-*.so python/gpupool/_rmm/resource-*.so python/gpupool/lib/*.so*)
trap 'rm -f python/gpupool/_torch/allocator-*.so python/gpupool/_rmm/resource-*.so python/gpupool/lib/*.so* .venv/library' EXIT
rm -f "${libraries[@]}"
expected=(libgpupool.so.0 libgpupool_watch.so)

# The libraries of PyTorch's allocator and the modules for RMM are there for x86-64 alone; elsewhere they are compiled at
# first use. Python without a GIL loads no module of the stable ABI, and RMM has no wheels for it.
if [ "$machine" = x86_64 ]; then
  cp build/allocators/allocator-*.so python/gpupool/_torch
  expected+=(build/allocators/allocator-*.so)
fi
if [ "$machine-$abi" = x86_64-abi3 ]; then
  cp build/resources/resource-*.so python/gpupool/_rmm
  expected+=(build/resources/resource-*.so)
fi

# The library for C and C++, without the faults on demand that the one for tests has.
CARGO_PROFILE_RELEASE_STRIP=symbols \
  cargo zigbuild --quiet --release --features c-api --target "$target.2.28" --target-dir target/c
install -D "target/c/$target/release/libgpupool.so" python/gpupool/lib/libgpupool.so.0
# What is loaded into other programs, too: zig links it with an unwinder that none of these gets to see.
cargo zigbuild --quiet --release --manifest-path crates/watch/Cargo.toml --target "$target.2.28" --target-dir target/watch
install -D "target/watch/$target/release/libgpupool_watch.so" python/gpupool/lib/libgpupool_watch.so
for library in python/gpupool/lib/*.so*; do .venv/bin/python tests/package/allocators.py --check "$library"; done

# zig links against the glibc that is asked for; maturin then checks the symbols.
options=(--release --quiet --zig --compatibility manylinux_2_28 --out "$out")
if [ "$machine" != "$(uname -m)" ]; then options+=(--target "$target"); fi
if [ "$abi" = abi3 ]; then
  tags=cp311-abi3
else
  # A folder of its own: what is built for the other interpreters stays.
  export CARGO_TARGET_DIR=$PWD/target/free-threaded
  version=$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')
  tags=cp${version/./}-cp${version/./}t
  # Of another machine's interpreter maturin knows all by its name.
  if [ "$machine" = "$(uname -m)" ]; then options+=(--interpreter "$python"); else options+=(--interpreter "python${version}t"); fi
fi
.venv/bin/maturin build "${options[@]}"
wheel=("$out"/*-"$tags-manylinux_2_28_$machine.whl")
[ -f "${wheel[0]}" ] || { echo "no wheel with the tags $tags-manylinux_2_28_$machine in $out: $(ls "$out")" && exit 1; }
.venv/bin/python tests/package/description.py "${wheel[0]}"
.venv/bin/python -m twine check --strict "${wheel[0]}"
.venv/bin/python tests/package/audit.py "${wheel[0]}"
if [ "$abi" = abi3 ]; then .venv/bin/abi3audit --strict --summary "${wheel[0]}"; fi

# A pip that knows all tags. It looks nowhere else: gpupool has no mandatory dependency.
[ -d build/pip ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check --target build/pip pip
environment=$out/from-wheel
rm -rf "$environment"
"$python" -m venv --without-pip "$environment"
PYTHONPATH=build/pip "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "${wheel[0]}"
"$environment/bin/python" tests/package/smoke.py "${expected[@]}"
rm -rf "$environment"

# The extras name packages that are there and fit together. Nothing of them is installed.
platforms=()
if [ "$machine" != "$(uname -m)" ]; then
  platforms=(--only-binary :all: --target "$environment" --implementation cp --python-version 3.11)
  for platform in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do platforms+=(--platform "${platform}_$machine"); done
fi
if [ "$abi" = abi3 ]; then
  for extra in cupy12 cupy13; do
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --dry-run "${platforms[@]}" "${wheel[0]}[$extra]"
    echo "$extra resolves for $machine"
  done
fi
