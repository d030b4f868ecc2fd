#!/usr/bin/env bash
# Builds rmm_peers.cpp into a folder with all that it runs with: RMM's library and gpupool's. It takes a C++ compiler,
# the frameworks of .venv, and `make .venv/library`; no GPU, and nothing of CUDA where it runs but the driver.
# Usage: benches/rmm_peers.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: benches/rmm_peers.sh FOLDER}
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
cuda=$packages/nvidia/cu13
mkdir -p "$out"
cp "$packages/librmm/lib64/librmm.so" "$packages/rapids_logger/lib64/librapids_logger.so" \
  python/gpupool/lib/libgpupool.so.0 "$("${CXX:-c++}" -print-file-name=libstdc++.so.6)" "$out"
"${CXX:-c++}" -std=c++20 -O2 -Wall -Wextra benches/rmm_peers.cpp -o "$out/rmm_peers" -Ipython/gpupool/include \
  -isystem "$packages/librmm/include/rapids" -isystem "$packages/librmm/include" \
  -isystem "$packages/rapids_logger/include" -isystem "$cuda/include" \
  -L"$out" -l:librmm.so -l:librapids_logger.so -l:libgpupool.so.0 -Wl,-rpath,'$ORIGIN' \
  "$cuda/lib/libcudart_static.a" -pthread -ldl -lrt
du -sh "$out"
