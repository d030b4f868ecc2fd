//! hipBLAS: <https://rocm.docs.amd.com/projects/hipBLAS/>. Its handles are rocBLAS's, which have 32 or 128 MiB of scratch
//! memory for one stream at a time: rocBLAS's guide asks users to wait before they set another. Setting a stream asks
//! HIP about it, so the handle is asked first.
//!
//! That memory grows with what a call needs. A workspace that was given (`hipblasSetWorkspace`, since ROCm 7) does not, and
//! calls that need more fail (<https://github.com/pytorch/pytorch/issues/193890>), so handles get none of ours: each works
//! on one stream, and rocBLAS's variable ROCBLAS_DEVICE_MEMORY_SIZE sizes what it has. No GPU of AMD's was at hand to measure
//! on: where something is not known, the safe value stands.

use crate::library::description::{Component, Description, Reset, StatusNames, Variant};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "hipblas",
    // ROCm 7, 6 and 5. What is called here is the same in all, as in PyTorch's copy, whose name has no version.
    variants: &[Variant::of_rocm(&["libhipblas.so.3", "libhipblas.so.2", "libhipblas.so.1", "libhipblas.so"])],
    needs: &[],
};

/// hipBLAS.
pub static HIPBLAS: Vendor = Vendor::new(Description {
    set_stream: Some(c"hipblasSetStream"),
    asks_for_stream: true,
    // Of hipblas.h of ROCm 5.6 to 7, as `hipblasCreate` sets it: pointers on the host, the default math, rocBLAS's own memory.
    //
    // Not here: hipblasSetStream, as every request sets the stream; hipblasSetVector, hipblasSetMatrix and their Async, which
    // copy. rocBLAS's own setters take the same handle: one that they changed is to be discarded.
    resets: &[
        Reset::Value(c"hipblasSetPointerMode", 0),
        // Since ROCm 6.1.
        Reset::Value(c"hipblasSetMathMode", 0),
        // Allowed up to ROCm 6, not since ROCm 7, unless ROCBLAS_DEFAULT_ATOMICS_MODE says otherwise.
        Reset::AsNew(c"hipblasSetAtomicsMode"),
        // Since ROCm 7. hipBLAS has no function that reads the setting; rocBLAS, which it brings with it, has.
        Reset::OwnWorkspace(
            c"hipblasSetWorkspace",
            &[c"rocblas_is_managing_device_memory", c"rocblas_is_user_managing_device_memory"],
        ),
    ],
    status_names: StatusNames::Function(c"hipblasStatusToString"),
    // `rocblas_destroy_handle` frees device memory.
    synchronizes_on_destroy: true,
    ..Description::of(&COMPONENT, c"hipblasCreate", c"hipblasDestroy")
});
