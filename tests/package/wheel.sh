#!/usr/bin/env bash
# Builds what is published for Python, a wheel for all Linux with glibc 2.28 or later and the source distribution, and
# tries each in a fresh virtual environment. Usage: tests/package/wheel.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/package/wheel.sh FOLDER}
python=$PWD/.venv/bin/python
rm -rf "$out"
mkdir -p "$out"

# The libraries of PyTorch's allocator and the modules for RMM, beside the sources only while the wheel is built, where they could be older than
# these.
trap 'rm -f python/gpupool/_torch/allocator-*.so python/gpupool/_rmm/resource-*.so python/gpupool/lib/*.so.* .venv/library' EXIT
cp build/allocators/allocator-*.so python/gpupool/_torch
cp build/resources/resource-*.so python/gpupool/_rmm

# The library for C and C++, without the faults on demand that the one for tests has.
target=x86_64-unknown-linux-gnu
PATH=$PWD/.venv/bin:$PATH cargo zigbuild --quiet --release --features c-api --target $target.2.28 --target-dir target/c
install -D -s target/c/$target/release/libgpupool.so python/gpupool/lib/libgpupool.so.0
.venv/bin/python tests/package/allocators.py --check python/gpupool/lib/libgpupool.so.0

# zig links against the glibc that is asked for; maturin then checks the symbols. It looks for `python3 -m ziglang`.
PATH=$PWD/.venv/bin:$PATH .venv/bin/maturin build --release --quiet --zig --compatibility manylinux_2_28 --out "$out"
rm python/gpupool/_torch/allocator-*.so python/gpupool/_rmm/resource-*.so python/gpupool/lib/libgpupool.so.0
.venv/bin/maturin sdist --out "$out"
"$python" -m twine check --strict "$out"/*
wheel=$(ls "$out"/*.whl)
case $wheel in
*-cp311-abi3-manylinux_2_28_x86_64.whl) ;;
*) echo "$wheel has other tags than cp311-abi3-manylinux_2_28_x86_64" && exit 1 ;;
esac

# Cargo does not tell sources in one folder from the same in another: in a folder of its own, and without what an
# earlier run made of it there, the source distribution is what is compiled.
export CARGO_TARGET_DIR=$PWD/target/sdist
cargo clean --quiet --release --package gpupool

# attempt NAME FILE LIBRARIES: installs it and uses it; these libraries must be there.
attempt() {
  "$python" -m venv "$out/$1"
  "$out/$1/bin/python" -m pip install --quiet --disable-pip-version-check "$2"
  "$out/$1/bin/python" tests/package/smoke.py "${@:3}"
  rm -rf "${out:?}/$1"
}
attempt from-wheel "$wheel" build/allocators/*.so build/resources/*.so libgpupool.so.0
attempt from-sdist "$out"/*.tar.gz

# The extras name packages that are there and fit together. Nothing of them is installed.
for extra in cuda12 cuda13; do
  "$python" -m pip install --quiet --disable-pip-version-check --dry-run "$wheel[$extra]"
  echo "$extra resolves"
done
du -h "$out"/*
