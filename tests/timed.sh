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
# The second line is what the processes took that have ended.
processor=$(times | tail -n 1 | sed -E 's/([0-9.]+)s/\1 s/g; s/([0-9]+)m/\1 min /g; s/ s ([0-9])/ s of users and \1/')
printf 'Last time, on %s: %d min %d s on %d cores; processors: %s of the system.\n' \
  "$(date +%F)" $((SECONDS / 60)) $((SECONDS % 60)) "$(nproc)" "$processor" >"$file"
cat "$file"
