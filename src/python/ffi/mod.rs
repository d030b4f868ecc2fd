//! Conversions between Python's values and pointers, in the only folder of `python` with `unsafe`.

#![allow(unsafe_code)]

pub(super) mod address;
pub(super) mod buffers;
pub(super) mod frameworks;
pub(super) mod interpreter;
pub(super) mod stacks;
