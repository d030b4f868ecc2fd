#!/usr/bin/env bash
# Compiles the fuzzer of the C table, with AddressSanitizer where the compiler has it, and runs it for so many seconds with one
# thread, then as long with three. Usage: tests/fuzz/c_table.sh FOLDER SECONDS [SEED], where the seed is otherwise a new one.
set -euo pipefail
usage="usage: tests/fuzz/c_table.sh FOLDER SECONDS [SEED]"
folder=${1:?$usage}
seconds=${2:?$usage}
seed=${3:-$RANDOM$RANDOM}
gpupool=$(cd "$(dirname "$0")/../../python/gpupool" && pwd)
mkdir -p "$folder"
build() {
  c++ -std=c++17 -O1 -g -Wall -Wextra -Werror "$(dirname "$0")/c_table.cpp" -o "$folder/c_table" -I"$gpupool/include" \
    "$gpupool/lib/libgpupool.so.0" -Wl,-rpath,"$gpupool/lib" -pthread "$@"
}
sanitizer=()
if echo 'int main() {}' | c++ -x c++ -fsanitize=address -o "$folder/sanitized" - 2>/dev/null && "$folder/sanitized"; then
  sanitizer=(-fsanitize=address)
fi
build "${sanitizer[@]}"
for threads in 1 3; do
  "$folder/c_table" $(((seconds + 1) / 2)) "$seed" "$threads"
done
