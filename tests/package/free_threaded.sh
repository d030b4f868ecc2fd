#!/usr/bin/env bash
# Runs the tests of tests/python on a free-threaded Python. Those of frameworks that have no wheels for it skip. The wheel
# that is published for it is wheel.sh's.
# Usage: tests/package/free_threaded.sh PYTHON FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:?usage: tests/package/free_threaded.sh PYTHON FOLDER}
out=${2:?usage: tests/package/free_threaded.sh PYTHON FOLDER}
"$python" -c 'import sysconfig; assert sysconfig.get_config_var("Py_GIL_DISABLED"), "this Python has a GIL"' || {
  echo "$python is no free-threaded Python: name one (FREE_THREADED=...), or build one: tests/package/build_python.sh"
  exit 1
}
mkdir -p "$out"
"$python" -m venv --without-pip "$out/venv"
environment=$(realpath "$out/venv")
# An older pip does not know its tags.
.venv/bin/python -m pip --python "$environment" install --quiet --upgrade pip
grep -E '^(maturin|numpy|pytest|pytest-timeout)==' requirements-dev.txt >"$out/requirements.txt"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check -r "$out/requirements.txt" \
  matplotlib prometheus-client

# A folder of its own: what is built for the other interpreters stays. As tests need it: beside its sources, with faults.
CARGO_TARGET_DIR=$PWD/target/free-threaded VIRTUAL_ENV=$environment "$environment/bin/maturin" develop --release --quiet \
  --features python,fault-injection
"$environment/bin/python" -c 'import sys, gpupool; assert not sys._is_gil_enabled(), "gpupool has turned the GIL on"'

"$environment/bin/python" -m pytest -q -p no:cacheprovider tests/python
