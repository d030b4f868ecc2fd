"""gpupool compiles its library for PyTorch at first use, where none came with it, and finds it again.

It says so and ends well where there is no compiler, or no headers.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gpupool._torch import compiler, library, place


def main(is_second):
    compiler.FOLDER = Path(tempfile.gettempdir()) / "nothing is shipped here"
    path = library.cache_path(torch)
    assert path.is_file() == is_second, f"{path} is there: {path.is_file()}"
    try:
        library.load(torch)
    except library.NoLibrary as error:
        print(f"torch: compiled at first use: it cannot be: {str(error)[:200]}")
        return
    import gpupool

    gpupool.torch.enable()
    assert place.is_taken()
    tensor = torch.ones(1 << 20, device="cuda")
    assert float(tensor.sum()) == 1 << 20
    assert torch.cuda.memory_allocated() >= 4 << 20
    if not is_second:
        subprocess.run([sys.executable, __file__, "second"], check=True)
        print("torch: compiled at first use: works")


if __name__ == "__main__":
    main(len(sys.argv) > 1)
