"""A module in PyTorch's place, over PyTorch's real libraries; FETCHED_TORCH is the folder of PyTorch's package."""

import ctypes
import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NATIVE, IN_PLACE = 0, 1


def call(name: str, *arguments: int | bytes) -> Any:
    """Call a function of the library of calls, the first argument of the program."""
    function = ctypes.CDLL(sys.argv[1])[name]
    function.restype = ctypes.c_char_p
    converted = [each if isinstance(each, bytes) else ctypes.c_ulonglong(each) for each in arguments]
    answer = json.loads(function(*converted).decode(errors="replace"), strict=False)
    assert "error" not in answer, f"{name}: {answer}"
    return answer["is"]


def fill(name: str) -> None:
    """Fill a module, which is being imported, with what PyTorch's has; its CUDA is not started."""
    torch, folder = sys.modules[name], Path(os.environ["FETCHED_TORCH"])
    told = runpy.run_path(str(folder / "version.py"))
    torch.__file__, torch.__version__ = str(folder / "__init__.py"), told["__version__"]
    torch.version = SimpleNamespace(cuda=told["cuda"])
    torch._C = SimpleNamespace(
        _GLIBCXX_USE_CXX11_ABI=True,
        _cuda_customAllocator=None,
        _cuda_getAllocatorBackend=lambda: call("name", IN_PLACE),
        _cuda_getCurrentRawStream=lambda device: 0,
    )
