#!/usr/bin/env bash
# Builds and tests crates/cuda-core without CUDA's toolkit and without a GPU: the headers and libclang are those of wheels, in
# an environment of their own, since gpupool's tests look for such packages; the driver is the double of tests/abi.
# Usage: tests/package/cuda_core.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$PWD/target/cuda-core
python=$target/wheels/bin/python
[ -x "$python" ] || "${PYTHON:-python3}" -m venv "$target/wheels"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/cuda_core.txt
packages=$("$python" -c "import sysconfig; print(sysconfig.get_path('platlib'))")
export CUDA_HOME=$packages/nvidia/cu13 LIBCLANG_PATH=$packages/clang/native
# The wheel has libclang without its compiler's headers.
BINDGEN_EXTRA_CLANG_ARGS=-I$(cc -print-file-name=include)
export BINDGEN_EXTRA_CLANG_ARGS
mkdir -p "$target/driver"
cc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o "$target/driver/libcuda.so.1" tests/abi/libcuda.c
cargo=(--quiet --locked --manifest-path crates/cuda-core/Cargo.toml --target-dir "$target")
LD_LIBRARY_PATH=$target/driver GPUPOOL_RUNTIME=cuda FAKE_DEVICES=2 FAKE_VMM=1 cargo test "${cargo[@]}"
cargo clippy "${cargo[@]}" --all-targets -- -D warnings
