//! The memory of a device: its address range and pages, the physical memory behind them, segments, events, and memory
//! that waits to be unmapped. Nothing here knows pools or caches, only a pool's [`Supply`] and a cache's number.

mod access;
mod address_range;
mod address_space;
mod budget;
mod device_memory;
mod elsewhere;
mod pages;
mod retired;
mod segments;
mod small;
mod supply;
mod under_way;
mod until;

pub(in crate::memory) use access::{Placed, reaches};
pub(in crate::memory) use address_range::{UNKNOWN, end_left, with_device};
pub(in crate::memory) use address_space::{Run, without_all};
pub(crate) use budget::CallTimes;
pub(in crate::memory) use budget::{Budget, BudgetClaim, Flow, LivePeak, PINNED, PINNED_GONE, PINNED_MADE};
pub(in crate::memory) use device_memory::DeviceMemory;
pub(in crate::memory) use elsewhere::{
    DescribedExtent, KeptMapping, Region, be_thread_for_others, end_where_asked, in_calls_of_others,
    is_in_call_of_others, regions_ended, tells_later, wake, wakeup,
};
pub(in crate::memory) use pages::{BLOCKS_MAX, Invalid, LENT, Mapping, PageEntry, Pages, run_of};
pub(in crate::memory) use retired::{EndingExtents, ExtentEnd, Remains};
pub use segments::{AllocateFunction, FreeFunction, SegmentFunctions, SegmentSource};
pub(in crate::memory) use segments::{DriverSegments, overlapping};
pub(in crate::memory) use small::{CLASSES, SizeClass, Slab};
pub(crate) use supply::Source;
pub(in crate::memory) use supply::{Reserve, Supply};
pub(crate) use under_way::call_out;
pub(in crate::memory) use under_way::{Moment, log_out};
pub(crate) use until::Patience;
pub(in crate::memory) use until::{EventPool, Until, each_once};
