#!/usr/bin/env bash
# Builds the wheel for aarch64 on another machine (GH200, GB200 and Jetson need it), and tries it and the crate's unit tests
# under emulation: rustup, qemu-user, a cross compiler (gcc-aarch64-linux-gnu) and an aarch64 Python with its libraries in
# SYSROOT must be there. It has no libraries for PyTorch: they are compiled where it is first used.
# Usage: tests/package/aarch64.sh FOLDER [SYSROOT]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/package/aarch64.sh FOLDER [SYSROOT]}
sysroot=${2:-}
target=aarch64-unknown-linux-gnu
rustup target add --toolchain "$(rustup show active-toolchain | cut -d" " -f1)" "$target"
mkdir -p "$out"
rm -f python/gpupool/_torch/allocator-*.so
# zig links against the glibc that is asked for, as for x86-64.
PATH=$PWD/.venv/bin:$PATH .venv/bin/maturin build --release --quiet --zig --target "$target" \
  --compatibility manylinux_2_28 --out "$out"
wheel=$(ls "$out"/*-cp311-abi3-manylinux_2_28_aarch64.whl)
.venv/bin/python -m twine check --strict "$wheel"

libraries=/usr/aarch64-linux-gnu
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $libraries" \
  cargo test --quiet --target "$target" --lib -- --skip a_mapping_is_aligned_writable_and_all_there # qemu knows no mincore

if [ -n "$sysroot" ]; then
  rm -rf "$out/installed"
  .venv/bin/python -m zipfile -e "$wheel" "$out/installed"
  PYTHONPATH=$out/installed:tests/package qemu-aarch64 -L "$sysroot" "$sysroot/usr/bin/python3" -c '
import platform, smoke
smoke.use()
print(f"the wheel works on {platform.machine()}")'
fi
du -h "$wheel"
