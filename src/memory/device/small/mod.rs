//! Small blocks: their sizes, and the slabs that they are slots of.

mod size_class;
mod slab;

pub(in crate::memory) use size_class::{CLASSES, SizeClass};
pub(in crate::memory) use slab::{Slab, Slabs};
