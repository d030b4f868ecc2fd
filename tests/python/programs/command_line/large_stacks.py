"""The command line where no thread can be started: a stack would take more than there is address space."""

import sys
import threading

from gpupool.__main__ import main

if __name__ == "__main__":
    threading.stack_size(1 << 47)
    sys.exit(main(sys.argv[1:]))
