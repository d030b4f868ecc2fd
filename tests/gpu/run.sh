#!/usr/bin/env bash
# Runs everything of this folder on a GPU machine: installs the wheel, tests, runs the examples, measures, and prints a
# short table last. Usage: run.sh [RESULTS_FOLDER], which gets run.txt (what is printed), log.txt (all output) and
# peers.json. PYTHON chooses the interpreter (python3); SKIP_BENCHES=1 leaves the measuring out.
set -uo pipefail
cd "$(dirname "$0")"
results=$(realpath -m "${1:-results}")
python=${PYTHON:-python3}
failed=()

# step NAME COMMAND...: runs it, keeps its output in log.txt, and notes a failure.
step() {
  local name=$1 start=$SECONDS log
  log=$(mktemp)
  shift
  if "$@" >"$log" 2>&1; then
    printf '%-18s ok      %4d s  %s\n' "$name" $((SECONDS - start)) "$(grep . "$log" | tail -n 1 | cut -c1-80)"
  else
    printf '%-18s FAILED  %4d s\n' "$name" $((SECONDS - start))
    tail -n 60 "$log"
    failed+=("$name")
  fi
  { echo "== $name"; cat "$log"; } >>"$results/log.txt"
}

run_all() {
  local site cudss parallel
  site=$(mktemp -d)
  "$python" -m pip install --quiet --no-index --no-deps --target "$site" ./gpupool-*.whl || return 1
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
  # Where Rust programs find the NVIDIA wheels of this interpreter, and the one that may be elsewhere.
  VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)')
  export VIRTUAL_ENV
  cudss=$("$python" -c 'import gpupool; print(gpupool.cudss.path if gpupool.cudss.available else "")')
  [ -n "$cudss" ] && export GPUPOOL_CUDSS_PATH=$cudss
  parallel=$("$python" -c 'import xdist' 2>/dev/null && echo "-n 4 -p no:benchmark")

  echo "bash run.sh"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  echo
  step rust-tests bin/test_cuda
  # shellcheck disable=SC2086 # several words, or none
  step gpu-tests "$python" -m pytest -q -p no:cacheprovider $parallel tests/gpu
  # Finding libraries is tested where there are none of them.
  step host-tests "$python" -m pytest -q -p no:cacheprovider --ignore tests/python/test_loader.py \
    --ignore tests/python/test_driver.py tests/python
  for example in examples/*.py; do
    step "$(basename "$example" .py)" "$python" "$example"
  done
  if [ -z "${SKIP_BENCHES:-}" ]; then
    step peers "$python" benches/peers.py --bench bin/bench_handle --output "$results/peers.json"
  fi

  echo
  "$python" -m gpupool demo
  echo
  if [ -f "$results/peers.json" ]; then
    "$python" benches/table.py "$results/peers.json"
    echo
  fi
  if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    return 1
  fi
  echo "all passed"
}

mkdir -p "$results"
rm -f "$results"/{log.txt,peers.json}
run_all | tee "$results/run.txt"
