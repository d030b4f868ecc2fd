//! cuStateVec: <https://docs.nvidia.com/cuda/cuquantum/latest/custatevec/>. Its calls compute in a workspace that belongs to
//! the handle, and take more memory by the handler, where there is one, in the order of the handle's stream.
//!
//! Written from custatevec.h 1.15; tested with test doubles and on a GPU.

use super::{cublas, cublaslt};
use crate::library::description::{Component, Description, Reset, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "custatevec",
    variants: &[
        Variant::of_cuda(13, &["libcustatevec.so.1"], &["cuquantum/lib"], "custatevec-cu13"),
        Variant::of_cuda(12, &["libcustatevec.so.1"], &["cuquantum/lib"], "custatevec-cu12"),
    ],
    needs: &[&cublaslt::COMPONENT, &cublas::COMPONENT],
};

/// cuStateVec.
pub static CUSTATEVEC: Vendor = Vendor::new(Description {
    set_stream: Some(c"custatevecSetStream"),
    // What setting a stream does beside is not documented, so it is set only where it differs.
    asks_for_stream: true,
    // Of custatevec.h up to 1.15: CUSTATEVEC_MATH_MODE_DEFAULT; 1.3 has no math mode.
    //
    // Not here: custatevecSetWorkspace, which has no way back to the library's own workspace, so that handles that got
    // another are to be discarded; custatevecSetStream, as every request sets the stream; custatevecAccessorSet,
    // custatevecAccessorSetExtraWorkspace, custatevecDistIndexBitSwapSchedulerSetIndexBitSwaps,
    // custatevecSVSwapWorkerSetExtraWorkspace, custatevecSVSwapWorkerSetTransferWorkspace,
    // custatevecSVSwapWorkerSetSubSVsP2P, custatevecSVSwapWorkerSetSubSVsP2PWithSemaphores and
    // custatevecSVSwapWorkerSetParameters, which change objects of the caller's; custatevecLoggerSetCallback,
    // custatevecLoggerSetCallbackData, custatevecLoggerSetFile, custatevecLoggerOpenFile, custatevecLoggerSetLevel,
    // custatevecLoggerSetMask and custatevecLoggerForceDisable, which are the process's.
    resets: &[Reset::IfOther(c"custatevecSetMathMode", 0)],
    set_memory: Some(c"custatevecSetDeviceMemHandler"),
    version: VersionCall::Property(c"custatevecGetProperty"),
    status_names: StatusNames::Function(c"custatevecGetErrorName"),
    out_of_memory: &[2, 11],
    ..Description::of(&COMPONENT, c"custatevecCreate", c"custatevecDestroy")
});
