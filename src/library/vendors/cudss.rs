//! cuDSS: <https://docs.nvidia.com/cuda/cudss/>. It has no call that returns a handle's stream, nor the name of a status.

use super::{cublas, cublaslt};
use crate::library::description::{Component, Description, NVRTC, Reset, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "cudss",
    variants: &[
        Variant::of_cuda(13, &["libcudss.so.1", "libcudss.so.0"], &["nvidia/cu13/lib"], "nvidia-cudss-cu13"),
        Variant::of_cuda(12, &["libcudss.so.1", "libcudss.so.0"], &["nvidia/cu12/lib"], "nvidia-cudss-cu12"),
    ],
    needs: &[&cublaslt::COMPONENT, &cublas::COMPONENT, &NVRTC],
};

/// cuDSS.
pub static CUDSS: Vendor = Vendor::new(Description {
    set_stream: Some(c"cudssSetStream"),
    // Of cudss.h up to 1.0; 0.7 has none of them.
    //
    // Not here: cudssSetThreadingLayer and cudssSetCommLayer, which have no way back, so that handles that got a layer are
    // to be discarded; cudssSetStream, as every request sets the stream, and cudssSetMgStreams, which for a handle of one
    // device sets the same; cudssDataSet, which changes what it names; cudssLoggerSetCallback, cudssLoggerSetFile,
    // cudssLoggerOpenFile, cudssLoggerSetLevel, cudssLoggerSetMask and cudssLoggerForceDisable, which are the process's.
    resets: &[Reset::Handler(c"cudssSetPinnedMemHandler"), Reset::Null(c"cudssSetJitCacheDir")],
    set_memory: Some(c"cudssSetDeviceMemHandler"),
    keeps_scratch: false,
    version: VersionCall::Property(c"cudssGetProperty"),
    status_names: StatusNames::List(
        "CUDSS_STATUS_",
        "NOT_INITIALIZED ALLOC_FAILED INVALID_VALUE NOT_SUPPORTED EXECUTION_FAILED INTERNAL_ERROR IR_FAILED",
    ),
    leaves_unfinished_since: Some((1, 0, 0)),
    handle_bytes: 64 << 20,
    ..Description::of(&COMPONENT, c"cudssCreate", c"cudssDestroy")
});
