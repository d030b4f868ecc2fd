//! How other allocators and libraries take memory from gpupool: functions of their form, feeds, handles, PyTorch.

pub(crate) mod allocators;
pub(crate) mod call;
mod feed;
#[cfg(feature = "python")]
mod fence;
mod library_memory;
#[cfg(feature = "python")]
mod torch_allocator;
mod watch;

#[cfg(feature = "python")]
pub(crate) use self::{
    fence::{fence, follow_blocking},
    torch_allocator::TorchAllocator,
};
pub use allocators::{DEVICE_MEM_HANDLER, PINNED_MEM_HANDLER};
pub(crate) use allocators::{free_behind, free_in_order};
pub use feed::{BareAllocate, BareFree, EmptyCache, bare_feed, feed};
pub(crate) use feed::{allocate_to_feed, default_pool, free_to_feed};
pub(crate) use library_memory::LibraryMemory;
#[cfg(feature = "python")]
pub(crate) use watch::is_watched;
pub(in crate::memory) use watch::join;
pub(crate) use watch::process_bytes;
