//! The same promises on a real GPU, which every test here needs: `cargo test --test cuda -- --ignored`.

#[path = "../common/mod.rs"]
mod common;
mod driver;

mod dead_stream;
mod handles;
mod memory;
mod peers;
mod pinned;
mod ranges;
mod slices;
