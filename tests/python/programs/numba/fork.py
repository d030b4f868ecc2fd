"""A forked child frees none of its parent's arrays."""

import os
import sys
import warnings

from double import MIB, live
from enabled import bytes_array
from forking import exit_code_of


def main():
    # Python warns of forks in processes with threads, of which OpenBLAS has some.
    warnings.simplefilter("ignore")
    arrays = [bytes_array(4 * MIB) for _ in range(20)]
    child = os.fork()
    if child == 0:
        arrays.clear()
        sys.exit()
    assert exit_code_of(child) == 0, "the child failed"
    assert live() == 20, "the child freed its parent's arrays"


if __name__ == "__main__":
    main()
