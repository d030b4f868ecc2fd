//! Where Python's values become pointers, and pointers Python's values. The only folder of `python` with `unsafe`.

#![allow(unsafe_code)]

mod address;
pub(super) mod dlpack;
pub(super) mod frames;
mod torch;
mod unwinding;

pub(super) use address::PythonAddress;
pub(super) use torch::{torch_allocator, torch_functions};
