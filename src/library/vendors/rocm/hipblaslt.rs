//! hipBLASLt: <https://rocm.docs.amd.com/projects/hipBLASLt/>. Its handles have no stream: each call takes one. But they have
//! device memory by which the parts of a product wait for each other, and hipblaslt.h asks for one handle for each stream.
//! No GPU of AMD's was at hand to measure on.

use crate::library::description::{Description, Reset, StatusNames, VersionCall};
use crate::library::find::{Component, Variant};
use crate::library::vendor::Vendor;
use crate::runtime::Kind;

static COMPONENT: Component = Component {
    name: "hipblaslt",
    platform: Kind::Hip,
    // ROCm 7, and 5 and 6. What is called here is the same in both, as in PyTorch's copy, whose name has no version.
    variants: &[Variant::of_rocm(&["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"])],
    needs: &[],
};

/// hipBLASLt.
pub static HIPBLASLT: Vendor = Vendor::new(Description {
    // Of hipblaslt.h, as `hipblasLtCreate` sets it; ROCm 6 has neither. Products take the rest by descriptors.
    resets: &[Reset::new(c"hipblasLtSetSmCountTarget", 0), Reset::new(c"hipblasLtSetUniformSummationOrder", 0)],
    version: VersionCall::OfHandle(c"hipblasLtGetVersion"),
    // `hipblasStatus_t`, whose names hipBLAS alone returns.
    status_names: StatusNames::Table(&[
        (1, "HIPBLAS_STATUS_NOT_INITIALIZED"),
        (2, "HIPBLAS_STATUS_ALLOC_FAILED"),
        (3, "HIPBLAS_STATUS_INVALID_VALUE"),
        (4, "HIPBLAS_STATUS_MAPPING_ERROR"),
        (5, "HIPBLAS_STATUS_EXECUTION_FAILED"),
        (6, "HIPBLAS_STATUS_INTERNAL_ERROR"),
        (7, "HIPBLAS_STATUS_NOT_SUPPORTED"),
        (8, "HIPBLAS_STATUS_ARCH_MISMATCH"),
        (9, "HIPBLAS_STATUS_HANDLE_IS_NULLPTR"),
        (10, "HIPBLAS_STATUS_INVALID_ENUM"),
        (11, "HIPBLAS_STATUS_UNKNOWN"),
    ]),
    // hipblaslt.h says so.
    synchronizes_on_destroy: true,
    ..Description::of(&COMPONENT, c"hipblasLtCreate", c"hipblasLtDestroy")
});
