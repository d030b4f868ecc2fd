"""The frameworks: which are installed, and which allocator each that the program has imported uses.

A framework is asked itself, so that an allocator that other code has set shows too. It is never imported for that, and
nothing is asked that would start its GPU part.
"""

import importlib.metadata
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from gpupool._report.info.report import Framework

# A framework's allocator, in words, and whether it is gpupool.
_Allocator = tuple[str, bool]
_GPUPOOL: _Allocator = ("gpupool", True)


class _Known(NamedTuple):
    name: str
    # The names that pip has for its packages.
    packages: tuple[str, ...]
    # The function that asks the imported module, on these devices; None where it has no allocator for the process.
    ask: Callable[[Any, range], _Allocator] | None = None


def gather(devices: int) -> list[Framework]:
    """Describe the frameworks. ``devices`` is how many the process sees, for those with an allocator for each."""
    return [_describe(known, range(devices)) for known in _KNOWN]


def _describe(known: _Known, devices: range) -> Framework:
    module = sys.modules.get(known.name)
    allocator: tuple[str | None, bool | None] = (None, None)
    if module is not None and known.ask is not None:
        try:
            allocator = known.ask(module, devices)
        except Exception as error:
            # A framework of another version may raise anything, and the rest of the report is of use.
            allocator = (f"cannot be told: {type(error).__name__}: {error}", None)
    return Framework(
        name=known.name,
        packages=_installed(known.packages) or _version_of(known.name, module),
        imported=module is not None,
        allocator=allocator[0],
        uses_gpupool=allocator[1],
    )


def _installed(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _version_of(name: str, module: ModuleType | None) -> dict[str, str]:
    """Return the version that an imported module tells, where no package is known to have brought it."""
    return {name: str(version)} if (version := getattr(module, "__version__", None)) else {}


def _adapter(name: str) -> ModuleType | None:
    """Return gpupool's module for a framework, if it has been used."""
    return sys.modules.get(f"gpupool.{name}")


def _ask_torch(torch: Any, devices: range) -> _Allocator:
    place, pools = (_adapter(f"_torch.{name}") for name in ("place", "pools"))
    if place is not None and place.is_taken():
        return _GPUPOOL
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)
    if backend is None:
        return ("none: PyTorch was built without CUDA", False)
    name = str(backend())
    own = {"native": "PyTorch's own (native)", "cudaMallocAsync": "the driver's pool (cudaMallocAsync)"}
    text = own.get(name, f"{name}, which is not gpupool's")
    if pools is not None and (blocks := pools.blocks()):
        return (f"{text}; gpupool in {blocks} block(s) of gpupool.torch.using", False)
    return (text, False)


def _ask_cupy(cupy: Any, devices: range) -> _Allocator:
    allocator = cupy.cuda.get_allocator()
    adapter = _adapter("cupy")
    # Compared only if it was made already: making it here would import parts of CuPy.
    if adapter is not None and adapter._allocate.cache_info().currsize and allocator is adapter._allocate():
        handles = sys.modules.get("gpupool._frameworks.cupy_handles")
        return ("gpupool, and its library handles too", True) if handles and handles._replaced else _GPUPOOL
    owner = getattr(allocator, "__self__", None)
    if owner is not None and owner is cupy.get_default_memory_pool():
        return ("CuPy's own pool", False)
    if isinstance(owner, cupy.cuda.MemoryAsyncPool):
        return ("the driver's pool (MemoryAsyncPool)", False)
    return (_name(allocator), False)


def _is_ours(resource: object) -> bool:
    """Return whether a resource of RMM's is one in C++ of gpupool's."""
    return type(resource).__module__.startswith("gpupool.")


def _ask_rmm(rmm: Any, devices: range) -> _Allocator:
    adapter = _adapter("rmm")
    found = []
    for device in devices:
        resource = rmm.mr.get_per_device_resource(device)
        ours = adapter._enabled.get(device, (None, None))[0] if adapter is not None else None
        chain = [resource]
        while (upstream := getattr(chain[-1], "upstream_mr", None)) is not None:
            chain.append(upstream)
        names = ["gpupool" if each is ours or _is_ours(each) else type(each).__name__ for each in chain]
        found.append((" over ".join(names), names[-1] == "gpupool"))
    return _each(devices, found)


def _ask_numba(numba: Any, devices: range) -> _Allocator:
    driver = sys.modules.get("numba.cuda.cudadrv.driver")
    if driver is None:
        return ("not chosen yet: numba.cuda is not imported", False)
    manager = driver._memory_manager
    if manager is None:
        named = str(driver.config.CUDA_MEMORY_MANAGER)
        return (
            "not chosen yet; at the first use of a GPU it will be "
            + ("Numba's own" if named == "default" else f"that of NUMBA_CUDA_MEMORY_MANAGER={named}"),
            False,
        )
    if manager.__module__ == "gpupool._frameworks.numba_manager":
        return _GPUPOOL
    return ("Numba's own" if manager is driver.NumbaCUDAMemoryManager else _name(manager), False)


def _ask_cuda_core(core: Any, devices: range) -> _Allocator:
    # The property would make a resource where there is none, which spoils captures.
    resources = [getattr(core.Device(device), "_memory_resource", None) for device in devices]
    found = []
    for resource in resources:
        kind = type(resource)
        if resource is None:
            found.append(("cuda.core's own", False))
        elif kind.__module__ == "gpupool._frameworks.cuda_core_resource":
            found.append(_GPUPOOL)
        else:
            found.append(
                (f"cuda.core's {kind.__name__}" if kind.__module__.startswith("cuda.core") else _name(kind), False)
            )
    text, uses_gpupool = _each(devices, found)
    return (f"{text}, in this thread", uses_gpupool)


def _ask_warp(warp: Any, devices: range) -> _Allocator:
    # The functions of the module would initialize it.
    context = sys.modules.get("warp._src.context")
    if context is not None and context.runtime is None:
        return ("not chosen yet: Warp is not initialized", False)
    adapter, found = _adapter("warp"), []
    for device in warp.get_cuda_devices():
        allocator = warp.get_device_allocator(device)
        if adapter is not None and allocator is adapter._allocators.get(device.ordinal):
            found.append(_GPUPOOL)
        elif allocator is device.default_allocator or allocator is device.mempool_allocator:
            found.append(("Warp's own", False))
        else:
            found.append((_name(type(allocator)), False))
    return _each(range(len(found)), found)


def _each(devices: range, found: list[_Allocator]) -> _Allocator:
    """Return one text for all devices, if they have the same."""
    if not found:
        return ("none: there is no GPU", False)
    if len(set(found)) == 1:
        return found[0]
    text = ", ".join(f"{text} on device {device}" for device, (text, _) in zip(devices, found, strict=True))
    return (text, all(uses_gpupool for _, uses_gpupool in found))


def _name(what: Any) -> str:
    """Return the name by which the users of a callable or class know it."""
    owner = getattr(what, "__self__", None)
    module = getattr(what, "__module__", None) or type(owner).__module__
    return f"{module}.{getattr(what, '__qualname__', type(what).__name__)}"


_KNOWN = (
    _Known("torch", ("torch",), _ask_torch),
    _Known("cupy", ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy-rocm-7-0"), _ask_cupy),
    _Known("rmm", ("rmm", "rmm-cu13", "rmm-cu12"), _ask_rmm),
    _Known("numba", ("numba", "numba-cuda"), _ask_numba),
    _Known("cuda.core", ("cuda-core", "cuda-bindings"), _ask_cuda_core),
    _Known("warp", ("warp-lang",), _ask_warp),
    _Known("nvmath", ("nvmath-python",)),
    _Known("distributed", ("distributed", "dask-cuda")),
    _Known("ray", ("ray",)),
    _Known("jax", ("jax", "jaxlib")),
    _Known("tensorflow", ("tensorflow",)),
)
