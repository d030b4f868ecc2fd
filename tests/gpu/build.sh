#!/usr/bin/env bash
# Builds into one folder all that a GPU machine without Rust or network needs: the wheel, the test and bench programs,
# the Python tests, the examples, and run.sh, which runs them there. PROFILE is release, or dev to see that it can be built:
# then most of it is compiled already where tests ran. Usage: tests/gpu/build.sh FOLDER [PROFILE]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/gpu/build.sh FOLDER [PROFILE]}
profile=${2:-release}
# As Cargo names them: benches of a release have a profile of their own, and what is made for dev is in a folder named debug.
benches=${profile/#release/bench}
made=target/${profile/#dev/debug}
rm -rf "$out"
mkdir -p "$out/bin"

# Beside the sources only while the wheel is built, where they could be older than these.
trap 'rm -f python/gpupool/_torch/allocator-*.so python/gpupool/_rmm/resource-*.so' EXIT
cp build/allocators/allocator-*.so python/gpupool/_torch
cp build/resources/resource-*.so python/gpupool/_rmm

# The library for C and C++, optimised, and with the faults on demand that the tests inject, which the published one has
# not; the programs below are linked with the same crate.
cargo build --quiet --profile "$profile" --features c-api,cudarc,fault-injection
install -D -s "$made/libgpupool.so" python/gpupool/lib/libgpupool.so.0
cargo build --quiet --profile "$profile" --manifest-path crates/watch/Cargo.toml --target-dir target/watch
install -D -s "target/watch/${profile/#dev/debug}/libgpupool_watch.so" python/gpupool/lib/libgpupool_watch.so
# The programs are compiled while the wheel is: each takes one core for most of its time.
programs() {
  install -s "$(tests/program.sh test --profile "$profile" --no-run --test cuda)" "$out/bin/test_cuda"
  install -s "$(tests/program.sh bench --profile "$benches" --no-run --bench handle)" "$out/bin/bench_handle"
  install -s "$(tests/program.sh bench --profile "$benches" --no-run --bench library_memory)" "$out/bin/bench_library_memory"
  install -s "$(tests/program.sh bench --profile "$benches" --no-run --bench memory)" "$out/bin/bench_memory"
  install -s "$(tests/program.sh build --profile "$profile" --example cudarc_stream)" "$out/bin/cudarc_stream"
  install -s "$(tests/program.sh build --profile "$profile" --example cudarc_training)" "$out/bin/cudarc_training"
  bash benches/rmm_peers.sh "$out/rmm_peers"
  bash benches/cpp_peers.sh "$out/cpp_peers"
  # With what it needs of C++, for the machine's own may be older. The wheel has the library.
  "${CXX:-c++}" -std=c++17 -Wall -Wextra tests/cpp/cublas_handles.cpp -o "$out/bin/cublas_handles" \
    -Ipython/gpupool/include -Lpython/gpupool/lib -l:libgpupool.so.0 -static-libstdc++ -static-libgcc -pthread -ldl
}
(set -e && programs) &
programs=$!
.venv/bin/maturin build --profile "$profile" --quiet --target-dir target/python --features python,fault-injection \
  --compatibility linux --out "$out"
wait "$programs"

cp -r tests examples benches docs pyproject.toml README.md "$out"
# Of which code the figures will be, with the instructions of its calls; there are none of what is not optimised.
if [ "$profile" = release ]; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$out/site" "$out"/*.whl
  PYTHONPATH=$out/site .venv/bin/python benches/provenance.py code >"$out/code.json"
  rm -r "$out/site"
fi
cp tests/gpu/run.sh "$out"
find "$out" -name __pycache__ -prune -exec rm -rf {} +
du -sh "$out"
