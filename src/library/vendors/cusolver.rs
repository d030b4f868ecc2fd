//! cuSOLVERDn: <https://docs.nvidia.com/cuda/cusolver/>. Asking for a handle's stream costs an eighth of setting it.

use super::{cublas, cublaslt, cusparse};
use crate::library::description::{Description, Reset, StatusNames, VersionCall};
use crate::library::find::{Component, NVJITLINK, Variant};
use crate::library::vendor::Vendor;
use crate::runtime::Kind;

static COMPONENT: Component = Component {
    name: "cusolver",
    platform: Kind::Cuda,
    variants: &[
        Variant {
            cuda: Some(13),
            sonames: &["libcusolver.so.12"],
            folders: &["nvidia/cu13/lib"],
            package: "nvidia-cusolver",
        },
        Variant {
            cuda: Some(12),
            sonames: &["libcusolver.so.11"],
            folders: &["nvidia/cusolver/lib"],
            package: "nvidia-cusolver-cu12",
        },
    ],
    needs: &[&cublaslt::COMPONENT, &cublas::COMPONENT, &NVJITLINK, &cusparse::COMPONENT],
};

/// cuSOLVER's dense part.
pub static CUSOLVER: Vendor = Vendor::new(Description {
    component: &COMPONENT,
    create: c"cusolverDnCreate",
    destroy: c"cusolverDnDestroy",
    set_stream: Some(c"cusolverDnSetStream"),
    set_stream_uses_context: false,
    get_stream: Some(c"cusolverDnGetStream"),
    // CUSOLVER_DETERMINISTIC_RESULTS, as a new handle has it.
    resets: &[Reset::new(c"cusolverDnSetDeterministicMode", 1)],
    set_memory: None,
    workspace: None,
    keeps_scratch: false,
    version: VersionCall::Property(c"cusolverGetProperty"),
    status_names: StatusNames::Table(&[
        (1, "CUSOLVER_STATUS_NOT_INITIALIZED"),
        (2, "CUSOLVER_STATUS_ALLOC_FAILED"),
        (3, "CUSOLVER_STATUS_INVALID_VALUE"),
        (4, "CUSOLVER_STATUS_ARCH_MISMATCH"),
        (5, "CUSOLVER_STATUS_MAPPING_ERROR"),
        (6, "CUSOLVER_STATUS_EXECUTION_FAILED"),
        (7, "CUSOLVER_STATUS_INTERNAL_ERROR"),
        (8, "CUSOLVER_STATUS_MATRIX_TYPE_NOT_SUPPORTED"),
        (9, "CUSOLVER_STATUS_NOT_SUPPORTED"),
    ]),
    last_error: None,
    not_initialized: &[1],
    out_of_memory: &[2],
    handle_bytes: 96 << 20,
    synchronizes_on_destroy: true,
});
