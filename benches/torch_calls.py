"""PyTorch's allocator called from C++, by the functions of torch_mix.cpp, which are compiled here."""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("torch_mix.cpp")
NUMBERS = ("cold_ns", "warm_ns", "peak_reserved", "segments_made_or_freed")


class Replayed(ctypes.Structure):
    """What a replay took."""

    _fields_ = [(name, ctypes.c_double) for name in NUMBERS]


class Calls:
    """The functions. The first process compiles them, and the next ones find them."""

    def __init__(self) -> None:
        import torch

        library = ctypes.CDLL(str(compiled(torch)))
        self._pair, self._storage, self._mix, self._replay = (
            library[f"torch_{name}"] for name in ("pair", "storage", "mix", "replay")
        )
        for function, argument in (
            (self._pair, ctypes.c_int64),
            (self._storage, ctypes.c_int64),
            (self._mix, ctypes.c_int),
        ):
            function.restype, function.argtypes = ctypes.c_double, [argument]

    def pair(self, size: int) -> float:
        """Return the nanoseconds that an allocation and a free by address take."""
        return self._pair(size)

    def storage(self, size: int) -> float:
        """Return the nanoseconds that an allocation and a free take as tensors have it."""
        return self._storage(size)

    def mix(self, threads: int) -> float:
        """Return the nanoseconds that a step of the random mix takes the slowest thread."""
        return self._mix(threads)

    def replay(self, slots: Sequence[int], sizes: Sequence[int], numbers: Sequence[int]) -> dict[str, float]:
        """Replay a log, and return what it took."""
        result, arrays = Replayed(), [(ctypes.c_int64 * len(slots))(*each) for each in (slots, sizes, numbers)]
        self._replay(ctypes.c_size_t(len(slots)), *arrays, ctypes.byref(result))
        return {name: getattr(result, name) for name in NUMBERS}


def compiled(torch) -> Path:
    """Return the library."""
    from gpupool._torch import compiler

    folder = Path(torch.__file__).parent
    key = hashlib.sha256(f"{torch.__version__} {folder}".encode() + SOURCE.read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"gpupool-bench-{os.getuid()}-{key}.so"
    if not path.is_file():
        places = [folder / "include", *compiler.cuda_headers(str(torch.version.cuda))]
        includes = [option for place in places for option in ("-isystem", str(place))]
        libraries = [f"-L{folder / 'lib'}", "-l:libc10_cuda.so", "-l:libc10.so", "-lpthread"]
        made = path.with_suffix(f".{os.getpid()}")
        command = [*compiler.find_compiler(), "-O2", "-std=c++20", "-shared", "-fPIC", "-w", *includes, str(SOURCE)]
        subprocess.run([*command, "-o", str(made), *libraries], check=True, capture_output=True, text=True)
        made.replace(path)
    return path
