"""The frameworks: which are installed, and which allocator each that the program has imported uses.

A framework is asked itself, so that what others have set since shows too. It is never imported for that, and nothing
is asked that would start its GPU part.
"""

import importlib.metadata
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from gpupool._report.info.report import Framework

# What a framework says: the allocator, in words, and whether it is gpupool.
_Answer = tuple[str, bool]
_GPUPOOL: _Answer = ("gpupool", True)


class _Known(NamedTuple):
    name: str
    # What pip calls its packages.
    packages: tuple[str, ...]
    # Asks the imported module, on these devices; None where it has no allocator for the process.
    ask: Callable[[Any, range], _Answer] | None = None


def gather(devices: int) -> list[Framework]:
    """Describe the frameworks. ``devices`` is how many the process sees, for those with an allocator for each."""
    return [_describe(known, range(devices)) for known in _KNOWN]


def _describe(known: _Known, devices: range) -> Framework:
    module = sys.modules.get(known.name)
    answer: tuple[str | None, bool | None] = (None, None)
    if module is not None and known.ask is not None:
        try:
            answer = known.ask(module, devices)
        except Exception as error:
            # Whatever a framework of another version does, the rest of the report is of use.
            answer = (f"cannot be told: {type(error).__name__}: {error}", None)
    return Framework(
        name=known.name,
        packages=_installed(known.packages) or _version_of(known.name, module),
        imported=module is not None,
        allocator=answer[0],
        uses_gpupool=answer[1],
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
    """The version that an imported module tells, where no package is known to have brought it."""
    return {name: str(version)} if (version := getattr(module, "__version__", None)) else {}


def _adapter(name: str) -> ModuleType | None:
    """Gpupool's module for a framework, if it has been used."""
    return sys.modules.get(f"gpupool.{name}")


def _ask_torch(torch: Any, devices: range) -> _Answer:
    adapter = _adapter("torch")
    if adapter is not None and adapter._has_allocator:
        return _GPUPOOL
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)
    if backend is None:
        return ("none: PyTorch was built without CUDA", False)
    name = str(backend())
    own = {"native": "PyTorch's own (native)", "cudaMallocAsync": "the driver's pool (cudaMallocAsync)"}
    text = own.get(name, f"{name}, which is not gpupool's")
    if adapter is not None and adapter._inside:
        return (f"{text}; gpupool in {adapter._inside} block(s) of gpupool.torch.using", False)
    return (text, False)


def _ask_cupy(cupy: Any, devices: range) -> _Answer:
    allocator = cupy.cuda.get_allocator()
    adapter = _adapter("cupy")
    # Asked only once it was made: to make it here would leave CuPy's parts behind.
    if adapter is not None and adapter._allocate.cache_info().currsize and allocator is adapter._allocate():
        handles = sys.modules.get("gpupool._frameworks.cupy_handles")
        return ("gpupool, and its library handles too", True) if handles and handles._replaced else _GPUPOOL
    owner = getattr(allocator, "__self__", None)
    if owner is not None and owner is cupy.get_default_memory_pool():
        return ("CuPy's own pool", False)
    if isinstance(owner, cupy.cuda.MemoryAsyncPool):
        return ("the driver's pool (MemoryAsyncPool)", False)
    return (_name(allocator), False)


def _ask_rmm(rmm: Any, devices: range) -> _Answer:
    adapter = _adapter("rmm")
    answers = []
    for device in devices:
        resource = rmm.mr.get_per_device_resource(device)
        ours = adapter._enabled.get(device, (None, None))[0] if adapter is not None else None
        chain = [resource]
        while (upstream := getattr(chain[-1], "upstream_mr", None)) is not None:
            chain.append(upstream)
        names = ["gpupool" if ours is not None and each is ours else type(each).__name__ for each in chain]
        answers.append((" over ".join(names), names[-1] == "gpupool"))
    return _each(devices, answers)


def _ask_numba(numba: Any, devices: range) -> _Answer:
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


def _ask_cuda_core(core: Any, devices: range) -> _Answer:
    # The property would make a resource where there is none, which spoils captures.
    resources = [getattr(core.Device(device), "_memory_resource", None) for device in devices]
    answers = []
    for resource in resources:
        kind = type(resource)
        if resource is None:
            answers.append(("cuda.core's own", False))
        elif kind.__module__ == "gpupool._frameworks.cuda_core_resource":
            answers.append(_GPUPOOL)
        else:
            answers.append(
                (f"cuda.core's {kind.__name__}" if kind.__module__.startswith("cuda.core") else _name(kind), False)
            )
    text, uses_gpupool = _each(devices, answers)
    return (f"{text}, in this thread", uses_gpupool)


def _each(devices: range, answers: list[_Answer]) -> _Answer:
    """One answer for all devices, if they agree."""
    if not answers:
        return ("none: there is no GPU", False)
    if len(set(answers)) == 1:
        return answers[0]
    text = ", ".join(f"{text} on device {device}" for device, (text, _) in zip(devices, answers, strict=True))
    return (text, all(uses_gpupool for _, uses_gpupool in answers))


def _name(what: Any) -> str:
    """A callable or class by the name that its users know it by."""
    owner = getattr(what, "__self__", None)
    module = getattr(what, "__module__", None) or type(owner).__module__
    return f"{module}.{getattr(what, '__qualname__', type(what).__name__)}"


_KNOWN = (
    _Known("torch", ("torch",), _ask_torch),
    _Known("cupy", ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy-rocm-7-0"), _ask_cupy),
    _Known("rmm", ("rmm", "rmm-cu13", "rmm-cu12"), _ask_rmm),
    _Known("numba", ("numba", "numba-cuda"), _ask_numba),
    _Known("cuda.core", ("cuda-core", "cuda-bindings"), _ask_cuda_core),
    _Known("nvmath", ("nvmath-python",)),
    _Known("distributed", ("distributed", "dask-cuda")),
    _Known("ray", ("ray",)),
    _Known("jax", ("jax", "jaxlib")),
    _Known("tensorflow", ("tensorflow",)),
)
