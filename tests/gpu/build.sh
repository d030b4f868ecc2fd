#!/usr/bin/env bash
# Builds into one folder all that a GPU machine without Rust or network needs: the wheel, the test and bench programs,
# the Python tests, the examples, and run.sh, which runs them there.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/gpu/build.sh FOLDER}
rm -rf "$out"
mkdir -p "$out/bin"

# Beside the sources only while the wheel is built, where they could be older than these.
trap 'rm -f python/gpupool/_torch/allocator-*.so python/gpupool/_rmm/resource-*.so' EXIT
cp build/allocators/allocator-*.so python/gpupool/_torch
cp build/resources/resource-*.so python/gpupool/_rmm

# The library for C and C++ is there already: `make gpu` builds it before.
# With the faults on demand that the tests inject, which the published wheel has not.
.venv/bin/maturin build --release --quiet --features python,fault-injection --compatibility linux --out "$out"

install -s "$(tests/program.sh test --release --no-run --test cuda)" "$out/bin/test_cuda"
install -s "$(tests/program.sh test --release --no-run --test cuda_memory)" "$out/bin/test_cuda_memory"
install -s "$(tests/program.sh test --release --no-run --test cuda_pinned)" "$out/bin/test_cuda_pinned"
install -s "$(tests/program.sh test --release --no-run --test cuda_dead_stream)" "$out/bin/test_cuda_dead_stream"
install -s "$(tests/program.sh test --release --no-run --test cuda_slices)" "$out/bin/test_cuda_slices"
install -s "$(tests/program.sh test --release --no-run --test memory_model)" "$out/bin/test_memory_model"
install -s "$(tests/program.sh bench --no-run --bench handle)" "$out/bin/bench_handle"
install -s "$(tests/program.sh bench --no-run --bench memory)" "$out/bin/bench_memory"
install -s "$(tests/program.sh build --release --example cudarc_stream)" "$out/bin/cudarc_stream"
install -s "$(tests/program.sh build --release --example cudarc_training)" "$out/bin/cudarc_training"

bash benches/rmm_peers.sh "$out/rmm_peers"

cp -r tests examples benches docs pyproject.toml README.md "$out"
cp tests/gpu/run.sh "$out"
find "$out" -name __pycache__ -prune -exec rm -rf {} +
du -sh "$out"
