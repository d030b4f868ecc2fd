//! cuTENSOR 2: <https://docs.nvidia.com/cuda/cutensor/latest/>. Its handles have no stream, and no workspace: each call takes
//! both. A handle keeps a cache of plans, which its next owner finds filled.
//!
//! Written from cutensor.h 2.8; tested with test doubles and on a GPU.

use super::cublaslt;
use crate::library::description::{Component, Description, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

pub(super) static COMPONENT: Component = Component {
    name: "cutensor",
    variants: &[
        Variant::of_cuda(13, &["libcutensor.so.2"], &["cutensor/lib"], "cutensor-cu13"),
        Variant::of_cuda(12, &["libcutensor.so.2"], &["cutensor/lib"], "cutensor-cu12"),
    ],
    needs: &[&cublaslt::COMPONENT],
};

/// cuTENSOR.
pub static CUTENSOR: Vendor = Vendor::new(Description {
    // Of cutensor.h up to 2.8: no function sets what a call computes.
    //
    // Not here: cutensorHandleResizePlanCache and cutensorHandleReadPlanCacheFromFile, which change what the cache of plans
    // holds, and to set that back would empty it; cutensorOperationDescriptorSetAttribute and
    // cutensorPlanPreferenceSetAttribute, which change objects of the caller's; cutensorReadKernelCacheFromFile,
    // cutensorLoggerSetCallback, cutensorLoggerSetFile, cutensorLoggerOpenFile, cutensorLoggerSetLevel,
    // cutensorLoggerSetMask and cutensorLoggerForceDisable, which are the process's.
    resets: &[],
    // Its documentation lets threads use one handle at once, each on a stream of its own.
    keeps_scratch: false,
    version: VersionCall::Number(c"cutensorGetVersion"),
    status_names: StatusNames::Function(c"cutensorGetErrorString"),
    out_of_memory: &[3],
    ..Description::of(&COMPONENT, c"cutensorCreate", c"cutensorDestroy")
});
