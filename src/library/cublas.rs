//! cuBLAS: <https://docs.nvidia.com/cuda/cublas/>. Setting a handle's stream also resets its workspace and costs four
//! times what asking for it does, so the stream is asked for first.

use super::component::{Component, Variant};
use super::cublaslt;
use super::vendor::{Description, Reset, StatusNames, Vendor, VersionCall};
use crate::runtime::Kind;

pub(super) static COMPONENT: Component = Component {
    name: "cublas",
    platform: Kind::Cuda,
    variants: &[
        Variant {
            cuda: Some(13),
            sonames: &["libcublas.so.13"],
            folders: &["nvidia/cu13/lib"],
            package: "nvidia-cublas",
        },
        Variant {
            cuda: Some(12),
            sonames: &["libcublas.so.12"],
            folders: &["nvidia/cublas/lib"],
            package: "nvidia-cublas-cu12",
        },
    ],
    needs: &[&cublaslt::COMPONENT],
};

/// cuBLAS.
pub static CUBLAS: Vendor = Vendor::new(Description {
    component: &COMPONENT,
    create: c"cublasCreate_v2",
    destroy: c"cublasDestroy_v2",
    set_stream: Some(c"cublasSetStream_v2"),
    set_stream_uses_context: false,
    get_stream: Some(c"cublasGetStream_v2"),
    // Pointers on the host, no atomics, the default math, all multiprocessors: what `cublasCreate` sets.
    resets: &[
        Reset::Int(c"cublasSetPointerMode_v2", 0),
        Reset::Int(c"cublasSetAtomicsMode", 0),
        Reset::Int(c"cublasSetMathMode", 0),
        Reset::Int(c"cublasSetSmCountTarget", 0),
    ],
    keeps_scratch: false,
    version: VersionCall::Property(c"cublasGetProperty"),
    status_names: StatusNames::Function(c"cublasGetStatusName"),
    last_error: None,
    not_initialized: &[1],
    out_of_memory: &[3],
    handle_bytes: 64 << 20,
    synchronizes_on_destroy: true,
});
