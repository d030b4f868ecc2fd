//! Finding a library: the files it may be, the places where they may lie, and the order in which they are tried.

mod component;
mod loader;
mod origin;
mod places;

pub(super) use component::{Component, NVJITLINK, NVRTC, Variant};
pub(super) use loader::{Loaded, load, package};
pub use origin::Origin;
