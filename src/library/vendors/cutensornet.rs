//! cuTensorNet: <https://docs.nvidia.com/cuda/cuquantum/latest/cutensornet/>. Its handles have no stream: each call takes
//! one, in whose order it takes memory by the handler, where the call's workspace has none.
//!
//! Written from cutensornet.h 2.14; tested with test doubles and on a GPU. Without a device the library makes
//! handles that compute nothing, so that making one is no proof of a GPU.

use super::{cublas, cublaslt, cusolver, cusparse, cutensor};
use crate::library::description::{Component, Description, NVJITLINK, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "cutensornet",
    variants: &[
        Variant::of_cuda(13, &["libcutensornet.so.2"], &["cuquantum/lib"], "cutensornet-cu13"),
        Variant::of_cuda(12, &["libcutensornet.so.2"], &["cuquantum/lib"], "cutensornet-cu12"),
    ],
    needs: &[
        &cublaslt::COMPONENT,
        &cublas::COMPONENT,
        &NVJITLINK,
        &cusparse::COMPONENT,
        &cusolver::COMPONENT,
        &cutensor::COMPONENT,
    ],
};

/// cuTensorNet.
pub static CUTENSORNET: Vendor = Vendor::new(Description {
    // Of cutensornet.h up to 2.14: but for the handler of memory no function changes a handle for good.
    //
    // Not here: cutensornetDistributedResetConfiguration, which all processes of a communicator have to call together, so
    // that handles that got a communicator are to be discarded; cutensornetNetworkSetAttribute,
    // cutensornetNetworkSetOutputTensor, cutensornetNetworkSetOptimizerInfo, cutensornetNetworkSetInputTensorMemory,
    // cutensornetNetworkSetOutputTensorMemory, cutensornetNetworkSetGradientTensorMemory,
    // cutensornetNetworkSetAdjointTensorMemory, cutensornetNetworkAutotunePreferenceSetAttribute, cutensornetWorkspaceSet,
    // cutensornetWorkspaceSetMemory, cutensornetContractionOptimizerConfigSetAttribute,
    // cutensornetContractionOptimizerInfoSetAttribute, cutensornetContractionAutotunePreferenceSetAttribute,
    // cutensornetTensorSVDConfigSetAttribute, cutensornetStateConfigure, cutensornetStateProjectionMPSConfigure,
    // cutensornetAccessorConfigure, cutensornetExpectationConfigure, cutensornetMarginalConfigure and
    // cutensornetSamplerConfigure, which change objects of the caller's; cutensornetLoggerSetCallback,
    // cutensornetLoggerSetCallbackData, cutensornetLoggerSetFile, cutensornetLoggerOpenFile, cutensornetLoggerSetLevel,
    // cutensornetLoggerSetMask and cutensornetLoggerForceDisable, which are the process's.
    resets: &[],
    set_memory: Some(c"cutensornetSetDeviceMemHandler"),
    version: VersionCall::Number(c"cutensornetGetVersion"),
    status_names: StatusNames::Function(c"cutensornetGetErrorString"),
    out_of_memory: &[3, 26],
    ..Description::of(&COMPONENT, c"cutensornetCreate", c"cutensornetDestroy")
});
