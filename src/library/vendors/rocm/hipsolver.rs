//! hipSOLVER's dense part: <https://rocm.docs.amd.com/projects/hipSOLVER/>. Its handles are rocBLAS's, with all that the
//! head of `hipblas.rs` says of them. No GPU of AMD's was at hand to measure on.

use crate::library::description::{Component, Description, Reset, StatusNames, Variant};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "hipsolver",
    // ROCm 7, and 5 and 6. What is called here is the same in both, as in PyTorch's copy, whose name has no version.
    variants: &[Variant::of_rocm(&["libhipsolver.so.1", "libhipsolver.so.0", "libhipsolver.so"])],
    needs: &[],
};

/// hipSOLVER's dense part.
pub static HIPSOLVER: Vendor = Vendor::new(Description {
    set_stream: Some(c"hipsolverSetStream"),
    asks_for_stream: true,
    // Of hipsolver-functions.h.
    //
    // Not here: hipsolverSetStream, as every request sets the stream; the functions for syevj and gesvdj, whose options are in
    // objects of the caller's; and what the newest versions have for NVIDIA's GPUs, while rocSOLVER refuses all but the
    // defaults: hipsolverSetMathMode, hipsolverSetEmulationStrategy, hipsolverSetEmulationSpecialValuesSupport,
    // hipsolverSetFixedPointEmulationMantissaControl, hipsolverSetFixedPointEmulationMaxMantissaBitCount and
    // hipsolverSetFixedPointEmulationMantissaBitOffset.
    resets: &[
        // Since ROCm 6.3. It is rocBLAS's atomics mode, whose default depends on the version.
        Reset::AsNew(c"hipsolverSetDeterministicMode"),
    ],
    status_names: StatusNames::List(
        "HIPSOLVER_STATUS_",
        "NOT_INITIALIZED ALLOC_FAILED INVALID_VALUE MAPPING_ERROR EXECUTION_FAILED INTERNAL_ERROR \
         NOT_SUPPORTED ARCH_MISMATCH HANDLE_IS_NULLPTR INVALID_ENUM UNKNOWN ZERO_PIVOT \
         MATRIX_TYPE_NOT_SUPPORTED",
    ),
    // `rocblas_destroy_handle` frees device memory.
    synchronizes_on_destroy: true,
    ..Description::of(&COMPONENT, c"hipsolverCreate", c"hipsolverDestroy")
});
