//! A block of pinned memory that frees itself.

use std::ptr::{self, NonNull};
use std::slice;

use super::place::node_of;
use crate::error::Result;
use crate::ids::NumaNode;
use crate::memory::cache::BlockUser;
use crate::memory::route;
use crate::memory::serve::{self, Allocation};
use crate::process;
use crate::runtime::Stream;

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
    pub fn address(&self) -> u64 {
        self.block.map_or(0, Allocation::address)
    }

    /// Returns the address as a pointer; null for an empty buffer.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address() as usize)
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
    pub fn into_address(mut self) -> u64 {
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
