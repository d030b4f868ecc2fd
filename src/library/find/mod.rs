//! Finding a library: its possible files, the places to look for them, and the order in which they are tried.

mod component;
mod loader;
mod origin;
mod places;

pub(super) use component::{Component, NVJITLINK, NVRTC, Variant};
pub(super) use loader::{Loaded, load, package};
pub use origin::Origin;
