//! What a device has: its address range and the pages in it, the physical memory behind them, segments, events, and what waits
//! to be unmapped.

pub(in crate::memory) mod address_space;
pub(in crate::memory) mod budget;
pub(in crate::memory) mod device_memory;
pub(in crate::memory) mod extents;
pub(in crate::memory) mod pages;
pub(in crate::memory) mod retired;
pub(in crate::memory) mod segment_source;
pub(in crate::memory) mod size_class;
pub(in crate::memory) mod slab;
