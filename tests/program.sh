#!/usr/bin/env bash
# Prints the path of the program that cargo builds for a target. Usage: tests/program.sh test --no-run --test NAME
set -euo pipefail
cargo "$@" --quiet --message-format=json-render-diagnostics |
  python3 -c 'import json, sys
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable"):
        print(built["executable"])' | tail -n 1
