//! Where Python's values become pointers, and pointers Python's values. The only folder of `python` with `unsafe`.

#![allow(unsafe_code)]

pub(super) mod address;
pub(super) mod cuda_core;
pub(super) mod cupy;
pub(super) mod dlpack;
pub(super) mod host_bytes;
pub(super) mod interpreter;
pub(super) mod pinned_buffer;
pub(super) mod stacks;
