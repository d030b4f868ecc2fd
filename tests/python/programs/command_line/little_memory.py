"""The command line with an address space that has little more than what importing it takes."""

import resource
import sys

from gpupool.__main__ import main

if __name__ == "__main__":
    mebibytes, *arguments = sys.argv[1:]
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + (int(mebibytes) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    sys.exit(main(arguments))
