#!/usr/bin/env bash
# Runs the tests in which threads meet under ThreadSanitizer, which tells of every access that no lock and no atomic orders.
# Usage: tests/sanitizers/threads.sh. It needs a nightly toolchain, for the sanitizer, with the sources of `std`, which
# is built with it too; without them it says so and succeeds.
#
# What owners and visitors of an `OwnerLock` do is ordered by its atomics for the sanitizer too: `membarrier`, which it does not
# see, decides who waits. So nothing is built otherwise here, and nothing is suppressed.
set -euo pipefail
cd "$(dirname "$0")/../.."
toolchain=nightly
target=x86_64-unknown-linux-gnu
if ! rustup "+$toolchain" component list --installed 2>/dev/null | grep -q '^rust-src' || [ "$(uname -m)" != x86_64 ]; then
  echo "left out: threads under ThreadSanitizer need x86-64 and \`rustup toolchain install nightly --component rust-src\`"
  exit 0
fi
# One thread each, which no sanitizer is needed for, and most of the time that all take.
one_thread=(bookkeeping:: many_streams:: sleep:: nothing_spoils_them memory_may_go_whichever a_copy_goes_by)
# The addresses of a hundred devices, of which the sanitizer leaves too few.
many_addresses=(faults::a_device_whose_first)
# Two threads that are stopped and let go at each call in turn: what is unordered there is so in `sleep_threads`.
in_turn=(sleep_meets::)
# A panic of a test would take seconds to print where it came from.
export RUST_BACKTRACE=0
export RUSTFLAGS="-Zsanitizer=thread"
# gpupool optimised, or it runs for twice as long; what it depends on not, or that builds for twice as long.
cargo "+$toolchain" test --quiet --config 'profile.dev.package.gpupool.opt-level=1' -Zbuild-std --target "$target" \
  --target-dir target/threads --lib --test memory --test handles --test simulated -- \
  $(printf -- '--skip %s ' "${one_thread[@]}" "${many_addresses[@]}" "${in_turn[@]}")
