//! Shared libraries as files: what they are called and which package brings them, for each major version of CUDA.
//! ROCm's have one build each, for they keep their names from one major version to the next.

use crate::runtime::Kind;

/// A shared library that is loaded for its own sake or because another one needs it.
#[derive(Debug)]
pub(in crate::library) struct Component {
    /// The name in errors and, in capitals, in `GPUPOOL_<NAME>_PATH`.
    pub(in crate::library) name: &'static str,
    pub(in crate::library) platform: Kind,
    /// One for each major version of CUDA, newest first.
    pub(in crate::library) variants: &'static [Variant],
    /// What must be loaded before it, in this order.
    pub(in crate::library) needs: &'static [&'static Component],
}

/// The build of a component for one major version of CUDA.
#[derive(Debug)]
pub(in crate::library) struct Variant {
    /// The major version of CUDA; none if it is for any version of its platform.
    pub(in crate::library) cuda: Option<u32>,
    /// The file names to accept, newest first. Their version is part of the name, so another ABI is never loaded.
    pub(in crate::library) sonames: &'static [&'static str],
    /// Where its wheels put it, below site-packages. The first part of the name may end in `*`.
    pub(in crate::library) folders: &'static [&'static str],
    /// The pip package that brings it.
    pub(in crate::library) package: &'static str,
}

impl Variant {
    pub(in crate::library) const fn of_cuda(
        cuda: u32,
        sonames: &'static [&'static str],
        folders: &'static [&'static str],
        package: &'static str,
    ) -> Self {
        Self { cuda: Some(cuda), sonames, folders, package }
    }

    /// Returns the one build of a library of ROCm's, which AMD's wheels bring, and PyTorch's own.
    pub(in crate::library) const fn of_rocm(sonames: &'static [&'static str]) -> Self {
        Self {
            cuda: None,
            sonames,
            folders: &["_rocm_sdk_libraries*/lib", "torch/lib"],
            package: "'rocm[libraries]' (from the index that AMD's installation guide names)",
        }
    }
}

/// The linker that cuSPARSE and cuSOLVER use at run time.
pub(in crate::library) static NVJITLINK: Component = Component {
    name: "nvjitlink",
    platform: Kind::Cuda,
    variants: &[
        Variant::of_cuda(13, &["libnvJitLink.so.13"], &["nvidia/cu13/lib"], "nvidia-nvjitlink"),
        Variant::of_cuda(12, &["libnvJitLink.so.12"], &["nvidia/nvjitlink/lib"], "nvidia-nvjitlink-cu12"),
    ],
    needs: &[],
};

/// The compiler that cuDSS uses at run time.
pub(in crate::library) static NVRTC: Component = Component {
    name: "nvrtc",
    platform: Kind::Cuda,
    variants: &[
        Variant::of_cuda(13, &["libnvrtc.so.13"], &["nvidia/cu13/lib"], "nvidia-cuda-nvrtc"),
        Variant::of_cuda(12, &["libnvrtc.so.12"], &["nvidia/cuda_nvrtc/lib"], "nvidia-cuda-nvrtc-cu12"),
    ],
    needs: &[],
};
