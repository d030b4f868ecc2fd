"""Another process opens an array of 0 to 999 by its handle, which it reads from stdin."""

import pickle
import sys

from numba import cuda  # noqa: F401 - so that the driver is started by Numba, whose handle this is


def main():
    with pickle.load(sys.stdin.buffer) as opened:
        found = int(opened.copy_to_host().sum())
    assert found == 499500, f"the array's sum is {found}"


if __name__ == "__main__":
    main()
