//! cuSOLVERDn: <https://docs.nvidia.com/cuda/cusolver/>. Asking for a handle's stream costs an eighth of setting it.

use super::{cublas, cublaslt, cusparse};
use crate::library::description::{Component, Description, NVJITLINK, Reset, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

pub(super) static COMPONENT: Component = Component {
    name: "cusolver",
    variants: &[
        Variant::of_cuda(13, &["libcusolver.so.12"], &["nvidia/cu13/lib"], "nvidia-cusolver"),
        Variant::of_cuda(12, &["libcusolver.so.11"], &["nvidia/cusolver/lib"], "nvidia-cusolver-cu12"),
    ],
    needs: &[&cublaslt::COMPONENT, &cublas::COMPONENT, &NVJITLINK, &cusparse::COMPONENT],
};

/// cuSOLVER's dense part.
pub static CUSOLVER: Vendor = Vendor::new(Description {
    set_stream: Some(c"cusolverDnSetStream"),
    asks_for_stream: true,
    // Of cusolverDn.h up to 12.4, as a new handle has it. A call that asks takes 2 ns, one that sets 6 to 7, for it sets the
    // handle's own handle of cuBLAS too.
    //
    // Not here: cusolverDnSetStream, as every request sets the stream; cusolverDnSetAdvOptions and the functions for IRS,
    // syevj and gesvdj, whose options are in objects of the caller's; cusolverDnLoggerSetCallback, cusolverDnLoggerSetFile,
    // cusolverDnLoggerOpenFile, cusolverDnLoggerSetLevel, cusolverDnLoggerSetMask and cusolverDnLoggerForceDisable, which
    // are the process's.
    resets: &[
        // CUSOLVER_DETERMINISTIC_RESULTS.
        Reset::IfOther(c"cusolverDnSetDeterministicMode", 1),
        // CUSOLVER_DEFAULT_MATH, and the defaults of CUDA's emulation: from CUDA 13.0 on, of fixed point from 13.2 on.
        Reset::IfOther(c"cusolverDnSetMathMode", 1),
        Reset::IfOther(c"cusolverDnSetEmulationStrategy", 0),
        Reset::IfOther(c"cusolverDnSetEmulationSpecialValuesSupport", 0xFFFF),
        Reset::IfOther(c"cusolverDnSetFixedPointEmulationMantissaControl", 0),
        Reset::IfOther(c"cusolverDnSetFixedPointEmulationMaxMantissaBitCount", 0),
        Reset::IfOther(c"cusolverDnSetFixedPointEmulationMantissaBitOffset", 0),
    ],
    keeps_scratch: false,
    version: VersionCall::Property(c"cusolverGetProperty"),
    status_names: StatusNames::List(
        "CUSOLVER_STATUS_",
        "NOT_INITIALIZED ALLOC_FAILED INVALID_VALUE ARCH_MISMATCH MAPPING_ERROR EXECUTION_FAILED \
         INTERNAL_ERROR MATRIX_TYPE_NOT_SUPPORTED NOT_SUPPORTED",
    ),
    handle_bytes: 96 << 20,
    ..Description::of(&COMPONENT, c"cusolverDnCreate", c"cusolverDnDestroy")
});
