"""The environment variables that change what gpupool, the driver and the frameworks do."""

import difflib
import os

import _gpupool_enable

from gpupool import _native, worker
from gpupool._native import Error, HandlePool
from gpupool._report.info.report import Problem, Variable, error, warning

_PREFIX = "GPUPOOL_"
_LIBRARIES = sorted(
    name for name, value in vars(_native).items() if isinstance(value, HandlePool) and name != "simulated"
)
_PATHS = [f"{_PREFIX}{name.upper()}_PATH" for name in [*_LIBRARIES, "amdhip64"]]
# Every variable that gpupool reads.
GPUPOOL = [
    "GPUPOOL_RUNTIME",
    "GPUPOOL_WORKER",
    "GPUPOOL_ENABLE",
    "GPUPOOL_NVTX",
    "GPUPOOL_EXTENT_PAGES",
    "GPUPOOL_HOST_DEVICES",
    "GPUPOOL_HOST_MEMORY",
    "GPUPOOL_HOST_SHARED",
    "GPUPOOL_NEIGHBOURS",
    "GPUPOOL_NEIGHBOUR_NAME",
    "GPUPOOL_NEIGHBOUR_GUARANTEE",
    "GPUPOOL_NEIGHBOUR_MOST",
    "GPUPOOL_NEIGHBOUR_PRIORITY",
    "GPUPOOL_NEIGHBOUR_DEADLINE_MS",
    "GPUPOOL_WATCH_REPORT",
    "GPUPOOL_HIP_VIRTUAL_MEMORY",
    *_PATHS,
]

# Variables of other software, in the order in which they are shown.
_OTHERS = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_HOME",
    "CUDA_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROCM_PATH",
    "HIP_PATH",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "NUMBA_CUDA_MEMORY_MANAGER",
    "NUMBA_DISABLE_CUDA",
    "NUMBA_ENABLE_CUDASIM",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "NVTX_INJECTION64_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)
_OTHER_PREFIXES = ("CUDA_MPS_", "CUPY_", "CUDNN_", "CUDSS_", "CUSPARSELT_", "CUSTATEVEC_", "CUTENSOR_", "CUTENSORNET_")


def gather() -> list[Variable]:
    """Return the variables that are set: gpupool's first."""
    mine = sorted(name for name in os.environ if name.startswith(_PREFIX))
    others = [name for name in _OTHERS if name in os.environ]
    others += sorted(name for name in os.environ if name.startswith(_OTHER_PREFIXES))
    return [
        Variable(name=name, value=_printable(os.environ[name]), known=not name.startswith(_PREFIX) or name in GPUPOOL)
        for name in [*mine, *others]
    ]


def _printable(value: str) -> str:
    """Return a value whose bytes need not be text as text."""
    return value.encode("utf-8", "replace").decode()


def leads_nowhere(variable: Variable) -> bool:
    """Return whether a variable is to name a library's file or folder, and none is there."""
    return variable.name in _PATHS and not os.path.exists(variable.value)


def problems(variables: list[Variable]) -> list[Problem]:
    """Return what is wrong with gpupool's own variables."""
    found = []
    for variable in variables:
        if not variable.known:
            close = difflib.get_close_matches(variable.name, GPUPOOL, n=1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(GPUPOOL)}"
            found.append(warning(f"gpupool knows no variable {variable.name}; {meant}"))
        elif leads_nowhere(variable):
            way = "set it to the library's file or folder, or unset it to have the library looked for"
            found.append(error(f"{variable.name}={variable.value} leads nowhere: {way}"))
        elif variable.name == _gpupool_enable.VARIABLE:
            if wrong := _gpupool_enable.parse(variable.value)[1]:
                found.append(error(_gpupool_enable.told_wrong(wrong)))
        elif variable.name == worker.VARIABLE:
            try:
                worker.Settings.from_environment()
            except Error as refusal:
                found.append(error(str(refusal)))
    return found
