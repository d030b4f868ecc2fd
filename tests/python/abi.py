"""Builds the ABI doubles of tests/abi: shared libraries with the real names and signatures, and checks behind them."""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "abi"


@dataclass(frozen=True)
class Library:
    """What a library is called and calls its functions and statuses."""

    file: str
    create: str
    destroy: str
    symbols: dict[str, str]
    statuses: dict[int, str] = field(default_factory=dict)
    out_of_memory: int = 2
    driver: str = "libcuda.so.1"
    uses_context: bool = False


LIBRARIES = {
    "cudnn": Library(
        "nvidia/cudnn/lib/libcudnn.so.9",
        "cudnnCreate",
        "cudnnDestroy",
        {
            "SET_STREAM": "cudnnSetStream",
            "GET_STREAM": "cudnnGetStream",
            "VERSION_NUMBER": "cudnnGetVersion",
            "STATUS_NAME": "cudnnGetErrorString",
            "LAST_ERROR": "cudnnGetLastErrorString",
        },
        {
            1001: "CUDNN_STATUS_NOT_INITIALIZED",
            2000: "CUDNN_STATUS_BAD_PARAM",
            3000: "CUDNN_STATUS_NOT_SUPPORTED",
            4000: "CUDNN_STATUS_INTERNAL_ERROR",
            4003: "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
            4004: "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
            5000: "CUDNN_STATUS_EXECUTION_FAILED",
        },
        out_of_memory=4004,
        uses_context=True,
    ),
    "cusparse": Library(
        "nvidia/cu13/lib/libcusparse.so.12",
        "cusparseCreate",
        "cusparseDestroy",
        {
            "SET_STREAM": "cusparseSetStream",
            "PROPERTY": "cusparseGetProperty",
            "STATUS_NAME": "cusparseGetErrorName",
        },
        {
            1: "CUSPARSE_STATUS_NOT_INITIALIZED",
            2: "CUSPARSE_STATUS_ALLOC_FAILED",
            3: "CUSPARSE_STATUS_INVALID_VALUE",
            4: "CUSPARSE_STATUS_ARCH_MISMATCH",
            6: "CUSPARSE_STATUS_EXECUTION_FAILED",
            7: "CUSPARSE_STATUS_INTERNAL_ERROR",
            10: "CUSPARSE_STATUS_NOT_SUPPORTED",
            11: "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
        },
    ),
    "cudss": Library(
        "nvidia/cu13/lib/libcudss.so.1",
        "cudssCreate",
        "cudssDestroy",
        {
            "SET_STREAM": "cudssSetStream",
            "PROPERTY": "cudssGetProperty",
            "SET_MEMORY": "cudssSetDeviceMemHandler",
            "GET_MEMORY": "cudssGetDeviceMemHandler",
        },
        {
            1: "CUDSS_STATUS_NOT_INITIALIZED",
            2: "CUDSS_STATUS_ALLOC_FAILED",
            3: "CUDSS_STATUS_INVALID_VALUE",
            4: "CUDSS_STATUS_NOT_SUPPORTED",
            5: "CUDSS_STATUS_EXECUTION_FAILED",
            6: "CUDSS_STATUS_INTERNAL_ERROR",
        },
    ),
    "cublas": Library(
        "nvidia/cu13/lib/libcublas.so.13",
        "cublasCreate_v2",
        "cublasDestroy_v2",
        {
            "SET_STREAM": "cublasSetStream_v2",
            "GET_STREAM": "cublasGetStream_v2",
            "SET_WORKSPACE": "cublasSetWorkspace_v2",
            "PROPERTY": "cublasGetProperty",
            "STATUS_NAME": "cublasGetStatusName",
        },
        {
            1: "CUBLAS_STATUS_NOT_INITIALIZED",
            3: "CUBLAS_STATUS_ALLOC_FAILED",
            7: "CUBLAS_STATUS_INVALID_VALUE",
            8: "CUBLAS_STATUS_ARCH_MISMATCH",
            13: "CUBLAS_STATUS_EXECUTION_FAILED",
            14: "CUBLAS_STATUS_INTERNAL_ERROR",
        },
        out_of_memory=3,
    ),
    "cublaslt": Library(
        "nvidia/cu13/lib/libcublasLt.so.13",
        "cublasLtCreate",
        "cublasLtDestroy",
        {"PROPERTY": "cublasLtGetProperty", "STATUS_NAME": "cublasLtGetStatusName"},
        {
            1: "CUBLAS_STATUS_NOT_INITIALIZED",
            3: "CUBLAS_STATUS_ALLOC_FAILED",
            7: "CUBLAS_STATUS_INVALID_VALUE",
        },
        out_of_memory=3,
    ),
    "cusolver": Library(
        "nvidia/cu13/lib/libcusolver.so.12",
        "cusolverDnCreate",
        "cusolverDnDestroy",
        {
            "SET_STREAM": "cusolverDnSetStream",
            "GET_STREAM": "cusolverDnGetStream",
            "PROPERTY": "cusolverGetProperty",
        },
        {
            1: "CUSOLVER_STATUS_NOT_INITIALIZED",
            2: "CUSOLVER_STATUS_ALLOC_FAILED",
            4: "CUSOLVER_STATUS_ARCH_MISMATCH",
            7: "CUSOLVER_STATUS_INTERNAL_ERROR",
        },
    ),
    "miopen": Library(
        "_rocm_sdk_libraries_gfx94X_dcgpu/lib/libMIOpen.so.1",
        "miopenCreate",
        "miopenDestroy",
        {
            "SET_STREAM": "miopenSetStream",
            "GET_STREAM": "miopenGetStream",
            "VERSION_PARTS": "miopenGetVersion",
            "STATUS_NAME": "miopenGetErrorString",
        },
        {
            1: "miopenStatusNotInitialized",
            2: "miopenStatusInvalidValue",
            3: "miopenStatusBadParm",
            4: "miopenStatusAllocFailed",
            5: "miopenStatusInternalError",
            6: "miopenStatusNotImplemented",
            7: "miopenStatusUnknownError",
            8: "miopenStatusUnsupportedOp",
            9: "miopenStatusGpuOperationsSkipped",
            10: "miopenStatusVersionMismatch",
        },
        out_of_memory=4,
        driver="libamdhip64.so.7",
        uses_context=True,
    ),
}

# What a library may lack: then gpupool does without.
OPTIONAL = {"SET_WORKSPACE", "SET_MEMORY", "GET_MEMORY"}
CUDA_LIBRARIES = [name for name, library in LIBRARIES.items() if library.driver == "libcuda.so.1"]


def _compile(source: str, file: Path, *flags: str, language: str = "cc") -> Path:
    compiler = shutil.which(language)
    if compiler is None:
        pytest.skip(f"needs a compiler, {language}")
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-w", f"-Wl,-soname,{file.name}", *flags, str(SOURCES / source)]
    subprocess.run([*command, "-o", str(file)], check=True)
    return file


def build_driver(folder: Path, *flags: str) -> Path:
    """Build a driver of NVIDIA's, for LD_LIBRARY_PATH."""
    return _compile("libcuda.c", folder / "libcuda.so.1", *flags)


def build_hip(file: Path, *flags: str) -> Path:
    """Build HIP's library."""
    return _compile("libamdhip64.c", file, *flags)


def build_nvtx(file: Path) -> Path:
    """Build a profiler's library, for NVTX_INJECTION64_PATH."""
    return _compile("nvtx.c", file)


def build_torch(file: Path) -> Path:
    """Build PyTorch's library."""
    return _compile("libc10_cuda.cpp", file, "-std=c++17", language="c++")


def build_library(
    name: str,
    file: Path,
    *,
    version: tuple[int, int, int] = (1, 2, 3),
    without: str | None = None,
    needs: tuple[str, Path] | None = None,
) -> Path:
    """Build a library. `needs` is a symbol and the library that has it, without a hint where that is."""
    library = LIBRARIES[name]
    symbols = {"CREATE": library.create, "DESTROY": library.destroy, **library.symbols}
    flags = [f"-D{kind}={symbol}" for kind, symbol in symbols.items() if kind != without]
    flags.append("-DVERSION=" + ",".join(map(str, version)))
    flags.append("-DSTATUSES=" + ",".join(f'{{{code},"{status}"}}' for code, status in library.statuses.items()))
    flags.append(f'-DDRIVER="{library.driver}"')
    if library.uses_context:
        flags.append("-DUSES_CONTEXT")
    if needs:
        symbol, needed = needs
        flags += [f"-DNEEDS={symbol}", "-Wl,--no-as-needed", f"-L{needed.parent}", f"-l:{needed.name}"]
    return _compile("library.c", file, *flags)


def build_wheel(name: str, site_packages: Path) -> Path:
    """Build a library where its wheel puts it."""
    return build_library(name, site_packages / LIBRARIES[name].file)
