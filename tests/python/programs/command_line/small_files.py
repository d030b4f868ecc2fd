"""The command line where no file can be larger than a page, as on a disk that is nearly full."""

import resource
import sys

from gpupool.__main__ import main

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    sys.exit(main(sys.argv[1:]))
