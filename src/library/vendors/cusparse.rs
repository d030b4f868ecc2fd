//! cuSPARSE: <https://docs.nvidia.com/cuda/cusparse/>. Setting a handle's stream costs no more than asking for it.

use crate::library::description::{Component, Description, NVJITLINK, Reset, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

pub(super) static COMPONENT: Component = Component {
    name: "cusparse",
    variants: &[
        Variant::of_cuda(13, &["libcusparse.so.12"], &["nvidia/cu13/lib"], "nvidia-cusparse"),
        Variant::of_cuda(12, &["libcusparse.so.12"], &["nvidia/cusparse/lib"], "nvidia-cusparse-cu12"),
    ],
    needs: &[&NVJITLINK],
};

/// cuSPARSE.
pub static CUSPARSE: Vendor = Vendor::new(Description {
    set_stream: Some(c"cusparseSetStream"),
    // Of cusparse.h up to 12.9: pointers on the host, as `cusparseCreate` sets it. A call that sets costs what one that asks
    // does, 10 ns.
    //
    // Not here: cusparseSetStream, as every request sets the stream; cusparseLoggerSetCallback, cusparseLoggerSetFile,
    // cusparseLoggerOpenFile, cusparseLoggerSetLevel, cusparseLoggerSetMask and cusparseLoggerForceDisable, which are the
    // process's.
    resets: &[Reset::Value(c"cusparseSetPointerMode", 0)],
    keeps_scratch: false,
    version: VersionCall::Property(c"cusparseGetProperty"),
    status_names: StatusNames::Function(c"cusparseGetErrorName"),
    out_of_memory: &[2, 11],
    synchronizes_on_destroy: false,
    ..Description::of(&COMPONENT, c"cusparseCreate", c"cusparseDestroy")
});
