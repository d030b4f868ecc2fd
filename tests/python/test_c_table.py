"""Programs in C and C++ over the table of functions that gpupool.h declares."""

import ctypes
import re
from pathlib import Path

import gpupool
import pytest
from abi import compile_double
from c_table import HEADER, addresses


def test_the_header_is_where_it_says():
    header = Path(gpupool.get_include()) / "gpupool.h"
    assert "typedef struct gpupool_api" in header.read_text()


def test_the_header_tells_of_every_function():
    table = re.search(r"typedef struct gpupool_api \{(.*?)\} gpupool_api;", HEADER.read_text(), re.DOTALL)
    told = re.findall(r"\*/\n  \S.*?\(\*(\w+)\)\(", table[1])
    assert told == list(addresses())


@pytest.mark.parametrize(
    ("language", "options"),
    [("cc", ["-std=c11"]), ("cc", ["-std=c99"]), ("c++", ["-std=c++11", "-xc++"]), ("c++", ["-std=c++20", "-xc++"])],
    ids=["C11", "C99", "C++11", "C++20"],
)
@pytest.mark.usefixtures("nothing_left")
def test_a_program_takes_memory(tmp_path, language, options):
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    flags = [f"-I{gpupool.get_include()}", *warnings, *options]
    library = ctypes.CDLL(str(compile_double("table_user.c", tmp_path / "user.so", *flags, language=language)))
    point = ctypes.pythonapi.PyCapsule_GetPointer
    point.restype, point.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    library.use.restype, library.use.argtypes = ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_void_p]
    stream = gpupool.Stream()
    assert library.use(point(gpupool.c_api.capsule, b"gpupool.c_api"), stream.ptr) is None
