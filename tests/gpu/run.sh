#!/usr/bin/env bash
# Runs everything of this folder on a GPU machine: installs the wheel, tests, runs the examples, measures, and prints a
# short table last. Usage: run.sh [RESULTS_FOLDER], which gets run.txt (what is printed), log.txt (all output),
# examples.txt, info.txt, leases.txt, green_contexts.txt, and one object a line in peers.json, workspaces.json,
# memory.json, turns.json, passes.json, several_streams.json, recording.json, ranges.json, idle_server.json,
# kv_peers.json, watch.json, pinned.json, pinned_rust.json, sleep.json, neighbours.json, share.json, frameworks.json,
# plugs.json, warp_turns.json, rmm.json, rmm_cpp.json, cpp_peers.json, nccl.json, pytorch.json, torch_sharing.json,
# two_gpus.json, devices.json and devices_mix.json. PYTHON chooses the interpreter (python3); SKIP_BENCHES=1 leaves out
# the measuring and the long soaks, SKIP_TESTS=1 all that is no measuring. ONLY="handles sleep passes" measures the
# parts (memory, ranges, copies, allocators, pytorch, devices, examples, handles) and files that it names, and tests
# nothing. TRACES names a folder with more logs to replay than tests/data has, and TURNS says how often peers take turns
# (5).
#
# MEMCHECK=1 does one thing alone: it runs the tests of tests/gpu, and the processes that they start, under
# compute-sanitizer, a step for each file and some ten times as slowly. A step fails at a wrong access of GPU memory, at
# a test that fails, after ten minutes, and where the sanitizer checked nothing.
# MEMCHECK_TESTS="tests/gpu/test_leases.py ..." has it run these files, or single tests of them (FILE::TEST), alone.
set -uo pipefail
cd "$(dirname "$0")"
results=$(realpath -m "${1:-results}")
python=${PYTHON:-python3}
failed=()
measured=

# step NAME COMMAND...: runs it, keeps its output in log.txt, and notes a failure.
step() {
  local name=$1 start=$SECONDS log
  log=$(mktemp)
  shift
  if "$@" >"$log" 2>&1; then
    printf '%-24s ok      %4d s  %s\n' "$name" $((SECONDS - start)) "$(grep . "$log" | tail -n 1 | cut -c1-80)"
  else
    printf '%-24s FAILED  %4d s\n' "$name" $((SECONDS - start))
    tail -n 60 "$log"
    failed+=("$name")
  fi
  { echo "== $name"; cat "$log"; } >>"$results/log.txt"
}

# measure FILE SECONDS COMMAND...: a step whose output are lines of that file, with what it had until its time was over,
# where the file or the part that is measured is wanted.
measure() {
  local file=$1 seconds=$2 name
  shift 2
  name=${file%.*}
  wanted "$name" || return 0
  measured=yes
  # shellcheck disable=SC2016 # for the inner shell
  step "bench-$name" bash -c 'set -o pipefail; timeout "$2" "${@:3}" | tee -a "$1"' _ "$results/$file" "$seconds" "$@"
}

# Whether the figures of the part that is measured are wanted, or those of one file.
wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $part "* || " $ONLY " == *" $1 "* ]]; }

# Whether Warp is there: its wheel is larger than all that is here.
has_warp() { "$python" -c 'import warp' 2>/dev/null; }

# Where compute-sanitizer is, if anywhere.
find_sanitizer() {
  local place
  for place in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer \
    /usr/local/cuda*/compute-sanitizer/compute-sanitizer \
    "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"/nvidia/*/bin/compute-sanitizer; do
    [ -x "$place" ] && echo "$place" && return
  done
}

# memcheck SANITIZER TESTS: runs them under it.
memcheck() {
  local folder status
  folder=$(mktemp -d)
  # No API errors: tests have the driver refuse calls on purpose. Python may take long to its first call of the driver,
  # and not every process that a test starts makes one.
  GPUPOOL_TESTS_PATIENCE=10 timeout -k 10 600 "$1" --tool memcheck --error-exitcode 9 --report-api-errors no \
    --target-processes all --max-connections 100 --launch-timeout 0 --require-cuda-init no --log-file "$folder/said" \
    "$python" -m pytest -q -p no:cacheprovider -o timeout=500 "$2" | tee "$folder/tested"
  status=$?
  cat "$folder/said"
  # Its status is 0 also where it could not reach the device, and what it says may be of several processes.
  if ! grep -q 'ERROR SUMMARY: 0 errors' "$folder/said" || grep -q 'ERROR SUMMARY: [1-9]' "$folder/said"; then
    echo "the sanitizer found errors, or checked nothing"
    return 1
  fi
  tail -n 1 "$folder/tested"
  return $status
}

run_memcheck() {
  local sanitizer tests test name
  sanitizer=$(find_sanitizer)
  # The first two fill the device, which leaves the sanitizer no memory for itself. The third calls the driver a million
  # times and runs no kernel. The fourth has CUPTI in the process, of which there can be only one tool.
  read -ra tests <<<"${MEMCHECK_TESTS:-$(find tests/gpu -name 'test_*.py' ! -name test_out_of_memory.py \
    ! -name test_neighbours.py ! -name test_replay.py ! -name test_nvtx.py | sort | xargs)}"
  for test in "${tests[@]}"; do
    name=${test##*/test_}
    step "memcheck-${name/.py/}" memcheck "$sanitizer" "$test"
  done
}

measure_memory() {
  local traces trace turn work
  traces=(tests/data/*.csv.gz ${TRACES:+"$TRACES"/*.csv.gz})
  for work in c_abi random "recording 1 16"; do
    # shellcheck disable=SC2086 # several words
    measure memory.json 120 bin/bench_memory $work
  done
  measure memory.json 500 "$python" benches/memory_peers.py "${traces[@]}"
  measure recording.json 120 "$python" benches/recording.py
  for ((turn = 0; turn < ${TURNS:-5}; turn++)); do
    measure turns.json 60 bin/bench_memory pair
    measure turns.json 60 bin/bench_memory mix 1 2 4 8 16
    measure turns.json 60 "$python" benches/memory_peers.py --torch
    # The first pass over a log takes its memory of the driver only in a new process, which costs seconds.
    ((turn < 3)) && for trace in "${traces[@]}"; do
      measure passes.json 60 bin/bench_memory replay "$trace"
      PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True measure passes.json 60 "$python" benches/memory_peers.py --replay "$trace"
    done
  done
}

measure_ranges() {
  measure ranges.json 90 "$python" benches/ranges.py
  measure idle_server.json 90 "$python" benches/idle_server.py
  measure kv_peers.json 400 "$python" benches/kv_peers.py
}

# What is copied, by this process and others.
measure_copies() {
  local turn
  measure sleep.json 580 "$python" benches/sleep.py --turns "${TURNS:-5}"
  measure neighbours.json 400 "$python" benches/neighbours.py --rounds "${TURNS:-5}"
  measure share.json 200 "$python" benches/share.py
  measure torch_sharing.json 200 "$python" benches/torch_sharing.py 100
  for ((turn = 0; turn < 2; turn++)); do
    measure pinned_rust.json 60 bin/bench_memory pinned 1 16
  done
  measure pinned.json 500 "$python" benches/pinned_peers.py
}

measure_allocators() {
  local peers
  for peers in framework numba; do
    measure frameworks.json 500 "$python" "benches/${peers}_peers.py"
  done
  measure rmm.json 500 "$python" benches/rmm_peers.py
  measure rmm_cpp.json 300 rmm_peers/rmm_peers random
  measure cpp_peers.json 200 cpp_peers/cpp_peers
  measure plugs.json 580 "$python" benches/plug_peers.py
  measure watch.json 120 "$python" benches/watch.py
  has_warp && measure warp_turns.json 300 "$python" benches/warp_turns.py
  NCCL_NVLS_ENABLE=0 measure nccl.json 120 "$python" benches/nccl.py
}

measure_handles() {
  measure workspaces.json 60 "$python" benches/workspaces.py
  # Its table goes to stderr, the same as JSON to stdout.
  # shellcheck disable=SC2016 # for the inner shell
  measure green_contexts.txt 120 bash -c '"$1" -W ignore benches/green_contexts.py 2>&1 >/dev/null' _ "$python"
  # shellcheck disable=SC2016 # for the inner shell
  measure leases.txt 120 bash -c 'leases() { bin/bench_handle --bench "at once" --measurement-time 0.3 --warm-up-time 0.1 \
    --sample-size 10 2>&1 | grep -vE "^Benchmarking" | grep -E "at once|time:" | paste -d " " - - | tr -s " "; }
    leases && GPUPOOL_RUNTIME=host leases'
  # shellcheck disable=SC2016 # for the inner shell
  measure library_memory.txt 300 bash -c 'bin/bench_library_memory --bench 2>&1 | grep -vE "^Benchmarking" |
    grep -E "time:|^[a-z]+[ /].*[^:]$|workspace of"'
  measure peers.json 400 "$python" benches/peers.py --bench bin/bench_handle
}

# A part at a time, each with its ratios last: one that takes too long loses its own alone.
measure_pytorch() {
  local works
  for works in times mixes peaks; do
    measure pytorch.json 400 "$python" benches/torch_peers.py "$works"
  done
  measure several_streams.json 400 "$python" benches/several_streams.py "${TURNS:-5}"
}

# What several GPUs cost; the simulated devices beside them are measured as all that gpupool adds.
measure_devices() {
  measure two_gpus.json 600 "$python" benches/two_gpus.py --turns "${TURNS:-5}" --seconds 500
  measure devices.json 300 "$python" benches/devices.py --rounds 5
  measure devices_mix.json 300 bin/bench_memory devices 8
  GPUPOOL_RUNTIME=host GPUPOOL_HOST_DEVICES=16 measure devices_mix.json 200 bin/bench_memory devices 1 2
}

# What the examples print, each with its command, in three runs: the figures differ.
measure_examples() {
  local example turn
  for ((turn = 0; turn < 3; turn++)); do
    for example in torch_training cupy_pool numba_kernel nvmath_solve kv_cache; do
      # shellcheck disable=SC2016 # for the inner shell
      measure examples.txt 100 bash -c 'echo; echo "python $2"; "$1" "$2"' _ "$python" "examples/$example.py"
    done
  done
}

test_memory() {
  local sanitizer
  step memory-tests timeout 300 bin/test_cuda --include-ignored --nocapture --test-threads 1 memory::
  step pinned-tests timeout 200 bin/test_cuda --include-ignored --nocapture --test-threads 1 pinned::
  step ranges-tests timeout 300 bin/test_cuda --include-ignored --nocapture --test-threads 1 ranges::
  step peers-tests timeout 200 bin/test_cuda --include-ignored --nocapture --test-threads 1 peers::
  step dead-streams timeout 120 bin/test_cuda --include-ignored --nocapture dead_stream::
  step slices timeout 120 bin/test_cuda --include-ignored --nocapture --test-threads 1 slices::
  sanitizer=$(find_sanitizer)
  if [ -n "$sanitizer" ]; then
    # Some virtual machines do not let it reach the device; then it says so and nothing is learnt.
    GPUPOOL_SOAK_OPERATIONS=2000 step sanitizer timeout 240 "$sanitizer" --tool memcheck --error-exitcode 9 \
      bin/test_cuda --include-ignored --nocapture --test-threads 1 memory::every_word
  else
    echo "no compute-sanitizer here"
  fi
}

run_soaks() {
  GPUPOOL_SOAK_OPERATIONS=1000000 step long-soak timeout 400 bin/test_cuda --include-ignored --nocapture memory::every_word
  GPUPOOL_SOAK_OPERATIONS=1000000 step peers-soak timeout 580 bin/test_cuda --include-ignored --nocapture peers::every_word
  GPUPOOL_SOAK_SECONDS=300 step neighbours-soak timeout 450 "$python" -m pytest -q -s -p no:cacheprovider -m alone \
    tests/gpu/test_neighbours.py
}

# The options that leave out tests of what needs packages such a machine may lack: what renders pictures, and a terminal.
no_pictures() {
  "$python" -c 'import pyte, textual, vl_convert' 2>/dev/null ||
    printf -- '--ignore tests/python/test_%s.py ' bad_traces command_ends compare guide notebook notebook_objects plot top wrong_files
}

run_tests() {
  local parallel example
  parallel=$("$python" -c 'import xdist' 2>/dev/null && echo "-n 8 --dist worksteal -p no:benchmark")
  step rust-tests bin/test_cuda --include-ignored --test-threads 1 handles::
  step cudarc_stream bin/cudarc_stream
  step cudarc_training bin/cudarc_training
  # shellcheck disable=SC2086 # several words, or none
  step gpu-tests "$python" -m pytest -q -p no:cacheprovider $parallel -m "not alone and not thorough" tests/gpu
  # shellcheck disable=SC2086
  step gpu-tests-thorough "$python" -m pytest -q -p no:cacheprovider $parallel -m thorough tests/gpu
  step gpu-tests-alone "$python" -m pytest -q -p no:cacheprovider -m alone tests/gpu
  # Finding libraries, and their doubles, are tested where there are none of them; what fetches packages, where there is
  # a network; addresses, versions and workflows, where all files of the repository are.
  # shellcheck disable=SC2046 # several words
  step host-tests "$python" -m pytest -q -p no:cacheprovider tests/python \
    $(printf -- '--ignore tests/python/test_%s.py ' addresses cuda_core dlpack_streams doubles driver green_contexts hand_over hip \
      info library_memory loader logging miopen numba nvmath nvtx platforms rocm_libraries setters summary \
      torch_allocator torch_enabled versions workflows workspaces) $(no_pictures)
  for example in examples/*.py; do
    case $example in *warp_*) has_warp || continue ;; esac
    step "$(basename "$example" .py)" "$python" "$example"
  done
}

run_all() {
  local site cudss
  site=$(mktemp -d)
  "$python" -m pip install --quiet --no-index --no-deps --target "$site" ./gpupool-*.whl || return 1
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
  # Where Rust programs find the NVIDIA wheels of this interpreter, and the one that may be elsewhere.
  VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)')
  export VIRTUAL_ENV
  cudss=$("$python" -c 'import gpupool; print(gpupool.cudss.path if gpupool.cudss.available else "")')
  [ -n "$cudss" ] && export GPUPOOL_CUDSS_PATH=$cudss

  echo "${MEMCHECK:+MEMCHECK=1 }${SKIP_TESTS:+SKIP_TESTS=1 }${ONLY:+ONLY=\"$ONLY\" }bash run.sh"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  echo
  if [ -n "${MEMCHECK:-}" ]; then
    run_memcheck
    finish
    return
  fi
  if [ -z "${SKIP_TESTS:-}${ONLY:-}" ]; then
    test_memory
    run_tests
    [ -n "${SKIP_BENCHES:-}" ] || run_soaks
  fi
  if [ -z "${SKIP_BENCHES:-}" ]; then
    for part in memory copies allocators pytorch ranges devices examples handles; do
      "measure_$part"
    done
    [ -n "$measured" ] || failed+=("to find what ONLY names")
  fi

  "$python" -m gpupool info >"$results/info.txt"
  echo
  "$python" -m gpupool demo
  echo
  finish
}

finish() {
  # What the tests saw, beside that they passed.
  grep -ohE '(soak:|while a kernel runs|cuMemUnmap|CU_STREAM_CAPTURE_MODE_[A-Z_]*:) .*|^[a-z_]+: [a-z, ]+: .*' \
    "$results/log.txt" | cut -c1-240
  if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    return 1
  fi
  echo "all passed"
}

mkdir -p "$results"
rm -f "$results"/{log,examples,leases,green_contexts,library_memory}.txt \
  "$results"/{peers,workspaces,memory,turns,passes,several_streams,recording,ranges,idle_server,kv_peers,watch}.json \
  "$results"/{pinned,pinned_rust,sleep,neighbours,share}.json \
  "$results"/{frameworks,plugs,warp_turns,rmm,rmm_cpp,cpp_peers,nccl,pytorch,torch_sharing}.json \
  "$results"/{two_gpus,devices,devices_mix}.json
run_all | tee "$results/run.txt"
status=$?
[ ! -f code.json ] || "$python" benches/provenance.py measured "$results"
exit "$status"
