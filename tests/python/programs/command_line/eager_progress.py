"""The command line, which shows how far it is from the first moment on."""

import sys

from gpupool import _progress
from gpupool.__main__ import main

if __name__ == "__main__":
    _progress.DELAY = 0
    sys.exit(main())
