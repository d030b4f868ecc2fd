#!/usr/bin/env bash
# Builds the source distribution, and tries what pip makes of it in a fresh virtual environment. Usage:
# tests/package/sdist.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/package/sdist.sh FOLDER}
mkdir -p "$out"
.venv/bin/maturin sdist --out "$out"
sdist=$(ls "$out"/*.tar.gz)
.venv/bin/python tests/package/description.py "$sdist"
.venv/bin/python -m twine check --strict "$sdist"

# Cargo does not tell sources in one folder from the same in another: in a folder of its own, and without what an
# earlier run made of it there, the source distribution is what is compiled.
export CARGO_TARGET_DIR=$PWD/target/sdist
cargo clean --quiet --release --package gpupool
environment=$out/from-sdist
rm -rf "$environment"
.venv/bin/python -m venv "$environment"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$sdist"
"$environment/bin/python" tests/package/smoke.py
rm -rf "$environment"
