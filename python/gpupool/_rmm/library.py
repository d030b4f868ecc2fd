"""The module of ``resource.pyx`` for the RMM that runs: found, or compiled at first use, and imported."""

import importlib.machinery
import importlib.util
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from gpupool._compiled import cache
from gpupool._compiled.cache import NoLibrary
from gpupool._rmm import commands
from gpupool._torch import compiler
from gpupool._torch.library import table

# What of RMM a module is made from, by folders that end with it.
_INTERFACE = (
    "pylibrmm/memory_resource/_memory_resource.pxd",
    "librmm/memory_resource.pxd",
)


def load(rmm: Any) -> Any:
    """Import the module for the RMM that runs: one that came with gpupool, one of the cache, or one made now.

    Raises:
        NoLibrary: There is none, and none could be made.
    """
    version = _version(rmm)
    if version < commands.OLDEST:
        major, minor = commands.OLDEST
        raise NoLibrary(
            f"the Python classes of RMM {rmm.__version__} hold C++ resources of RMM's own alone: update to RMM "
            f"{major}.{minor:02} or later"
        )
    finders = (
        lambda: _shipped(rmm, version),
        lambda: cache.kept(cache_path(rmm)),
        lambda: _compiled(rmm, version),
    )
    return cache.first(finders, lambda path: _import(path, version))


def _version(rmm: Any) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", str(rmm.__version__))
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _import(path: Path, version: tuple[int, int]) -> Any:
    """Import a module, and see that it is for this RMM and that its classes work.

    Raises:
        NoLibrary: It is not, or they do not.
    """
    name = f"{__package__}.resource"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    try:
        if spec is None:
            raise ImportError("it is no module")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        told = tuple(module.version())
        if told != version:
            raise NoLibrary(f"{path} is for RMM {told[0]}.{told[1]:02}, not for {version[0]}.{version[1]:02}")
        module.start(table())
        # Through RMM's own class, which touches no device for 0 bytes.
        if module.MemoryResource(0).allocate(0) != 0:
            raise NoLibrary(f"{path} does not work with this RMM")
    except NoLibrary:
        raise
    # Cython says so where classes are not as they were: ValueError or TypeError.
    except Exception as error:
        raise NoLibrary(f"{path} cannot be used: {error}") from error
    return module


def _shipped(rmm: Any, version: tuple[int, int]) -> Path | None:
    path = commands.SOURCE.with_name(f"resource-{version[0]}.{version[1]}.abi3.so")
    return cache.shipped(path, rmm.__version__)


def _compiled(rmm: Any, version: tuple[int, int]) -> Path:
    """Compile the module into the cache."""
    command = compiler.find_compiler()
    if importlib.util.find_spec("Cython") is None:
        raise NoLibrary("Cython is missing, by which the module for RMM is made: pip install cython")
    declarations = [_folder("rmm").parent, _folder("cuda.bindings").parents[1]]
    librmm, headers = _folder("librmm"), _headers()
    with cache.compiling(f"resource for RMM {rmm.__version__}", cache_path(rmm)) as (made, path):
        code = made.with_suffix(".cpp")
        compiler.run(commands.cython(sys.executable, declarations, code), commands.SOURCE)
        compiler.run(commands.cxx(command, code, librmm, headers, made), commands.SOURCE)
        # A module that cannot be used is not kept. Python imports a file once, wherever it is later.
        _import(made, version)
    return path


def _folder(package: str) -> Path:
    """Return the folder of an installed package.

    Raises:
        NoLibrary: It is missing.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise NoLibrary(f"the package {package} is missing, from which the module for RMM is made: install RMM's wheel")
    return Path(next(iter(spec.submodule_search_locations)))


def _headers() -> list[Path]:
    """Return the folders with the headers of Python, rapids_logger and CUDA.

    Raises:
        NoLibrary: Those of Python are missing.
        gpupool._torch.compiler.CompilationFailed: Those of CUDA are missing.
    """
    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").is_file():
        raise NoLibrary(f"{python / 'Python.h'} is missing: install Python's headers, such as the package python3-dev")
    bindings = re.match(r"(\d+\.\d+)", str(importlib.import_module("cuda.bindings").__version__))
    cuda = compiler.cuda_headers(bindings[1] if bindings else "13.0")
    return [python, _folder("rapids_logger") / "include", *cuda]


def cache_path(rmm: Any) -> Path:
    """Return the file that a module compiled for this RMM has: another for each that could differ."""
    folder = Path(rmm.__file__).parent
    files = (*commands.sources(), *(folder / name for name in _INTERFACE))
    return cache.path_for("rmm/resource", ".abi3.so", (rmm.__version__,), files)
