//! The simulated devices behave as CUDA's do where gpupool depends on it.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod memory;
mod runtime;
