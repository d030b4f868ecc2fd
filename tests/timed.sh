#!/usr/bin/env bash
# Runs a command, and says first how long it took here last, which FILE tells. Usage: tests/timed.sh FILE COMMAND...
set -euo pipefail
file=${1:?usage: tests/timed.sh FILE COMMAND...}
shift
if [ -f "$file" ]; then
  cat "$file"
else
  echo "Fetches what is missing (0.4 GB at first), builds the crate, the Python module and the C library, and runs the tests."
fi
"$@"
# Of the processes that have ended; the builtin runs in this shell alone.
times >"$file"
read -r user system < <(tail -n 1 "$file")
printf 'Last time, on %s: %d min %d s on %d cores; processors: %s of programs and %s of the system.\n' \
  "$(date +%F)" $((SECONDS / 60)) $((SECONDS % 60)) "$(nproc)" "$user" "$system" >"$file"
cat "$file"
