"""The command ``gpupool``, which also runs as ``python -m gpupool``."""

import sys

from gpupool._cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
