"""`import gpupool`, and a look at its pools, load no library of NVIDIA's."""

import importlib
import re
from pathlib import Path


def loaded():
    return set(re.findall(r"/(lib[^/\s]*\.so\S*)", Path("/proc/self/maps").read_text()))


def main():
    before = loaded()
    gpupool = importlib.import_module("gpupool")
    repr([gpupool.cudnn, gpupool.cusparse, gpupool.cudss, gpupool.cublas, gpupool.cublaslt, gpupool.cusolver])
    repr([gpupool.custatevec, gpupool.cutensornet, gpupool.cutensor, gpupool.cusparselt])
    found = [name for name in loaded() - before if re.match("lib(cu|nv)", name)]
    assert not found, f"gpupool loads {found}"


if __name__ == "__main__":
    main()
