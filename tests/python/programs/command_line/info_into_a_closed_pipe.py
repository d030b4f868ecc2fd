"""`gpupool info`, whose reader has closed the pipe."""

import os
import sys

from gpupool.__main__ import main

if __name__ == "__main__":
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    sys.exit(main(["info"]))
