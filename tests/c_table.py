"""The table of C functions, as `gpupool.h` describes it."""

import ctypes
import re
from pathlib import Path

import gpupool

HEADER = Path(gpupool.__file__).parent / "include" / "gpupool.h"


def addresses() -> dict[str, int]:
    """Return the functions' addresses by name, in the header's order."""
    table = re.search(r"typedef struct gpupool_api \{(.*?)\} gpupool_api;", HEADER.read_text(), re.DOTALL)
    assert table, "the header has no table"
    names = re.findall(r"^  \S.*?\(\*(\w+)\)\(", table[1], re.MULTILINE)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    words = (ctypes.c_uint64 * (2 + len(names))).from_address(get(gpupool.c_api.capsule, b"gpupool.c_api"))
    assert list(words[:2]) == [2, ctypes.sizeof(words)], "the table is not that of the header"
    return dict(zip(names, words[2:], strict=True))


def function(name: str, restype: type = ctypes.c_int) -> ctypes._CFuncPtr:
    """Return a function of the table, which takes what it is given."""
    return ctypes.CFUNCTYPE(restype)(addresses()[name])
