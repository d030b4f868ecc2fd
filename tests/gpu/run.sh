#!/usr/bin/env bash
# Runs everything of this folder on a GPU machine: installs the wheel, tests, runs the examples, measures, and prints a
# short table last. Usage: run.sh [RESULTS_FOLDER]. PYTHON chooses the interpreter (python3).
set -uo pipefail
cd "$(dirname "$0")"
results=$(realpath -m "${1:-results}")
python=${PYTHON:-python3}
mkdir -p "$results"

site=$(mktemp -d)
"$python" -m pip install --quiet --no-index --no-deps --target "$site" ./gpupool-*.whl || exit 1
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
# Where a Rust program finds the NVIDIA wheels of this interpreter.
VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)')
export VIRTUAL_ENV

failed=()
# step NAME COMMAND...: runs it, keeps its output in log.txt, and notes a failure.
step() {
  local name=$1 start=$SECONDS log
  log=$(mktemp)
  shift
  if "$@" >"$log" 2>&1; then
    printf '%-18s ok      %4d s  %s\n' "$name" $((SECONDS - start)) "$(tail -n 1 "$log" | cut -c1-80)"
  else
    printf '%-18s FAILED  %4d s\n' "$name" $((SECONDS - start))
    tail -n 60 "$log"
    failed+=("$name")
  fi
  { echo "== $name"; cat "$log"; } >>"$results/log.txt"
}

# Python finds wheels wherever they were installed; the Rust programs are told of the one that may be elsewhere.
cudss=$("$python" -c 'import gpupool; print(gpupool.cudss.path if gpupool.cudss.available else "")')
[ -n "$cudss" ] && export GPUPOOL_CUDSS_PATH=$cudss
parallel=$("$python" -c 'import xdist' 2>/dev/null && echo "-n 4 -p no:benchmark")

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$results/machine.txt"
step rust-tests bin/test_cuda
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
[ -f "$results/peers.json" ] && "$python" benches/table.py "$results/peers.json"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all passed"
