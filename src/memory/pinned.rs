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

use std::ptr::{self, NonNull};
use std::{slice, thread};

use log::info;

use crate::counters::Sum;
use crate::error::{Bytes, Error, Result};
use crate::ids::NumaNode;
use crate::memory::cache::{BlockUser, DeviceCaches};
use crate::memory::device::{CallTimes, PINNED, PINNED_GONE, PINNED_MADE};
use crate::memory::report::{self, DeviceStats, MemoryStats, PoolStats};
use crate::memory::route;
use crate::memory::serve::{self, Allocation, Patience, sum_of_all, trim_pools};
use crate::observe::nvtx;
use crate::observe::target::MEMORY;
use crate::process;
use crate::runtime::{self, Stream};
use crate::sync::ThisThread;

/// Pinned memory of the host, aligned to 512 bytes, that the host and every device read and write at the same address.
///
/// Name each stream that uses the memory, with [`PinnedBuffer::record_stream`] or when the buffer is allocated or
/// freed: once freed, the memory is reused only when the work that those streams had by then is done. So it can be
/// dropped as soon as a copy was submitted. If it was recorded on a stream that is being captured, it belongs to the
/// graph as long as the graph exists.
///
/// ```
/// let stream = gpupool::Stream::new(gpupool::device(0)?)?;
/// let mut buffer = gpupool::empty_pinned(1 << 20, Some(&stream))?;
/// // SAFETY: no device uses the buffer yet.
/// unsafe { buffer.as_mut_slice() }.fill(7);
/// // Copy from `buffer.as_ptr()` to a device on `stream`, with `cuMemcpyHtoDAsync` or the like.
/// drop(buffer); // used again once that copy is done; nothing waits here
/// # Ok::<(), gpupool::Error>(())
/// ```
#[derive(Debug)]
pub struct PinnedBuffer {
    /// None for 0 bytes, and once freed.
    block: Option<Allocation>,
    bytes: u64,
    node: NumaNode,
}

/// Allocates uninitialised pinned memory, on the NUMA node nearest to the stream's device, without a stream to the
/// calling thread's current device. The stream is recorded, as by [`PinnedBuffer::record_stream`]. A buffer of 0 bytes
/// uses no memory and has the address 0.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough memory, or this process can lock no more; `ErrorKind::InvalidValue`
/// if the stream's device does not exist; `ErrorKind::Library` if the driver refuses.
#[inline]
pub fn empty_pinned(nbytes: u64, stream: Option<&Stream>) -> Result<PinnedBuffer> {
    empty_pinned_by(nbytes, node_of(None, stream)?, stream, route::allocate)
}

/// As [`empty_pinned`], on the NUMA node with this number.
///
/// # Errors
/// As [`empty_pinned`], and `ErrorKind::InvalidValue` if the host has no such node.
#[inline]
pub fn empty_pinned_on_node(nbytes: u64, node: u32, stream: Option<&Stream>) -> Result<PinnedBuffer> {
    empty_pinned_by(nbytes, node_of(Some(node.into()), stream)?, stream, route::allocate)
}

/// As [`empty_pinned_on_node`], for gpupool's own work: no caller can free it by its address.
pub(in crate::memory) fn pinned_for_gpupool(nbytes: u64, node: u32) -> Result<PinnedBuffer> {
    let buffer = empty_pinned_on_node(nbytes, node, None)?;
    if let Some(Allocation { cache, offset }) = buffer.block {
        cache.add_use(offset, BlockUser::Gpupool);
    }
    Ok(buffer)
}

/// Returns a buffer with a block from `allocate`, on a node; recorded on the stream, if one is given.
#[inline]
pub(crate) fn empty_pinned_by(
    nbytes: u64,
    node: NumaNode,
    stream: Option<&Stream>,
    allocate: impl FnOnce(u64, &NumaNode) -> Result<Allocation>,
) -> Result<PinnedBuffer> {
    let block = if nbytes > 0 { Some(allocate(nbytes, &node)?) } else { None };
    let buffer = PinnedBuffer { block, bytes: nbytes, node };
    stream.map_or(Ok(()), |stream| buffer.record_stream(stream))?;
    Ok(buffer)
}

impl PinnedBuffer {
    /// Returns the address, for the host and for devices; 0 for an empty buffer.
    #[inline]
    pub fn ptr(&self) -> u64 {
        self.block.map_or(0, Allocation::address)
    }

    /// Returns the address as a pointer; null for an empty buffer.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.ptr() as usize)
    }

    /// Returns the requested size in bytes.
    pub const fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of the NUMA node that it is on.
    pub const fn numa(&self) -> u32 {
        self.node.number()
    }

    fn start(&self) -> *mut u8 {
        NonNull::new(self.as_ptr()).unwrap_or(NonNull::dangling()).as_ptr()
    }

    /// Returns the bytes, for the host to read. Bytes that were never written are arbitrary.
    ///
    /// # Safety
    /// No work of a device writes the buffer while the slice lives.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the block is as long as requested and mapped until the buffer is freed, and the caller promises that
        // nothing writes it.
        unsafe { slice::from_raw_parts(self.start(), self.bytes as usize) }
    }

    /// Returns the bytes, for the host to write.
    ///
    /// # Safety
    /// No work of a device reads or writes the buffer while the slice lives.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block is as long as requested and mapped until the buffer is freed, and the caller promises that
        // nothing else uses it.
        unsafe { slice::from_raw_parts_mut(self.start(), self.bytes as usize) }
    }

    /// Prevents the memory, once freed, from being reused before the work that this stream has at that time is done. If
    /// the stream is being captured, the memory is kept until the graph, and all that was instantiated from it, no
    /// longer exist.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the buffer was freed by its address; `ErrorKind::Forked` in a forked child.
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        self.block.map_or(Ok(()), |block| serve::record_stream(block, stream))
    }

    /// As [`PinnedBuffer::record_stream`] for a stream that may be gone by the free.
    pub(crate) fn record_consumer(&self, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        self.block.map_or(Ok(()), |block| serve::record_consumer(block, stream))
    }

    /// Notes that the streams that it was recorded on may be gone by the free.
    #[cfg(feature = "python")]
    pub(crate) fn let_streams_end(&self) {
        self.block.into_iter().for_each(serve::let_streams_end);
    }

    #[cfg(feature = "python")]
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<()> {
        self.block.map_or(Ok(()), |block| serve::check_stream(block, stream))
    }

    /// Frees the memory, after the work submitted to the stream so far if one is given, otherwise as dropping it does.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn free(mut self, on: Option<&Stream>) -> Result<()> {
        process::refuse_forked()?;
        self.block.take().map_or(Ok(()), |block| serve::free_kept(block, on))
    }

    /// Passes ownership to a caller that frees the memory by its address; see
    /// [`deallocate`](crate::memory::deallocate).
    pub fn into_ptr(mut self) -> u64 {
        self.block.take().map_or(0, Allocation::address)
    }
}

impl Drop for PinnedBuffer {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            // Refused in a forked child.
            let _ = serve::free_kept(block, None);
        }
    }
}

/// Returns the node with this number; without one the nearest to the stream's device, else to the thread's current
/// device.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the host has no such node, or the stream's device does not exist; `ErrorKind::Library`
/// if the driver refuses.
#[inline]
pub(crate) fn node_of(numa: Option<i64>, stream: Option<&Stream>) -> Result<NumaNode> {
    if let Some(number) = numa {
        return runtime::host_node(number);
    }
    let runtime = runtime::get()?;
    let device = match (stream, runtime::only_host_node()) {
        (Some(stream), _) => stream.device(),
        (None, Some(node)) => return Ok(node),
        (None, None) => runtime.current_device()?,
    };
    runtime::nearest_host_node(device)
}

/// The most bytes of one segment: drivers register no 512 GiB at once.
const SEGMENT_MOST: u64 = 0x40_0000_0000;
/// The name of the thread; the system keeps 15 bytes.
const THREAD: &str = "gpupool-pin";

/// Makes sure that so many contiguous bytes of pinned memory are free, on the NUMA node with this number, otherwise on
/// the one nearest to the calling thread's current device: allocates them if needed.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough memory, or this process can lock no more; `ErrorKind::InvalidValue`
/// if the host has no such node.
pub fn warm_pinned(nbytes: u64, numa: Option<u32>) -> Result<()> {
    serve::warm_by_segments(route::cache_on(&node_of(numa.map(i64::from), None)?)?, nbytes, SEGMENT_MOST)
}

/// As [`warm_pinned`], on a thread of its own: requests are served as usual meanwhile, and a failure is logged.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the host has no such node; `ErrorKind::Unavailable` if the system cannot start a thread.
pub fn warm_pinned_in_background(nbytes: u64, numa: Option<u32>) -> Result<()> {
    // That of the calling thread, which is to have the memory.
    let cache = route::cache_on(&node_of(numa.map(i64::from), None)?)?;
    let work = move || {
        nvtx::name_thread(THREAD);
        if let Err(error) = serve::warm_by_segments(cache, nbytes, SEGMENT_MOST) {
            info!(target: MEMORY, "{} of pinned memory were not made ahead: {error}", Bytes(nbytes));
        }
    };
    let started = thread::Builder::new().name(THREAD.to_owned()).spawn(work);
    started.map(drop).map_err(|e| Error::unavailable(format!("no thread could be started to make pinned memory: {e}")))
}

/// Returns the nodes of the host whose pinned memory this process has used: the one with this number, or all.
fn nodes(numa: Option<u32>) -> Result<Vec<&'static DeviceCaches>> {
    process::refuse_forked()?;
    match numa {
        Some(number) => Ok(DeviceCaches::known(runtime::host_node(number.into())?).into_iter().collect()),
        None => Ok(DeviceCaches::of_nodes().collect()),
    }
}

/// Returns the statistics of pinned memory, on the NUMA node with this number, or on all. For several nodes the peak of
/// reserved bytes is exact, and the peak of live bytes an upper bound, at most as large. It calls no driver.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the host has no such node; `ErrorKind::Forked` in a forked child.
pub fn pinned_stats(numa: Option<u32>) -> Result<MemoryStats> {
    let nodes = nodes(numa)?;
    let mut sum = MemoryStats::default();
    for caches in &nodes {
        sum.add(&report::summarize(caches).0);
    }
    if numa.is_none() && nodes.len() > 1 {
        let total: &mut PoolStats = &mut sum.total;
        total.peak_reserved_bytes = PINNED.peak().max(total.reserved_bytes);
        total.peak_live_bytes = total.peak_live_bytes.min(total.peak_reserved_bytes);
    }
    Ok(sum)
}

/// Resets the peaks of pinned memory to the current values, on the NUMA node with this number, or on all.
///
/// # Errors
/// As [`pinned_stats`].
pub fn reset_peak_pinned_stats(numa: Option<u32>) -> Result<()> {
    let nodes = nodes(numa)?;
    if numa.is_none() {
        PINNED.reset_peak();
        PINNED_MADE.reset_peaks();
        PINNED_GONE.reset_peaks();
    }
    nodes.into_iter().for_each(report::reset_peaks_of);
    Ok(())
}

/// Returns the statistics of pinned memory as PyTorch has them, on the NUMA node with this number, or on all.
pub(crate) fn pinned_device_stats(numa: Option<u32>) -> Result<DeviceStats> {
    let mut sum = DeviceStats::default();
    for caches in nodes(numa)? {
        sum.add(&report::device_stats(caches.memory.location)?);
    }
    Ok(sum)
}

/// Returns how long pieces of pinned memory took to allocate and free, on all NUMA nodes.
pub(crate) fn pinned_times() -> Result<[CallTimes; 2]> {
    process::refuse_forked()?;
    Ok([&PINNED_MADE, &PINNED_GONE].map(|times| times.get()))
}

/// Limits the pinned memory that this process may reserve through gpupool, in bytes, on all NUMA nodes together; none
/// removes the limit. Memory reserved beyond it is kept until it is free and released.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn set_pinned_limit(nbytes: Option<u64>) -> Result<()> {
    process::refuse_forked()?;
    PINNED.set_limit(nbytes);
    Ok(())
}

/// Returns the maximum number of bytes of pinned memory that this process may reserve through gpupool, if there is a
/// limit.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn pinned_limit() -> Result<Option<u64>> {
    process::refuse_forked()?;
    Ok(PINNED.limit())
}

/// Gives free pinned memory back to the system, and returns the bytes. Segments go a little later, on a separate
/// thread.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; what it did not refuse has gone. `ErrorKind::Forked` in a forked child.
///
/// ```
/// # fn main() -> gpupool::Result<()> {
/// # gpupool::runtime::host::simulate(1, 1 << 30)?;
/// drop(gpupool::empty_pinned(1 << 20, None)?);
/// gpupool::empty_pinned_cache()?;
/// # Ok(())
/// # }
/// ```
pub fn empty_pinned_cache() -> Result<u64> {
    let trim = |caches| trim_pools(caches, ThisThread::get(), Patience::Ask, |_| true);
    sum_of_all(nodes(None)?.into_iter().map(trim))
}

/// Returns the statistics of each NUMA node whose pinned memory this process has used, by its number. It calls no
/// driver.
#[cfg(feature = "python")]
pub(crate) fn pinned_stats_by_node() -> Result<Vec<(u32, MemoryStats)>> {
    let of_node = |caches: &DeviceCaches| Some((caches.memory.location.numa()?, report::summarize(caches).0));
    Ok(nodes(None)?.into_iter().filter_map(of_node).collect())
}
