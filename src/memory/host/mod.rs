//! Pinned memory of the host: page-locked, so that devices copy to and from it at full speed, and accessible to the
//! host and every device at one address.
//!
//! A NUMA node is a [location of memory](crate::ids::MemoryLocation) as a device is, with the same caches, heaps, pages
//! and steps. What differs is here, or named by [`is_of_host`](super::device::DeviceMemory::is_of_host): a request
//! names a node and no stream, and free memory waits for no stream's order, as the host's next writer does not. So a
//! block that streams use is free once their work is done, and a graph's once the graph is gone.
//!
//! It is made in two ways. Ordinary growth makes extents of 2 to 32 MiB (`cuMemCreate` on the node), whose pages can be
//! mapped elsewhere, and which come and go without waiting for the GPU. Needs of 256 MiB and more get segments, whose
//! pages 16 threads touch before the driver registers them: 5 times as fast, but they cannot be moved, and the driver
//! releases one only after running kernels. So they go only when asked, on a thread of gpupool's own.

mod pinned_buffer;
mod place;
mod stats;
mod warm;

#[cfg(feature = "python")]
pub(crate) use pinned_buffer::empty_pinned_by;
pub(in crate::memory) use pinned_buffer::pinned_for_gpupool;
pub use pinned_buffer::{PinnedBuffer, empty_pinned, empty_pinned_on_node};
pub(crate) use place::node_of;
#[cfg(feature = "python")]
pub(crate) use stats::pinned_stats_by_node;
pub use stats::{empty_pinned_cache, pinned_limit, pinned_stats, reset_peak_pinned_stats, set_pinned_limit};
pub(crate) use stats::{pinned_device_stats, pinned_times};
pub use warm::warm_pinned;
