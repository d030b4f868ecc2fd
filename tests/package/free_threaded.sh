#!/usr/bin/env bash
# Runs the tests of tests/python on a free-threaded Python, with each framework of requirements/frameworks.txt that has a
# wheel for it; the tests of the others skip. PyTorch's plug needs none: what it calls there is PyTorch's C++ library, which
# is the same for every Python. The wheel that is published for it is wheel.sh's.
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
grep -E '^(maturin|numpy|pytest|pytest-timeout|pyyaml)==' requirements/dev.txt >"$out/requirements.txt"
install() { "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install -r "$out/requirements.txt" cython prometheus-client pyte textual
# The newest of these that has a wheel: the tests are content with it.
install --only-binary cuda-bindings cuda-bindings
# A framework itself is a wheel; what it needs may be compiled.
frameworks=$(sed 's/==.*//' requirements/{frameworks,clusters}.txt | paste -sd,),llvmlite
lacking=()
while read -r framework; do
  install --only-binary "$frameworks" "$framework" 2>/dev/null || lacking+=("$framework")
done < <(grep -E '^(cupy|cuda-core|distributed|numba|numba-cuda|nvidia-.*|nvmath-python|ray|rmm)[^=]*==' -h requirements/{frameworks,clusters}.txt)
echo "no wheels for $("$python" -V): ${lacking[*]:-none}"

# A folder of its own: what is built for the other interpreters stays. As tests need it: beside its sources, with faults.
CARGO_TARGET_DIR=$PWD/target/free-threaded VIRTUAL_ENV=$environment "$environment/bin/maturin" develop --release --quiet \
  --features python,fault-injection
"$environment/bin/python" -c 'import sys, gpupool; assert not sys._is_gil_enabled(), "gpupool has turned the GIL on"'

# What renders pictures, vl-convert, has no wheel for such a Python, and what pages say is the same on each.
mapfile -t without < <(printf -- '--ignore=tests/python/test_%s.py\n' \
  figures plot compare bad_traces command_ends wrong_files notebook notebook_objects)
"$environment/bin/python" -m pytest -q -p no:cacheprovider "${without[@]}" tests/python
