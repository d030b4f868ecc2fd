#!/usr/bin/env bash
# Runs the crate's unit tests for aarch64 (GH200, GB200 and Jetson) on another machine, under emulation. rustup, qemu-user
# and a cross compiler (gcc-aarch64-linux-gnu) must be there. The wheels for it are wheel.sh's. Run it by `make aarch64`.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=aarch64-unknown-linux-gnu
for command in rustup qemu-aarch64 aarch64-linux-gnu-gcc; do
  command -v $command >/dev/null ||
    { echo "$command is missing: https://rustup.rs, and apt-get install qemu-user gcc-aarch64-linux-gnu" && exit 1; }
done
rustup target add --toolchain "$(rustup show active-toolchain | cut -d" " -f1)" "$target"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -R 64G -L /usr/aarch64-linux-gnu"
# qemu knows no mincore, and no filters of system calls.
cargo test --quiet --target "$target" --lib -- --skip a_mapping_is_aligned_writable_and_all_there \
  --skip owners_pay_for_a_barrier_once_membarrier_is_refused
