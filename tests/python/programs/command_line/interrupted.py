"""The command line, with Ctrl-C while it reads the file."""

import signal
import sys

from gpupool.__main__ import main
from gpupool._traces import progress

if __name__ == "__main__":
    progress.Progress.__call__ = lambda self, part: signal.raise_signal(signal.SIGINT)
    sys.exit(main(sys.argv[1:]))
