//! The same promises on a real GPU; without one every test says so and passes.

#[path = "../common/mod.rs"]
mod common;
mod driver;

mod dead_stream;
mod handles;
mod memory;
mod pinned;
mod slices;
