//! hipSPARSE: <https://rocm.docs.amd.com/projects/hipSPARSE/>. Its handles are rocSPARSE's, which have scratch memory for one
//! stream at a time, and a handle of rocBLAS whose stream is set too. No GPU of AMD's was at hand to measure on.

use crate::library::description::{Description, Reset, StatusNames, VersionCall};
use crate::library::find::{Component, Variant};
use crate::library::vendor::Vendor;
use crate::runtime::Kind;

static COMPONENT: Component = Component {
    name: "hipsparse",
    platform: Kind::Hip,
    // ROCm 7, 6 and 5. What is called here is the same in all, as in PyTorch's copy, whose name has no version.
    variants: &[Variant::of_rocm(&["libhipsparse.so.4", "libhipsparse.so.1", "libhipsparse.so.0", "libhipsparse.so"])],
    needs: &[],
};

/// hipSPARSE.
pub static HIPSPARSE: Vendor = Vendor::new(Description {
    set_stream: Some(c"hipsparseSetStream"),
    get_stream: Some(c"hipsparseGetStream"),
    // Of hipsparse-auxiliary.h: pointers on the host, as `hipsparseCreate` sets it.
    //
    // Not here: hipsparseSetStream, as every request sets the stream; hipsparseSetMat*, which change what they name.
    resets: &[Reset::new(c"hipsparseSetPointerMode", 0)],
    version: VersionCall::OfHandle(c"hipsparseGetVersion"),
    // `hipsparseGetErrorName` came with ROCm 6, and returns rocSPARSE's names.
    status_names: StatusNames::Table(&[
        (1, "HIPSPARSE_STATUS_NOT_INITIALIZED"),
        (2, "HIPSPARSE_STATUS_ALLOC_FAILED"),
        (3, "HIPSPARSE_STATUS_INVALID_VALUE"),
        (4, "HIPSPARSE_STATUS_ARCH_MISMATCH"),
        (5, "HIPSPARSE_STATUS_MAPPING_ERROR"),
        (6, "HIPSPARSE_STATUS_EXECUTION_FAILED"),
        (7, "HIPSPARSE_STATUS_INTERNAL_ERROR"),
        (8, "HIPSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED"),
        (9, "HIPSPARSE_STATUS_ZERO_PIVOT"),
        (10, "HIPSPARSE_STATUS_NOT_SUPPORTED"),
        (11, "HIPSPARSE_STATUS_INSUFFICIENT_RESOURCES"),
    ]),
    out_of_memory: &[2, 11],
    // `rocsparse_destroy_handle` frees device memory.
    synchronizes_on_destroy: true,
    ..Description::of(&COMPONENT, c"hipsparseCreate", c"hipsparseDestroy")
});
