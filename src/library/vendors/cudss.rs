//! cuDSS: <https://docs.nvidia.com/cuda/cudss/>. It has no call that tells a handle's stream, nor the name of a status.

use super::{cublas, cublaslt};
use crate::library::description::{Description, StatusNames, VersionCall};
use crate::library::find::{Component, NVRTC, Variant};
use crate::library::vendor::Vendor;
use crate::runtime::Kind;

static COMPONENT: Component = Component {
    name: "cudss",
    platform: Kind::Cuda,
    variants: &[
        Variant {
            cuda: Some(13),
            sonames: &["libcudss.so.1", "libcudss.so.0"],
            folders: &["nvidia/cu13/lib"],
            package: "nvidia-cudss-cu13",
        },
        Variant {
            cuda: Some(12),
            sonames: &["libcudss.so.1", "libcudss.so.0"],
            folders: &["nvidia/cu12/lib"],
            package: "nvidia-cudss-cu12",
        },
    ],
    needs: &[&cublaslt::COMPONENT, &cublas::COMPONENT, &NVRTC],
};

/// cuDSS.
pub static CUDSS: Vendor = Vendor::new(Description {
    component: &COMPONENT,
    create: c"cudssCreate",
    destroy: c"cudssDestroy",
    set_stream: Some(c"cudssSetStream"),
    set_stream_uses_context: false,
    get_stream: None,
    // Threading and communication layers have no way back: discard handles that got one.
    resets: &[],
    set_memory: Some(c"cudssSetDeviceMemHandler"),
    workspace: None,
    keeps_scratch: false,
    version: VersionCall::Property(c"cudssGetProperty"),
    status_names: StatusNames::Table(&[
        (1, "CUDSS_STATUS_NOT_INITIALIZED"),
        (2, "CUDSS_STATUS_ALLOC_FAILED"),
        (3, "CUDSS_STATUS_INVALID_VALUE"),
        (4, "CUDSS_STATUS_NOT_SUPPORTED"),
        (5, "CUDSS_STATUS_EXECUTION_FAILED"),
        (6, "CUDSS_STATUS_INTERNAL_ERROR"),
        (7, "CUDSS_STATUS_IR_FAILED"),
    ]),
    last_error: None,
    not_initialized: &[1],
    out_of_memory: &[2],
    handle_bytes: 64 << 20,
    synchronizes_on_destroy: true,
});
