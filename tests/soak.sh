#!/usr/bin/env bash
# Runs random operations on memory against the naive model, on every core: half of them with faults.
# Usage: tests/soak.sh PROGRAM OPERATIONS, where PROGRAM is what cargo built of tests/models.
set -euo pipefail
program=${1:?usage: tests/soak.sh PROGRAM OPERATIONS}
operations=${2:?usage: tests/soak.sh PROGRAM OPERATIONS}
tests=(memory::any_program memory::whatever_the_driver)
jobs=$((($(nproc) + 1) / 2 * 2))
running=()
for job in $(seq "$jobs"); do
  GPUPOOL_MODEL_OPERATIONS=$((operations / jobs)) "$program" --nocapture "${tests[job % 2]}" &
  running+=($!)
done
failed=0
for process in "${running[@]}"; do
  wait "$process" || failed=1
done
exit $failed
