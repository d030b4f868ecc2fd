#!/usr/bin/env bash
# Prints the instructions of one call of what is measured, by subject, for the code that is here: builds what
# benches/instructions.py counts, with the features of what goes to a GPU machine. It needs valgrind.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
program=$(tests/program.sh bench --no-run --bench count)
.venv/bin/maturin build --release --quiet --target-dir target/python --features python,fault-injection \
  --compatibility linux --out "$folder" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/site" "$folder"/*.whl
PYTHONPATH="$folder/site" .venv/bin/python benches/instructions.py "$program"
