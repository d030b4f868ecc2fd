#!/usr/bin/env bash
# Builds the Python module with the oldest Rust that Cargo.toml promises. Usage: tests/package/oldest_rust.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
rustup toolchain list | grep -q "^$oldest" || rustup toolchain install "$oldest" --profile minimal
cargo "+$oldest" build --quiet --locked --lib --features python --target-dir target/oldest
echo "the Python module builds with Rust $oldest"
