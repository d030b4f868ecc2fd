#!/usr/bin/env bash
# Runs Python's tests on each other Python that pyproject.toml promises: with the module that is built, which is for all of
# them, without CUDA's frameworks, whose tests skip, and without the long tests of what no Python changes. A Python is found
# on PATH, among pyenv's, and in ~/.cache/gpupool, where build_python.sh puts one that a machine lacks:
# PYTHON_SOURCES=ARCHIVE builds the newest. Usage: tests/package/pythons.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/package/pythons.sh FOLDER}
mkdir -p "$out"
out=$(realpath "$out")
built=${XDG_CACHE_HOME:-$HOME/.cache}/gpupool/python
ours=$(.venv/bin/python -c 'import sys; print(*sys.version_info[:2], sep=".")')
promised=$(sed -n 's/^  "Programming Language :: Python :: \(3\.[0-9]*\)",$/\1/p' pyproject.toml)
newest=$(tail -n 1 <<<"$promised")
if [ -n "${PYTHON_SOURCES:-}" ] && [ ! -x "$built/bin/python$newest" ]; then
  GIL=1 bash tests/package/build_python.sh "$PYTHON_SOURCES" "$built"
fi
cat requirements/dev.txt requirements/frameworks.txt |
  grep -E '^(markdown-it-py|numpy|prometheus-client|pyte|pytest|pytest-timeout|pytest-xdist|pyyaml|textual|vl-convert-python)==' >"$out/requirements.txt"

# find VERSION: prints the path of that Python, if it is anywhere.
find_python() {
  local place
  for place in "$(command -v "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/"python$1" "$built/bin/python$1"; do
    [ -x "$place" ] && "$place" -c '' 2>/dev/null && echo "$place" && return
  done
}

# C++ that is compiled, what processes do for each other, which is the core's, and what pages say.
same=(--ignore=tests/python/test_figures.py --ignore=tests/python/test_cpp.py --ignore=tests/python/test_neighbours.py --ignore=tests/python/test_share.py)
missing=()
for version in $promised; do
  [ "$version" = "$ours" ] && continue
  python=$(find_python "$version" || true)
  [ -n "$python" ] || { missing+=("$version") && continue; }
  "$python" -m venv --without-pip --clear "$out/$version"
  .venv/bin/python -m pip --python "$out/$version" install --quiet --disable-pip-version-check -r "$out/requirements.txt"
  # What maturin does for .venv: the package is where its sources are, and its command is there.
  realpath python >"$out/$version/lib/python$version/site-packages/gpupool.pth"
  printf '#!%s\nimport sys\nfrom gpupool.__main__ import main\nsys.exit(main())\n' "$out/$version/bin/python" >"$out/$version/bin/gpupool"
  chmod +x "$out/$version/bin/gpupool"
  echo "Python $version: $python"
  "$out/$version/bin/python" -m pytest -q -r fE -p no:cacheprovider -n auto --dist worksteal -m "not thorough" "${same[@]}" tests/python
done
for version in "${missing[@]}"; do echo "no Python $version here: its tests did not run"; done
