"""What gpupool logs to stdout where the program set logging up before it imported gpupool."""

import importlib
import logging
import sys

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s %(message)s")
    importlib.import_module("gpupool").simulated.handle()
