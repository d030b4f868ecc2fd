"""The commands that make the module of ``resource.pyx`` for one RMM, from that RMM's own declarations and headers.

They use nothing of gpupool's but its folder, for the modules that come with gpupool are compiled by them too.
"""

from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("resource.pyx")
INCLUDE = SOURCE.parents[1] / "include"
# The versions of RMM whose Python classes hold references to any C++ resource: this one and later.
OLDEST = (26, 6)
# Python's stable interface, of the oldest Python that gpupool is for.
_STABLE = ("-DPy_LIMITED_API=0x030B0000", "-DCYTHON_LIMITED_API=1")


def sources() -> list[Path]:
    """Return the files of gpupool's that a module is made of."""
    return [SOURCE, *sorted(INCLUDE.glob("*.h*"))]


def cython(python: str, declarations: Sequence[Path], out: Path) -> list[str]:
    """Return the command that makes C++ of the source.

    Args:
        python: An interpreter that has Cython.
        declarations: The folders that have the packages ``rmm`` and ``cuda.bindings``.
        out: The file of C++ to make.
    """
    folders = [option for folder in declarations for option in ("-I", str(folder))]
    return [python, "-m", "cython", "-3", "--cplus", *folders, str(SOURCE), "-o", str(out)]


def cxx(
    compiler: Sequence[str], code: Path, librmm: Path, headers: Sequence[Path], out: Path, *options: str
) -> list[str]:
    """Return the command that compiles that C++, and links it to RMM's library, which is in memory when it is loaded.

    Args:
        compiler: The command of the compiler.
        code: The file of C++.
        librmm: The folder of the package, with ``include`` and ``lib64``.
        headers: The folders with the headers of Python, CUDA and rapids_logger.
        out: The file to make.
        *options: More options for the compiler.
    """
    folders = (librmm / "include" / "rapids", librmm / "include", *headers)
    return [
        *compiler,
        *("-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-w"),
        *_STABLE,
        f"-I{INCLUDE}",
        *(option for folder in folders for option in ("-isystem", str(folder))),
        str(code),
        *("-o", str(out)),
        *(f"-L{librmm / 'lib64'}", "-l:librmm.so", "-s"),
        *options,
    ]
