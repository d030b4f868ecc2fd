//! What distinguishes one vendor's library from another: its files, the names of its functions, and how handles behave.

use std::ffi::{CStr, c_int};

use super::Version;
use super::workspace::Workspaces;
use crate::ids::Device;
use crate::runtime::Kind;

#[derive(Debug)]
pub(super) struct Description {
    pub(super) component: &'static Component,
    pub(super) create: &'static CStr,
    pub(super) destroy: &'static CStr,
    /// Whether a handle is a struct of the caller's, which `create` and `destroy` fill and empty.
    pub(super) is_callers_struct: bool,
    /// None where handles have no stream.
    pub(super) set_stream: Option<&'static CStr>,
    /// Whether setting the stream looks at the thread's current context, and makes one current where there is none.
    pub(super) set_stream_uses_context: bool,
    /// Whether asking for the stream is cheaper than setting it, or setting has side effects.
    pub(super) asks_for_stream: bool,
    /// The functions that reset what an owner may have changed by a public function. Each library's file names those
    /// that change a handle and are not here, with the reason; tests/python/test_setters.py compares with the vendors'
    /// headers.
    pub(super) resets: &'static [Reset],
    /// Given where handles can take device memory from gpupool: `status f(handle, const DeviceMemHandler *)`. Null is
    /// the library's own, which has to be set between two others, as for [`Reset::Handler`].
    pub(super) set_memory: Option<&'static CStr>,
    /// Given where handles take a workspace of ours.
    pub(super) workspace: Option<WorkspaceCall>,
    /// As [`Library::keeps_scratch`](super::Library::keeps_scratch): for none of the toolkit's libraries, nor cuDNN and
    /// cuDSS, as tests/gpu/test_shared_handle.py shows on hardware.
    pub(super) keeps_scratch: bool,
    pub(super) version: VersionCall,
    pub(super) status_names: StatusNames,
    /// `void f(char*, size_t)`: more about the calling thread's last error.
    pub(super) last_error: Option<&'static CStr>,
    pub(super) not_initialized: &'static [c_int],
    pub(super) out_of_memory: &'static [c_int],
    /// The version from which on a refused creation may leave a handle that has to be destroyed, where there is one.
    pub(super) leaves_unfinished_since: Option<Version>,
    /// Device memory that a handle takes, measured on an H200 with CUDA 13.0; 0 where it was not.
    pub(super) handle_bytes: u64,
    /// As [`Library::synchronizes_on_destroy`](super::Library::synchronizes_on_destroy), measured there too.
    pub(super) synchronizes_on_destroy: bool,
}

impl Description {
    /// Returns the description of a library without optional functions, with the safe values of what is to be measured
    /// and the numbers that most libraries have for their statuses.
    pub(super) const fn of(component: &'static Component, create: &'static CStr, destroy: &'static CStr) -> Self {
        Self {
            component,
            create,
            destroy,
            is_callers_struct: false,
            set_stream: None,
            set_stream_uses_context: false,
            asks_for_stream: false,
            resets: &[],
            set_memory: None,
            workspace: None,
            keeps_scratch: true,
            version: VersionCall::None,
            status_names: StatusNames::List("", ""),
            last_error: None,
            not_initialized: &[1],
            out_of_memory: &[2],
            leaves_unfinished_since: None,
            handle_bytes: 0,
            synchronizes_on_destroy: true,
        }
    }
}

/// A function that sets one setting of a handle back to a new handle's value. Versions of a library that lack the
/// function lack the setting. Functions that get a setting are named as those that set it, with `Get` for `Set`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reset {
    /// `status f(handle, int)`, with this value.
    Value(&'static CStr, c_int),
    /// The same, if `status get(handle, int *)` returns another value: for libraries where asking costs less than
    /// setting.
    IfOther(&'static CStr, c_int),
    /// The same, with what `get` returns for a new handle, where versions or the environment differ.
    AsNew(&'static CStr),
    /// `status f(handle, pointer)`, with null.
    Null(&'static CStr),
    /// `status f(handle, const handler *)`, with null, if `status get(handle, handler *)` returns a handler. It is
    /// refused while memory that the handler allocated is in use.
    Handler(&'static CStr),
    /// `status f(handle, function, function, void *)`, with nulls.
    ThreeNulls(&'static CStr),
    /// `status f(handle, void *, size_t)`, with no workspace of the owner's. If `bool g(handle)` of one of these is
    /// true, the handle has the library's own, which must not be set again: that would free it, and wait for the
    /// device.
    OwnWorkspace(&'static CStr, &'static [&'static CStr]),
}

#[derive(Debug)]
pub(super) struct WorkspaceCall {
    /// `status f(handle, void *, size_t)`. Setting the handle's stream restores the library's own workspace.
    pub(super) set: &'static CStr,
    /// How many bytes a handle on the device should get; 0 for none.
    pub(super) bytes: fn(Device) -> u64,
    /// Where they are kept.
    pub(super) all: &'static Workspaces,
}

/// How a library reports its version.
#[derive(Debug)]
pub(super) enum VersionCall {
    /// `status f(libraryPropertyType, int*)`, asked for major, minor and patch.
    Property(&'static CStr),
    /// `size_t f()`, as 10000 * major + 100 * minor + patch.
    Number(&'static CStr),
    /// `status f(size_t* major, size_t* minor, size_t* patch)`.
    Three(&'static CStr),
    /// `status f(handle, int*)`, as 100000 * major + 100 * minor + patch: known once a handle was made.
    OfHandle(&'static CStr),
    /// It does not.
    None,
}

impl VersionCall {
    /// Returns the function's name.
    pub(super) const fn name(&self) -> Option<&'static CStr> {
        match *self {
            Self::Property(name) | Self::Number(name) | Self::Three(name) | Self::OfHandle(name) => Some(name),
            Self::None => None,
        }
    }
}

/// How a library names its statuses.
#[derive(Debug)]
pub(super) enum StatusNames {
    /// `const char* f(status)`.
    Function(&'static CStr),
    /// It does not: what all begin with, and the names after that by their numbers, from 1 on.
    List(&'static str, &'static str),
}

/// A shared library that is loaded for its own sake or because another one needs it.
#[derive(Debug)]
pub(super) struct Component {
    /// The name in errors and, in capitals, in `GPUPOOL_<NAME>_PATH`.
    pub(super) name: &'static str,
    /// One for each major version of CUDA, newest first.
    pub(super) variants: &'static [Variant],
    /// What must be loaded before it, in this order.
    pub(super) needs: &'static [&'static Component],
}

impl Component {
    #[inline]
    pub(super) const fn platform(&self) -> Kind {
        match self.variants {
            [Variant { cuda: Some(_), .. }, ..] => Kind::Cuda,
            _ => Kind::Hip,
        }
    }
}

/// The build of a component for one major version of CUDA.
#[derive(Debug)]
pub(super) struct Variant {
    /// The major version of CUDA; none if it is for any version of its platform.
    pub(super) cuda: Option<u32>,
    /// The file names to accept, newest first. Their version is part of the name, so another ABI is never loaded.
    pub(super) sonames: &'static [&'static str],
    /// Where its wheels put it, below site-packages. The first part of the name may end in `*`.
    pub(super) folders: &'static [&'static str],
    /// The pip package that brings it.
    pub(super) package: &'static str,
}

impl Variant {
    pub(super) const fn of_cuda(
        cuda: u32,
        sonames: &'static [&'static str],
        folders: &'static [&'static str],
        package: &'static str,
    ) -> Self {
        Self { cuda: Some(cuda), sonames, folders, package }
    }

    /// Returns the one build of a library of ROCm's, which AMD's wheels bring, and PyTorch's own.
    pub(super) const fn of_rocm(sonames: &'static [&'static str]) -> Self {
        Self {
            cuda: None,
            sonames,
            folders: &["_rocm_sdk_libraries*/lib", "torch/lib"],
            package: "'rocm[libraries]' (from the index that AMD's installation guide names)",
        }
    }
}

/// The linker that cuSPARSE and cuSOLVER use at run time.
pub(super) static NVJITLINK: Component = Component {
    name: "nvjitlink",
    variants: &[
        Variant::of_cuda(13, &["libnvJitLink.so.13"], &["nvidia/cu13/lib"], "nvidia-nvjitlink"),
        Variant::of_cuda(12, &["libnvJitLink.so.12"], &["nvidia/nvjitlink/lib"], "nvidia-nvjitlink-cu12"),
    ],
    needs: &[],
};

/// The compiler that cuDSS uses at run time.
pub(super) static NVRTC: Component = Component {
    name: "nvrtc",
    variants: &[
        Variant::of_cuda(13, &["libnvrtc.so.13"], &["nvidia/cu13/lib"], "nvidia-cuda-nvrtc"),
        Variant::of_cuda(12, &["libnvrtc.so.12"], &["nvidia/cuda_nvrtc/lib"], "nvidia-cuda-nvrtc-cu12"),
    ],
    needs: &[],
};
