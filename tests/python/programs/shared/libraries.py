"""The libraries that have an ABI double, for the tests that build them and the programs that use them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Setting:
    """What can be set of a handle: by a function, as a VALUE, a POINTER or an ALLOCATOR, from what to what else."""

    set: str
    kind: str = "VALUE"
    get: str = ""
    new: int = 0
    other: int = 1

    @property
    def macro(self) -> str:
        """What tests/abi/library.c makes its functions from. One that the library does not have is the double's own."""
        get = self.get or f"double_get_{self.set}"
        arguments = {"VALUE": (self.set, get, str(self.new)), "POINTER": (self.set, get), "ALLOCATOR": (self.set,)}
        return f"{self.kind}({', '.join(arguments[self.kind])})"


def settings_of(prefix: str, suffix: str, *settings: tuple[str, int, int]) -> tuple[Setting, ...]:
    """Return settings by what follows Set and Get in the names of their functions, what is new and what else may be."""
    return tuple(
        Setting(f"{prefix}Set{name}{suffix}", "VALUE", f"{prefix}Get{name}{suffix}", new, other)
        for name, new, other in settings
    )


# From CUDA 12.9 to 13.2 on, of cuBLAS and cuSOLVER alike.
EMULATION = (
    ("EmulationStrategy", 0, 2),
    ("EmulationSpecialValuesSupport", 0xFFFF, 0),
    ("FixedPointEmulationMantissaControl", 0, 1),
    ("FixedPointEmulationMaxMantissaBitCount", 0, 55),
    ("FixedPointEmulationMantissaBitOffset", 0, -8),
)


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
    settings: tuple[Setting, ...] = ()
    leaves_unfinished: bool = False
    # The bytes of a handle, where that is a struct of the caller's.
    callers_struct: int = 0
    # What it answers for the handler of memory of a handle that has none.
    no_handler: int = 3
    # The file in tests/abi that its double is made from.
    source: str = "library.c"
    # Whether a thread has a handle for each stream.
    by_stream: bool = False

    @property
    def tells_version_alone(self) -> bool:
        """True if it tells its version without a handle."""
        return bool({"PROPERTY", "VERSION_NUMBER", "VERSION_PARTS"} & self.symbols.keys())

    @property
    def tells_version(self) -> bool:
        """True if it tells its version, by a handle or without one."""
        return self.tells_version_alone or "VERSION_OF_HANDLE" in self.symbols


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
        settings=settings_of("cusparse", "", ("PointerMode", 0, 1)),
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
            "SET_PINNED": "cudssSetPinnedMemHandler",
            "GET_PINNED": "cudssGetPinnedMemHandler",
        },
        {
            1: "CUDSS_STATUS_NOT_INITIALIZED",
            2: "CUDSS_STATUS_ALLOC_FAILED",
            3: "CUDSS_STATUS_INVALID_VALUE",
            4: "CUDSS_STATUS_NOT_SUPPORTED",
            5: "CUDSS_STATUS_EXECUTION_FAILED",
            6: "CUDSS_STATUS_INTERNAL_ERROR",
        },
        settings=(Setting("cudssSetJitCacheDir", "POINTER"),),
        leaves_unfinished=True,
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
        settings=(
            *settings_of("cublas", "_v2", ("PointerMode", 0, 1)),
            *settings_of("cublas", "", ("AtomicsMode", 0, 1), ("MathMode", 0, 3), ("SmCountTarget", 0, 16), *EMULATION),
            Setting(
                "cublasSetFixedPointEmulationMantissaBitCountPointer",
                "POINTER",
                "cublasGetFixedPointEmulationMantissaBitCountPointer",
            ),
        ),
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
        settings=settings_of("cusolverDn", "", ("DeterministicMode", 1, 2), ("MathMode", 1, 4), *EMULATION),
    ),
    "custatevec": Library(
        "cuquantum/lib/libcustatevec.so.1",
        "custatevecCreate",
        "custatevecDestroy",
        {
            "SET_STREAM": "custatevecSetStream",
            "GET_STREAM": "custatevecGetStream",
            "PROPERTY": "custatevecGetProperty",
            "STATUS_NAME": "custatevecGetErrorName",
            "SET_MEMORY": "custatevecSetDeviceMemHandler",
            "GET_MEMORY": "custatevecGetDeviceMemHandler",
        },
        {
            1: "CUSTATEVEC_STATUS_NOT_INITIALIZED",
            2: "CUSTATEVEC_STATUS_ALLOC_FAILED",
            3: "CUSTATEVEC_STATUS_INVALID_VALUE",
            4: "CUSTATEVEC_STATUS_ARCH_MISMATCH",
            5: "CUSTATEVEC_STATUS_EXECUTION_FAILED",
            6: "CUSTATEVEC_STATUS_INTERNAL_ERROR",
            7: "CUSTATEVEC_STATUS_NOT_SUPPORTED",
            18: "CUSTATEVEC_STATUS_CUDA_ERROR",
        },
        settings=settings_of("custatevec", "", ("MathMode", 0, 1)),
        no_handler=10,
        by_stream=True,
    ),
    "cutensornet": Library(
        "cuquantum/lib/libcutensornet.so.2",
        "cutensornetCreate",
        "cutensornetDestroy",
        {
            "VERSION_NUMBER": "cutensornetGetVersion",
            "STATUS_NAME": "cutensornetGetErrorString",
            "SET_MEMORY": "cutensornetSetDeviceMemHandler",
            "GET_MEMORY": "cutensornetGetDeviceMemHandler",
        },
        {
            1: "CUTENSORNET_STATUS_NOT_INITIALIZED",
            3: "CUTENSORNET_STATUS_ALLOC_FAILED",
            7: "CUTENSORNET_STATUS_INVALID_VALUE",
            18: "CUTENSORNET_STATUS_CUDA_ERROR",
            22: "CUTENSORNET_STATUS_CUTENSOR_VERSION_MISMATCH",
        },
        out_of_memory=3,
        no_handler=23,
        by_stream=True,
    ),
    "cutensor": Library(
        "cutensor/lib/libcutensor.so.2",
        "cutensorCreate",
        "cutensorDestroy",
        {"VERSION_NUMBER": "cutensorGetVersion", "STATUS_NAME": "cutensorGetErrorString"},
        {
            1: "CUTENSOR_STATUS_NOT_INITIALIZED",
            3: "CUTENSOR_STATUS_ALLOC_FAILED",
            7: "CUTENSOR_STATUS_INVALID_VALUE",
            18: "CUTENSOR_STATUS_CUDA_ERROR",
            20: "CUTENSOR_STATUS_INSUFFICIENT_DRIVER",
        },
        out_of_memory=3,
    ),
    "cusparselt": Library(
        "nvidia/cu13/lib/libcusparseLt.so.0",
        "cusparseLtInit",
        "cusparseLtDestroy",
        {"PROPERTY": "cusparseLtGetProperty"},
        {
            1: "CUSPARSE_STATUS_NOT_INITIALIZED",
            2: "CUSPARSE_STATUS_ALLOC_FAILED",
            3: "CUSPARSE_STATUS_INVALID_VALUE",
            4: "CUSPARSE_STATUS_ARCH_MISMATCH",
            7: "CUSPARSE_STATUS_INTERNAL_ERROR",
            10: "CUSPARSE_STATUS_NOT_SUPPORTED",
        },
        # Of version 0.6, the largest.
        callers_struct=13072,
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
        settings=(
            Setting("miopenSetAllocator", "ALLOCATOR"),
            Setting("miopenEnableProfiling"),
            Setting("miopenSetTuningPolicy", "VALUE", "miopenGetTuningPolicy", 1, 3),
        ),
    ),
}

HIPBLAS_STATUSES = {
    1: "HIPBLAS_STATUS_NOT_INITIALIZED",
    2: "HIPBLAS_STATUS_ALLOC_FAILED",
    3: "HIPBLAS_STATUS_INVALID_VALUE",
    4: "HIPBLAS_STATUS_MAPPING_ERROR",
    5: "HIPBLAS_STATUS_EXECUTION_FAILED",
    6: "HIPBLAS_STATUS_INTERNAL_ERROR",
    7: "HIPBLAS_STATUS_NOT_SUPPORTED",
    8: "HIPBLAS_STATUS_ARCH_MISMATCH",
    9: "HIPBLAS_STATUS_HANDLE_IS_NULLPTR",
    10: "HIPBLAS_STATUS_INVALID_ENUM",
    11: "HIPBLAS_STATUS_UNKNOWN",
}
LIBRARIES |= {
    "hipblas": Library(
        "_rocm_sdk_libraries_gfx94X_dcgpu/lib/libhipblas.so.3",
        "hipblasCreate",
        "hipblasDestroy",
        {
            "SET_STREAM": "hipblasSetStream",
            "GET_STREAM": "hipblasGetStream",
            "SET_OWN_WORKSPACE": "hipblasSetWorkspace",
            "STATUS_NAME": "hipblasStatusToString",
        },
        HIPBLAS_STATUSES,
        driver="libamdhip64.so.7",
        # Atomics are allowed, as in ROCm 6.
        settings=settings_of("hipblas", "", ("PointerMode", 0, 1), ("MathMode", 0, 1), ("AtomicsMode", 1, 0)),
        source="rocm_library.c",
        by_stream=True,
    ),
    "hipblaslt": Library(
        "_rocm_sdk_libraries_gfx94X_dcgpu/lib/libhipblaslt.so.1",
        "hipblasLtCreate",
        "hipblasLtDestroy",
        {"VERSION_OF_HANDLE": "hipblasLtGetVersion"},
        HIPBLAS_STATUSES,
        driver="libamdhip64.so.7",
        settings=settings_of("hipblasLt", "", ("SmCountTarget", 0, 16), ("UniformSummationOrder", 0, 1)),
        source="rocm_library.c",
        by_stream=True,
    ),
    "hipsolver": Library(
        "_rocm_sdk_libraries_gfx94X_dcgpu/lib/libhipsolver.so.1",
        "hipsolverCreate",
        "hipsolverDestroy",
        {"SET_STREAM": "hipsolverSetStream", "GET_STREAM": "hipsolverGetStream"},
        {
            **{code: status.replace("HIPBLAS", "HIPSOLVER") for code, status in HIPBLAS_STATUSES.items()},
            12: "HIPSOLVER_STATUS_ZERO_PIVOT",
            13: "HIPSOLVER_STATUS_MATRIX_TYPE_NOT_SUPPORTED",
        },
        driver="libamdhip64.so.7",
        settings=settings_of("hipsolver", "", ("DeterministicMode", 241, 242)),
        source="rocm_library.c",
        by_stream=True,
    ),
    "hipsparse": Library(
        "_rocm_sdk_libraries_gfx94X_dcgpu/lib/libhipsparse.so.4",
        "hipsparseCreate",
        "hipsparseDestroy",
        {
            "SET_STREAM": "hipsparseSetStream",
            "GET_STREAM": "hipsparseGetStream",
            "VERSION_OF_HANDLE": "hipsparseGetVersion",
        },
        {
            1: "HIPSPARSE_STATUS_NOT_INITIALIZED",
            2: "HIPSPARSE_STATUS_ALLOC_FAILED",
            3: "HIPSPARSE_STATUS_INVALID_VALUE",
            4: "HIPSPARSE_STATUS_ARCH_MISMATCH",
            5: "HIPSPARSE_STATUS_MAPPING_ERROR",
            6: "HIPSPARSE_STATUS_EXECUTION_FAILED",
            7: "HIPSPARSE_STATUS_INTERNAL_ERROR",
            8: "HIPSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED",
            9: "HIPSPARSE_STATUS_ZERO_PIVOT",
            10: "HIPSPARSE_STATUS_NOT_SUPPORTED",
            11: "HIPSPARSE_STATUS_INSUFFICIENT_RESOURCES",
        },
        driver="libamdhip64.so.7",
        settings=settings_of("hipsparse", "", ("PointerMode", 0, 1)),
        source="rocm_library.c",
        by_stream=True,
    ),
}

# What a library may lack: then gpupool does without.
OPTIONAL = {"SET_WORKSPACE", "SET_OWN_WORKSPACE", "SET_MEMORY", "GET_MEMORY", "SET_PINNED", "GET_PINNED"}
CUDA_LIBRARIES = [name for name, library in LIBRARIES.items() if library.driver == "libcuda.so.1"]
BY_STREAM = [name for name, library in LIBRARIES.items() if library.by_stream]
