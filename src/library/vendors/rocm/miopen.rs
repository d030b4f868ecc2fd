//! MIOpen: <https://rocm.docs.amd.com/projects/MIOpen/>. Setting a handle's stream asks for the device's properties,
//! sets rocBLAS's stream too and keeps something for each new one, so the stream is asked for first. No GPU of AMD's
//! was at hand to measure on: where something is not known, the safe value stands.

use crate::library::description::{Component, Description, Reset, StatusNames, Variant, VersionCall};
use crate::library::vendor::Vendor;

static COMPONENT: Component = Component {
    name: "miopen",
    // PyTorch's wheels carry it without its version, of which there has been one.
    variants: &[Variant::of_rocm(&["libMIOpen.so.1", "libMIOpen.so"])],
    // It names what it needs by the place where its wheel or package puts that.
    needs: &[],
};

/// MIOpen.
pub static MIOPEN: Vendor = Vendor::new(Description {
    set_stream: Some(c"miopenSetStream"),
    set_stream_uses_context: true,
    asks_for_stream: true,
    // Of miopen.h up to 3.5, as `miopenCreate` sets it: MIOpen's own allocator, no profiling, and, from ROCm 7 on,
    // miopenTuningPolicyNone.
    //
    // Not here: miopenSetStream, as every request sets the stream; miopenSetTensor, miopenSetRNNLayerParam and
    // miopenSetRNNLayerBias, which write to tensors.
    resets: &[
        Reset::ThreeNulls(c"miopenSetAllocator"),
        Reset::Value(c"miopenEnableProfiling", 0),
        Reset::Value(c"miopenSetTuningPolicy", 1),
    ],
    keeps_scratch: false,
    version: VersionCall::Three(c"miopenGetVersion"),
    status_names: StatusNames::Function(c"miopenGetErrorString"),
    out_of_memory: &[4],
    ..Description::of(&COMPONENT, c"miopenCreate", c"miopenDestroy")
});
