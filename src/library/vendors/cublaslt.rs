//! cuBLASLt: <https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api>. Its handles have no stream: each call takes
//! one.

use crate::library::description::{Component, Description, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

pub(super) static COMPONENT: Component = Component {
    name: "cublaslt",
    variants: &[
        Variant::of_cuda(13, &["libcublasLt.so.13"], &["nvidia/cu13/lib"], "nvidia-cublas"),
        Variant::of_cuda(12, &["libcublasLt.so.12"], &["nvidia/cublas/lib"], "nvidia-cublas-cu12"),
    ],
    needs: &[],
};

/// cuBLASLt.
pub static CUBLASLT: Vendor = Vendor::new(Description {
    // Of cublasLt.h up to 13.10: no function changes a handle, whose products take all by descriptors, emulation too.
    // cublasLtHeuristicsCacheSetCapacity, cublasLtDisableCpuInstructionsSetMask, cublasLtLoggerSetCallback,
    // cublasLtLoggerSetFile, cublasLtLoggerOpenFile, cublasLtLoggerSetLevel, cublasLtLoggerSetMask and
    // cublasLtLoggerForceDisable are the process's.
    resets: &[],
    keeps_scratch: false,
    version: VersionCall::Property(c"cublasLtGetProperty"),
    status_names: StatusNames::Function(c"cublasLtGetStatusName"),
    out_of_memory: &[3],
    ..Description::of(&COMPONENT, c"cublasLtCreate", c"cublasLtDestroy")
});
