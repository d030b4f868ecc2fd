"""What Rust's tests say of themselves, in the file of `GPUPOOL_TEST_REPORT`: the slowest, and none that does too much.

Calls of the driver are counted, and not seconds, so that a busy machine fails no test.
"""

import sys
from pathlib import Path

# What a test may call whose work is the same each time, half as much again as any does. One whose work is
# more goes on for a time instead, by `turns` of tests/common/mod.rs.
MOST_CALLS = 100_000
SHOWN = 10


def main(file: str) -> None:
    """Print the slowest tests; fail for each that calls the driver too often."""
    lines = [line.split("\t") for line in Path(file).read_text().splitlines()]
    tests = [(float(seconds), name, int(calls), amount) for calls, amount, seconds, name in lines]
    tests.sort(reverse=True)
    print(f"slowest of {len(tests)} tests in processes of their own (seconds, calls of the driver):")
    for seconds, name, calls, _ in tests[:SHOWN]:
        print(f"{seconds:8.2f} {calls:9,} {name}")
    wrong = [(calls, name) for _, name, calls, amount in tests if amount != "by time" and calls > MOST_CALLS]
    if wrong:
        sys.exit(
            "\n".join(f"{name} calls the driver {calls:,} times, more than {MOST_CALLS:,}" for calls, name in wrong)
        )


main(*sys.argv[1:])
