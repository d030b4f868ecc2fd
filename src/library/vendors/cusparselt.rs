//! cuSPARSELt: <https://docs.nvidia.com/cuda/cusparselt/>. Its handles are structs of the caller's, have no stream and no
//! workspace: each call takes both, and the handle's address.
//!
//! Written from cusparseLt.h 0.6 to 0.10; tested with test doubles and on a GPU.

use crate::library::description::{Component, Description, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "cusparselt",
    variants: &[
        Variant::of_cuda(
            13,
            &["libcusparseLt.so.0"],
            &["nvidia/cu13/lib", "nvidia/cusparselt/lib"],
            "nvidia-cusparselt-cu13",
        ),
        Variant::of_cuda(
            12,
            &["libcusparseLt.so.0"],
            &["nvidia/cusparselt/lib", "cusparselt/lib"],
            "nvidia-cusparselt-cu12",
        ),
    ],
    needs: &[],
};

/// cuSPARSELt.
pub static CUSPARSELT: Vendor = Vendor::new(Description {
    is_callers_struct: true,
    // Of cusparseLt.h up to 0.10: no function changes a handle; cusparseLtMatDescSetAttribute,
    // cusparseLtMatmulDescSetAttribute and cusparseLtMatmulAlgSetAttribute change objects of the caller's.
    resets: &[],
    // By its documentation a handle has resources on the host alone.
    keeps_scratch: false,
    version: VersionCall::Property(c"cusparseLtGetProperty"),
    // Versions before 0.7 have no function for it.
    status_names: StatusNames::List(
        "CUSPARSE_STATUS_",
        "NOT_INITIALIZED ALLOC_FAILED INVALID_VALUE ARCH_MISMATCH MAPPING_ERROR EXECUTION_FAILED \
         INTERNAL_ERROR MATRIX_TYPE_NOT_SUPPORTED ZERO_PIVOT NOT_SUPPORTED INSUFFICIENT_RESOURCES",
    ),
    out_of_memory: &[2, 11],
    ..Description::of(&COMPONENT, c"cusparseLtInit", c"cusparseLtDestroy")
});
