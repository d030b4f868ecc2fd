#!/usr/bin/env bash
# Runs random operations on memory against the naive model, on every core, half of them with faults; then random schedules
# of threads for so many seconds. Usage: tests/soak.sh PROGRAM OPERATIONS SCHEDULES SECONDS, where PROGRAM and SCHEDULES are
# what cargo built of tests/models, optimised and not.
set -euo pipefail
usage="usage: tests/soak.sh PROGRAM OPERATIONS SCHEDULES SECONDS"
program=${1:?$usage}
operations=${2:?$usage}
schedules=${3:?$usage}
seconds=${4:?$usage}
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
themes=$("$schedules" --list schedules:: 2>/dev/null | grep -c ': test$')
GPUPOOL_SCHEDULE_SECONDS=$((seconds * $(nproc) / themes)) "$schedules" --nocapture schedules:: | grep schedules, || failed=1
exit $failed
