#!/usr/bin/env bash
# Runs under Miri, an interpreter that knows each rule on memory, pointers and data races, what needs no driver: the crate's unit
# tests, and tests of the C table, of handles and of threads' memory on simulated devices, whose memory is numbers there that
# nothing is behind. Usage: tests/sanitizers/miri.sh. It needs a nightly toolchain with Miri; without one it says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/../.."
toolchain=nightly
if ! rustup "+$toolchain" component list --installed 2>/dev/null | grep -q '^miri'; then
  echo "left out: Miri is not here; \`rustup toolchain install nightly --component miri --component rust-src\` gets it"
  exit 0
fi
# Without isolation, for the clock, the environment and files in /proc are asked for. Permissive, for C, Python and drivers give
# and take addresses as numbers.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance"
# Drivers are libraries in C, which Miri does not look for.
export GPUPOOL_RUNTIME=host
# Of 256 random programs on a heap, each of which takes Miri seconds.
export PROPTEST_CASES=8
# Each test is its process's only one, as what begins with host!() wants it.
export GPUPOOL_TEST_OWN_PROCESS=1
# Tests that take seconds and write to no memory of a device. The numbers are seeds, of the turns that threads take.
tests=(
  "0 c_api calls::a_stream_is_waited_for"
  "0 c_api calls::a_thread_is_told_of_its_own_failures_alone"
  "0 c_api calls::an_error_is_told_to_the_very_end_of_a_thread"
  "0 c_api calls::an_older_program_gets_what_its_structs_have_room_for"
  "0 c_api calls::blocks_are_allocated_found_and_freed"
  "0 c_api calls::captures_that_are_expected_or_known_of_are_not_spoilt"
  "0 c_api wrong_values::a_struct_without_its_size_is_refused"
  "0 c_api handles::a_lease_ends_once"
  "0 c_api handles::a_lease_is_its_holders_until_it_ends_on_any_thread"
  "0 c_api handles::nobody_gets_a_discarded_handle_again"
  "0 handles creation::out_of_memory_for_good_says_what_is_needed_and_who_holds_it"
  "0 handles leases::a_lease_may_end_on_another_thread_and_after_a_trim"
  "0 handles leases::a_request_over_the_limit_takes_what_an_ended_thread_held"
  "0 handles leases::those_who_wait_are_served_in_order"
  "0 handles scratch::all_of_them_go_back_when_the_thread_ends"
  "0 handles windows::a_request_after_the_window_is_gone_is_an_error_and_loses_no_handle"
  "0 handles windows::threads_that_live_at_once_get_different_handles"
  "0 memory few::what_one_thread_allocates_others_use_free_and_look_for"
  "1 memory few::what_one_thread_allocates_others_use_free_and_look_for"
  "2 memory few::what_one_thread_allocates_others_use_free_and_look_for"
  "0 memory pinned::with_no_stream_recorded_it_is_used_again_at_once"
  "0 memory pools::a_pool_is_closed_to_threads_that_are_in_it"
)
miri() {
  cargo "+$toolchain" miri test --quiet --target-dir target/miri "$@" 2>&1
}
said=$(miri --lib) || { echo "$said" && exit 1; }
echo "$said" | grep '^test result'
for line in "${tests[@]}"; do
  read -r seed program test <<<"$line"
  said=$(MIRIFLAGS="$MIRIFLAGS -Zmiri-seed=$seed" miri --test "$program" -- --exact "$test") ||
    { echo "$said" && echo "Miri stopped $program, $test, with seed $seed" && exit 1; }
  grep -q ' 1 passed' <<<"$said" || { echo "no test of $program is called $test" && exit 1; }
done
echo "test result: ok. ${#tests[@]} passed; 0 failed, each a process under Miri"
