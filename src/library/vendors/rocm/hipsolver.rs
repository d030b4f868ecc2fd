//! hipSOLVER's dense part: <https://rocm.docs.amd.com/projects/hipSOLVER/>. Its handles are rocBLAS's, with all that the
//! head of `hipblas.rs` says of them. No GPU of AMD's was at hand to measure on.

use crate::library::description::{Description, Reset, StatusNames};
use crate::library::find::{Component, Variant};
use crate::library::vendor::Vendor;
use crate::runtime::Kind;

static COMPONENT: Component = Component {
    name: "hipsolver",
    platform: Kind::Hip,
    // ROCm 7, and 5 and 6. What is called here is the same in both, as in PyTorch's copy, whose name has no version.
    variants: &[Variant::of_rocm(&["libhipsolver.so.1", "libhipsolver.so.0", "libhipsolver.so"])],
    needs: &[],
};

/// hipSOLVER's dense part.
pub static HIPSOLVER: Vendor = Vendor::new(Description {
    set_stream: Some(c"hipsolverSetStream"),
    get_stream: Some(c"hipsolverGetStream"),
    // Of hipsolver-functions.h.
    //
    // Not here: hipsolverSetStream, as every request sets the stream; the functions for syevj and gesvdj, whose options are in
    // objects of the caller's; and what the newest versions have for NVIDIA's GPUs, while rocSOLVER refuses all but the
    // defaults: hipsolverSetMathMode, hipsolverSetEmulationStrategy, hipsolverSetEmulationSpecialValuesSupport,
    // hipsolverSetFixedPointEmulationMantissaControl, hipsolverSetFixedPointEmulationMaxMantissaBitCount and
    // hipsolverSetFixedPointEmulationMantissaBitOffset.
    resets: &[
        // Since ROCm 6.3. It is rocBLAS's atomics mode, whose default depends on the version.
        Reset::as_new(c"hipsolverSetDeterministicMode", c"hipsolverGetDeterministicMode"),
    ],
    status_names: StatusNames::Table(&[
        (1, "HIPSOLVER_STATUS_NOT_INITIALIZED"),
        (2, "HIPSOLVER_STATUS_ALLOC_FAILED"),
        (3, "HIPSOLVER_STATUS_INVALID_VALUE"),
        (4, "HIPSOLVER_STATUS_MAPPING_ERROR"),
        (5, "HIPSOLVER_STATUS_EXECUTION_FAILED"),
        (6, "HIPSOLVER_STATUS_INTERNAL_ERROR"),
        (7, "HIPSOLVER_STATUS_NOT_SUPPORTED"),
        (8, "HIPSOLVER_STATUS_ARCH_MISMATCH"),
        (9, "HIPSOLVER_STATUS_HANDLE_IS_NULLPTR"),
        (10, "HIPSOLVER_STATUS_INVALID_ENUM"),
        (11, "HIPSOLVER_STATUS_UNKNOWN"),
        (12, "HIPSOLVER_STATUS_ZERO_PIVOT"),
        (13, "HIPSOLVER_STATUS_MATRIX_TYPE_NOT_SUPPORTED"),
    ]),
    // `rocblas_destroy_handle` frees device memory.
    synchronizes_on_destroy: true,
    ..Description::of(&COMPONENT, c"hipsolverCreate", c"hipsolverDestroy")
});
