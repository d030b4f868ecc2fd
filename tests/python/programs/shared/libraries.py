"""The libraries that have an ABI double, for the tests that build them and the programs that use them."""

from dataclasses import dataclass, field


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
