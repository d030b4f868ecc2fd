//! hipBLASLt: <https://rocm.docs.amd.com/projects/hipBLASLt/>. Its handles have no stream: each call takes one. But they have
//! device memory by which the parts of a product wait for each other, and hipblaslt.h asks for one handle for each stream.
//! No GPU of AMD's was at hand to measure on.

use crate::library::description::{Component, Description, Reset, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "hipblaslt",
    // ROCm 7, and 5 and 6. What is called here is the same in both, as in PyTorch's copy, whose name has no version.
    variants: &[Variant::of_rocm(&["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"])],
    needs: &[],
};

/// hipBLASLt.
pub static HIPBLASLT: Vendor = Vendor::new(Description {
    // Of hipblaslt.h, as `hipblasLtCreate` sets it; ROCm 6 has neither. Products take the rest by descriptors.
    resets: &[Reset::Value(c"hipblasLtSetSmCountTarget", 0), Reset::Value(c"hipblasLtSetUniformSummationOrder", 0)],
    version: VersionCall::OfHandle(c"hipblasLtGetVersion"),
    // `hipblasStatus_t`, whose names hipBLAS alone returns.
    status_names: StatusNames::List(
        "HIPBLAS_STATUS_",
        "NOT_INITIALIZED ALLOC_FAILED INVALID_VALUE MAPPING_ERROR EXECUTION_FAILED INTERNAL_ERROR \
         NOT_SUPPORTED ARCH_MISMATCH HANDLE_IS_NULLPTR INVALID_ENUM UNKNOWN",
    ),
    // hipblaslt.h says so.
    synchronizes_on_destroy: true,
    ..Description::of(&COMPONENT, c"hipblasLtCreate", c"hipblasLtDestroy")
});
