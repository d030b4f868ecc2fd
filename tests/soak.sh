#!/usr/bin/env bash
# Runs random operations on memory against the naive model for so many seconds, on every core, half of them with faults;
# then as long random schedules of threads. Usage: tests/soak.sh PROGRAM SCHEDULES SECONDS, where PROGRAM and SCHEDULES are
# what cargo built of tests/models, optimised and not.
set -euo pipefail
usage="usage: tests/soak.sh PROGRAM SCHEDULES SECONDS"
program=${1:?$usage}
schedules=${2:?$usage}
seconds=${3:?$usage}
tests=(memory::any_program memory::whatever_the_driver)
jobs=$((($(nproc) + 1) / 2 * 2))
running=()
for job in $(seq "$jobs"); do
  GPUPOOL_TEST_SECONDS=$seconds "$program" --nocapture "${tests[job % 2]}" &
  running+=($!)
done
failed=0
for process in "${running[@]}"; do
  wait "$process" || failed=1
done
# As many themes at a time as there are cores.
themes=$("$schedules" --list schedules:: 2>/dev/null | grep -c ': test$')
GPUPOOL_TEST_SECONDS=$((seconds * $(nproc) / themes)) "$schedules" --nocapture schedules:: | grep schedules, || failed=1
exit $failed
