"""The same names and the same order of arguments in all public functions, but for what is listed with its reason."""

import importlib
import inspect
import re
from pathlib import Path

import gpupool
import pytest

FRAMEWORKS = (*("torch", "cupy", "numba", "cuda_core", "rmm", "warp", "nvmath", "onnxruntime", "dask", "ray"),)
# What each framework's module has, unless the reference says otherwise.
COMMON = {
    "enable": "(*, pinned=None)",
    "disable": "()",
    "is_enabled": "()",
    "using": "(pool=None, *, pinned=False)",
}
PAGE = Path(__file__).parents[2] / "docs" / "api" / "frameworks.md"
# The order of what several functions take.
ORDER = ("pool", "nbytes", "stream", "device", "numa", "timeout", "background")
# Other names for these.
SYNONYMS = {
    *("size", "bytes", "num_bytes", "byte_count", "nbyte"),
    *("s", "strm", "stream_ptr"),
    *("dev", "device_id", "ordinal", "gpu"),
    *("node", "numa_node"),
    *("mem_pool", "mempool", "memory_pool"),
}
# Functions with the arguments of others.
OF_OTHERS = {
    "gpupool.torch.begin_allocate_to_pool": "PyTorch's",
    "gpupool.cuda_core.MemoryResource": "cuda.core's resources begin with the device",
    "gpupool.cuda_core.PinnedMemoryResource.allocate": "cuda.core's",
    "gpupool.cuda_core.PinnedMemoryResource.deallocate": "cuda.core's",
    "gpupool.cupy.MemoryPool.malloc": "CuPy's",
    "gpupool.cupy.MemoryPool.set_limit": "CuPy's",
    "gpupool.cupy.PinnedMemoryPool.malloc": "CuPy's",
    "gpupool.nvmath.MemoryManager": "nvmath-python's",
    "gpupool.nvmath.MemoryManager.memalloc_async": "nvmath-python's",
}


def bare(signature):
    """Return a signature without types."""
    parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def listed():
    """Return what the reference lists, by module and function; None for a module without any."""
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)(\(.*?\))`|none) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert all(why.strip() for *_, why in rows)
    found = {}
    for module, name, signature, _ in rows:
        names = [name] if name else COMMON
        found.update({(module, each): signature or None for each in names})
    return found


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_frameworks_functions_have_the_signatures_that_the_reference_lists(framework, name):
    function = getattr(importlib.import_module(f"gpupool.{framework}"), name, None)
    told = listed().get((framework, name), COMMON[name])
    assert (None if function is None else bare(inspect.signature(function))) == told


def test_the_reference_lists_nothing_that_is_as_elsewhere_or_not_there():
    assert [key for key, signature in listed().items() if signature == COMMON.get(key[1])] == []
    assert {module for module, _ in listed()} <= set(FRAMEWORKS)


def public_callables():
    """Return all public functions, classes and methods, by their names."""
    found = {}

    def add(name, value):
        if inspect.isclass(value):
            if issubclass(value, BaseException) or value.__module__ == "gpupool.typing":
                return
            for method in vars(value):
                if not method.startswith("_") and callable(getattr(value, method)):
                    found[f"{name}.{method}"] = getattr(value, method)
        if callable(value) and not isinstance(value, gpupool.HandlePool):
            found[name] = value

    for module in ("gpupool", *(f"gpupool.{name}" for name in (*FRAMEWORKS, "worker", "prometheus"))):
        loaded = importlib.import_module(module)
        for name in dir(loaded):
            if name.startswith("_") or name in {*FRAMEWORKS, "worker", "prometheus", "typing"}:
                continue
            try:
                value = getattr(loaded, name)
            except gpupool.LibraryNotFound:
                continue
            add(f"{module}.{name}", value)
    return found


def test_arguments_have_one_name_and_one_order():
    wrong, seen = {}, set()
    for name, function in public_callables().items():
        try:
            parameters = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            continue
        common = [parameter for parameter in parameters if parameter in ORDER]
        if SYNONYMS & set(parameters) or common != sorted(common, key=ORDER.index):
            wrong[name] = parameters
        seen.add(name)
    assert len(seen) > 100, "the public functions were not found"
    assert wrong.keys() - OF_OTHERS.keys() == set(), wrong
