"""The same names and the same order of arguments in all public functions, but for what is listed with its reason."""

import importlib
import inspect

import gpupool
import pytest

FRAMEWORKS = (*("torch", "cupy", "numba", "cuda_core", "rmm", "warp", "nvmath", "onnxruntime", "dask", "ray"),)
# What each framework's module has, unless OTHERWISE says so.
COMMON = {
    "enable": "(*, pinned=None)",
    "disable": "()",
    "is_enabled": "()",
    "using": "(pool=None, *, pinned=False)",
}
OTHERWISE = {
    # With allocator=False gpupool follows PyTorch's current stream alone.
    ("torch", "enable"): "(*, pinned=None, allocator=True)",
    # Backward passes run on threads of their own, and pinned memory has one allocator for all threads.
    ("torch", "using"): "(pool=None, *, all_threads=False)",
    # CuPy's library handles can come from gpupool, too.
    ("cupy", "enable"): "(*, pinned=None, handles=None)",
    # In cuda.core each thread has a resource for each device, and a program passes pinned memory's.
    ("cuda_core", "enable"): "(device=None)",
    ("cuda_core", "disable"): "(device=None)",
    ("cuda_core", "is_enabled"): "(device=None)",
    ("cuda_core", "using"): "(pool=None)",
    # RMM has no current resource of pinned memory; a program passes one.
    ("rmm", "enable"): "()",
    ("rmm", "using"): "(pool=None)",
    # Warp has no allocator of pinned memory to choose.
    ("warp", "enable"): "()",
    ("warp", "using"): "(pool=None)",
    # These have no allocator of a process or thread, or no memory.
    **{(framework, name): None for framework in ("nvmath", "onnxruntime", "dask", "ray") for name in COMMON},
}
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


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_frameworks_functions_have_the_same_signatures(framework, name):
    function = getattr(importlib.import_module(f"gpupool.{framework}"), name, None)
    told = OTHERWISE.get((framework, name), COMMON[name])
    assert (None if function is None else bare(inspect.signature(function))) == told


def test_no_exception_is_as_elsewhere_or_not_there():
    assert [key for key, signature in OTHERWISE.items() if signature == COMMON[key[1]]] == []
    assert {module for module, _ in OTHERWISE} <= set(FRAMEWORKS)


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
