//! hipSPARSE: <https://rocm.docs.amd.com/projects/hipSPARSE/>. Its handles are rocSPARSE's, which have scratch memory for one
//! stream at a time, and a handle of rocBLAS whose stream is set too. No GPU of AMD's was at hand to measure on.

use crate::library::description::{Component, Description, Reset, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "hipsparse",
    // ROCm 7, 6 and 5. What is called here is the same in all, as in PyTorch's copy, whose name has no version.
    variants: &[Variant::of_rocm(&["libhipsparse.so.4", "libhipsparse.so.1", "libhipsparse.so.0", "libhipsparse.so"])],
    needs: &[],
};

/// hipSPARSE.
pub static HIPSPARSE: Vendor = Vendor::new(Description {
    set_stream: Some(c"hipsparseSetStream"),
    asks_for_stream: true,
    // Of hipsparse-auxiliary.h: pointers on the host, as `hipsparseCreate` sets it.
    //
    // Not here: hipsparseSetStream, as every request sets the stream; hipsparseSetMat*, which change what they name.
    resets: &[Reset::Value(c"hipsparseSetPointerMode", 0)],
    version: VersionCall::OfHandle(c"hipsparseGetVersion"),
    // `hipsparseGetErrorName` came with ROCm 6, and returns rocSPARSE's names.
    status_names: StatusNames::List(
        "HIPSPARSE_STATUS_",
        "NOT_INITIALIZED ALLOC_FAILED INVALID_VALUE ARCH_MISMATCH MAPPING_ERROR EXECUTION_FAILED \
         INTERNAL_ERROR MATRIX_TYPE_NOT_SUPPORTED ZERO_PIVOT NOT_SUPPORTED INSUFFICIENT_RESOURCES",
    ),
    out_of_memory: &[2, 11],
    // `rocsparse_destroy_handle` frees device memory.
    synchronizes_on_destroy: true,
    ..Description::of(&COMPONENT, c"hipsparseCreate", c"hipsparseDestroy")
});
