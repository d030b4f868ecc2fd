//! cuDNN: <https://docs.nvidia.com/deeplearning/cudnn/>. Setting an unchanged stream costs more than asking for it,
//! makes device 0's context current in a thread that has none, and refuses another device's default stream.

use super::{cublas, cublaslt};
use crate::library::description::{Component, Description, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "cudnn",
    variants: &[
        Variant::of_cuda(13, &["libcudnn.so.9"], &["nvidia/cudnn/lib", "nvidia/cudnn_jit/lib"], "nvidia-cudnn-cu13"),
        Variant::of_cuda(12, &["libcudnn.so.9"], &["nvidia/cudnn/lib", "nvidia/cudnn_jit/lib"], "nvidia-cudnn-cu12"),
    ],
    needs: &[&cublaslt::COMPONENT, &cublas::COMPONENT],
};

/// cuDNN, version 9.
pub static CUDNN: Vendor = Vendor::new(Description {
    set_stream: Some(c"cudnnSetStream"),
    set_stream_uses_context: true,
    asks_for_stream: true,
    // Of cudnn.h up to 9.27: cudnnSetStream alone changes a handle, and every request sets the stream; cudnnSetTensor and
    // cudnnSetDropoutDescriptor change what they name. cudnnSetCallback is the process's.
    resets: &[],
    keeps_scratch: false,
    version: VersionCall::Number(c"cudnnGetVersion"),
    status_names: StatusNames::Function(c"cudnnGetErrorString"),
    last_error: Some(c"cudnnGetLastErrorString"),
    not_initialized: &[1001],
    // Host and device allocation failed; cuDNN 9 counts both as internal errors.
    out_of_memory: &[4003, 4004],
    handle_bytes: 9 << 20,
    synchronizes_on_destroy: false,
    ..Description::of(&COMPONENT, c"cudnnCreate", c"cudnnDestroy")
});
