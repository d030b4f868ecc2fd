"""The command line, which shows how far it is from the first moment on."""

import sys

from gpupool.__main__ import main
from gpupool._traces import progress

if __name__ == "__main__":
    progress.DELAY = 0
    sys.exit(main())
