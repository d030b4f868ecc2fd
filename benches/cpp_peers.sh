#!/usr/bin/env bash
# Builds cpp_peers.cpp into a folder with gpupool's library. It takes a C++ compiler, the CUDA headers of .venv, and
# `make .venv/library`; no GPU, no ONNX Runtime, and nothing of CUDA where it runs but the driver.
# Usage: benches/cpp_peers.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: benches/cpp_peers.sh FOLDER}
cuda=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/nvidia/cu13
mkdir -p "$out"
cp python/gpupool/lib/libgpupool.so.0 "$("${CXX:-c++}" -print-file-name=libstdc++.so.6)" "$out"
"${CXX:-c++}" -std=c++17 -O2 -Wall -Wextra benches/cpp_peers.cpp -o "$out/cpp_peers" \
  -Ipython/gpupool/include -Itests/doubles/onnxruntime -isystem "$cuda/include" \
  -L"$out" -l:libgpupool.so.0 -Wl,-rpath,'$ORIGIN' "$cuda/lib/libcudart_static.a" -pthread -ldl -lrt
