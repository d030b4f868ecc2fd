//! cuBLAS: <https://docs.nvidia.com/cuda/cublas/>. Setting a handle's stream also resets its workspace and costs four
//! times what asking for it does, so the stream is asked for first.
//!
//! Its own workspace is one for all of a handle's streams, and in a captured graph memory allocated and freed at every
//! launch; so handles get workspaces of ours.

use super::cublaslt;
use crate::ids::Device;
use crate::library::description::{Component, Description, Reset, StatusNames, Variant, VersionCall, WorkspaceCall};
use crate::library::vendor::Vendor;
use crate::library::workspace::Workspaces;
use crate::runtime;

pub(super) static COMPONENT: Component = Component {
    name: "cublas",
    variants: &[
        Variant::of_cuda(13, &["libcublas.so.13"], &["nvidia/cu13/lib"], "nvidia-cublas"),
        Variant::of_cuda(12, &["libcublas.so.12"], &["nvidia/cublas/lib"], "nvidia-cublas-cu12"),
    ],
    needs: &[&cublaslt::COMPONENT],
};

static WORKSPACES: Workspaces = Workspaces::new();

/// The variable by which users size cuBLAS's workspaces: `:KiB:count`, once or more.
const CONFIG_VARIABLE: &str = "CUBLAS_WORKSPACE_CONFIG";

/// What the variable asks for, else what NVIDIA recommends (`cublasSetWorkspace` in the vendor's reference): 32 MiB for Hopper
/// and later, 4 MiB before. A variable that cannot be read is left to cuBLAS.
fn workspace_bytes(device: Device) -> u64 {
    if let Some(config) = std::env::var_os(CONFIG_VARIABLE) {
        return config.to_str().and_then(configured_bytes).unwrap_or(0);
    }
    let capability = runtime::get().and_then(|runtime| runtime.compute_capability(device));
    match capability {
        Ok(Some((major, _))) if major >= 9 => 32 << 20,
        _ => 4 << 20,
    }
}

fn configured_bytes(config: &str) -> Option<u64> {
    let mut numbers = config.strip_prefix(':')?.split(':').map(|number| number.parse::<u64>().ok());
    let mut bytes = 0_u64;
    while let Some(kib) = numbers.next() {
        let count = numbers.next()??;
        bytes = bytes.checked_add(kib?.checked_mul(1024)?.checked_mul(count)?)?;
    }
    Some(bytes)
}

/// cuBLAS.
pub static CUBLAS: Vendor = Vendor::new(Description {
    set_stream: Some(c"cublasSetStream_v2"),
    asks_for_stream: true,
    // Of cublas_api.h up to 13.10. What `cublasCreate` sets: pointers on the host, no atomics, the default math, all
    // multiprocessors, and of emulation the defaults, which leave it to the user's environment variables.
    //
    // Not here: cublasSetStream_v2, as every request sets the stream; cublasSetWorkspace_v2, whose workspace every hand-over
    // takes back; cublasSetLoggerCallback and cublasLoggerConfigure, which are the process's.
    resets: &[
        Reset::Value(c"cublasSetPointerMode_v2", 0),
        Reset::Value(c"cublasSetAtomicsMode", 0),
        Reset::Value(c"cublasSetMathMode", 0),
        Reset::Value(c"cublasSetSmCountTarget", 0),
        // CUBLAS_EMULATION_STRATEGY_DEFAULT, CUDA_EMULATION_SPECIAL_VALUES_SUPPORT_DEFAULT and
        // CUDA_EMULATION_MANTISSA_CONTROL_DYNAMIC: from CUDA 12.9 on, and all but the first from 13.0 on. To ask costs what
        // setting does, 4 ns, and is refused nowhere, also not for a GPU without emulation.
        Reset::IfOther(c"cublasSetEmulationStrategy", 0),
        Reset::IfOther(c"cublasSetEmulationSpecialValuesSupport", 0xFFFF),
        Reset::IfOther(c"cublasSetFixedPointEmulationMantissaControl", 0),
        Reset::IfOther(c"cublasSetFixedPointEmulationMaxMantissaBitCount", 0),
        Reset::IfOther(c"cublasSetFixedPointEmulationMantissaBitOffset", 0),
        // An address that products write to.
        Reset::Null(c"cublasSetFixedPointEmulationMantissaBitCountPointer"),
    ],
    workspace: Some(WorkspaceCall { set: c"cublasSetWorkspace_v2", bytes: workspace_bytes, all: &WORKSPACES }),
    keeps_scratch: false,
    version: VersionCall::Property(c"cublasGetProperty"),
    status_names: StatusNames::Function(c"cublasGetStatusName"),
    out_of_memory: &[3],
    handle_bytes: 64 << 20,
    ..Description::of(&COMPONENT, c"cublasCreate_v2", c"cublasDestroy_v2")
});

#[cfg(test)]
mod tests {
    use super::configured_bytes;

    #[test]
    fn the_variable_is_a_sum_of_sizes() {
        assert_eq!(configured_bytes(":4096:2:16:8"), Some((2 * 4096 + 8 * 16) << 10));
        assert_eq!(configured_bytes(":4096:8"), Some(32 << 20));
        assert_eq!(configured_bytes(":0:0"), Some(0));
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_library() {
        for config in ["", "4096:8", ":", ":4096", ":4096:8:", ":x:8", ":4096:-1", ":18446744073709551615:2"] {
            assert_eq!(configured_bytes(config), None, "{config:?}");
        }
    }
}
