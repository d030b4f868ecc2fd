"""gpupool, CuPy and PyTorch use one copy of each library, whichever comes first."""

import importlib
import os
import re
import sys
from pathlib import Path


def use_gpupool(names):
    gpupool = importlib.import_module("gpupool")
    for name in names:
        getattr(gpupool, name).handle()


def use_cupy(_):
    cupy = importlib.import_module("cupy")
    sparse = importlib.import_module("cupyx.scipy.sparse")
    a = cupy.eye(64)
    cupy.linalg.cholesky(a @ a)
    sparse.csr_matrix(a) @ a[0]
    cupy.cuda.get_current_stream().synchronize()


def use_torch(_):
    torch = importlib.import_module("torch")
    a = torch.eye(64, device="cuda")
    torch.linalg.cholesky(a @ a)
    a.to_sparse_csr() @ a[0]
    torch.nn.functional.conv2d(a.view(1, 1, 64, 64), a[:3, :3].reshape(1, 1, 3, 3).contiguous())
    torch.cuda.synchronize()


USES = {"gpupool": use_gpupool, "cupy": use_cupy, "torch": use_torch}


def main(order, *libraries):
    """Take libraries by their names and the stems of their files, as in cublas=libcublas."""
    stems = dict(library.split("=") for library in libraries)
    for framework in order.split("-"):
        USES[framework](stems)

    loaded = set(re.findall(r"(/\S*\.so\S*)", Path("/proc/self/maps").read_text()))
    gpupool = importlib.import_module("gpupool")
    for name, stem in stems.items():
        copies = [os.path.realpath(path) for path in loaded if os.path.basename(path).startswith(f"{stem}.so")]
        expected = [os.path.realpath(getattr(gpupool, name).path)]
        assert copies == expected, f"the process has {copies} of {name}, and gpupool {expected}"


if __name__ == "__main__":
    main(*sys.argv[1:])
