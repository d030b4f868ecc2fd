#!/usr/bin/env bash
# Builds the source distribution, or tries what pip makes of the one that is there in a fresh virtual environment, or both.
# Usage: tests/package/sdist.sh FOLDER [build|try]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/package/sdist.sh FOLDER [build|try]}
mkdir -p "$out"
if [ "${2:-build}" = build ]; then .venv/bin/maturin sdist --out "$out"; fi
if [ "${2:-try}" = build ]; then exit; fi
sdist=$(ls "$out"/*.tar.gz)
.venv/bin/python tests/package/description.py "$sdist"
.venv/bin/python -m twine check --strict "$sdist"

# Cargo does not tell sources in one folder from the same in another: in a folder of its own, and without what an
# earlier run made of it there, the source distribution is what is compiled.
export CARGO_TARGET_DIR=$PWD/target/sdist
# Only whether it can be built is tried, which need not be fast then.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1
cargo clean --quiet --release --package gpupool
environment=$out/from-sdist
rm -rf "$environment"
.venv/bin/python -m venv "$environment"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$sdist"
"$environment/bin/python" tests/package/smoke.py
rm -rf "$environment"
