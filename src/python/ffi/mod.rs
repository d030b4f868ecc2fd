//! Where Python's values become pointers, and pointers Python's values. The only folder of `python` with `unsafe`.

#![allow(unsafe_code)]

mod address;
mod cuda_core;
mod cupy;
pub(super) mod dlpack;
pub(super) mod frames;
pub(super) mod host_bytes;
#[cfg(Py_GIL_DISABLED)]
mod immortal;
mod integers;
mod interpreter;
mod pinned_buffer;
mod source;
mod torch;
mod unwinding;
pub(super) mod vectorcall;

pub(super) use address::{PythonAddress, consumer};
pub(super) use cuda_core::StreamHandles;
pub(super) use cupy::{CurrentStream, Memories};
#[cfg(Py_GIL_DISABLED)]
pub(super) use immortal::make_immortal;
pub(super) use integers::lent_integers;
pub(super) use interpreter::{if_attached, raise_soon, wait_detached};
pub(super) use pinned_buffer::{PyPinnedBuffer, empty_pinned};
pub(super) use source::{Keeping, PythonSource, Trusted};
pub(super) use torch::torch_allocator;
