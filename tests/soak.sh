#!/usr/bin/env bash
# Runs random operations on memory against the naive model, on every core, half of them with faults; then random schedules
# of threads for so many seconds. Usage: tests/soak.sh PROGRAM OPERATIONS SECONDS, where PROGRAM is what cargo built of
# tests/models.
set -euo pipefail
program=${1:?usage: tests/soak.sh PROGRAM OPERATIONS SECONDS}
operations=${2:?usage: tests/soak.sh PROGRAM OPERATIONS}
seconds=${3:-3600}
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
# As many themes at a time as there are cores.
themes=$("$program" --list schedules:: 2>/dev/null | grep -c ': test$')
GPUPOOL_SCHEDULE_SECONDS=$((seconds * $(nproc) / themes)) "$program" --nocapture schedules:: | grep schedules, || failed=1
exit $failed
