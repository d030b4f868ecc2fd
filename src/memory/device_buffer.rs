//! A block of device memory that frees itself.

use super::pool::{self, PoolId};
#[cfg(feature = "python")]
use super::serve::Attempt;
use super::serve::{self, Allocation};
use crate::error::Result;
use crate::ids::Device;
use crate::process;
use crate::runtime::Stream;

/// Device memory, aligned to 512 bytes, freed in stream order when dropped.
///
/// Work on the buffer's own stream needs no care: what is freed is used again behind it. Another stream's work is made
/// safe by [`DeviceBuffer::record_stream`] or [`DeviceBuffer::free_on`].
///
/// ```
/// use gpupool::Stream;
///
/// let device = gpupool::device(0)?;
/// let (stream, other) = (Stream::new(device)?, Stream::new(device)?);
/// let buffer = gpupool::empty(1 << 20, &stream)?;
/// // Give `buffer.address()` to work on `stream`, and on `other` too, which is said here:
/// buffer.record_stream(&other)?;
/// drop(buffer); // used again once the work so far on both is done; nothing waits here
/// # Ok::<(), gpupool::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceBuffer {
    /// None for 0 bytes, and once freed.
    block: Option<Allocation>,
    bytes: u64,
    /// A view: the cache keeps a stream of our own alive as long as it has memory.
    stream: Stream,
}

/// Allocates device memory on the stream, not initialised; from the pool that the calling thread is in a scope of, else
/// from the device's default pool. 0 bytes take no memory and have the address 0.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough; `ErrorKind::InvalidValue` if the stream's device does not exist;
/// `ErrorKind::Library` if the driver refuses.
#[inline]
pub fn empty(nbytes: u64, stream: &Stream) -> Result<DeviceBuffer> {
    let block = if nbytes > 0 { Some(serve::allocate(nbytes, stream)?) } else { None };
    Ok(DeviceBuffer { block, bytes: nbytes, stream: stream.view() })
}

/// What became of a request for a buffer that was tried.
#[cfg(feature = "python")]
#[derive(Debug)]
pub(crate) enum Empty {
    /// It was served at once.
    Ready(DeviceBuffer),
    /// What is left to do may ask the driver, and may wait.
    Miss(EmptyMiss),
}

/// A request for a buffer that found no free block. [`EmptyMiss::serve`] goes on with it, on the same thread.
#[cfg(feature = "python")]
#[derive(Debug)]
#[must_use = "nothing is allocated before it is served"]
pub(crate) struct EmptyMiss {
    miss: serve::Miss,
    nbytes: u64,
    stream: Stream,
}

#[cfg(feature = "python")]
impl EmptyMiss {
    /// Goes on with the request.
    ///
    /// # Errors
    /// As [`empty`].
    pub(crate) fn serve(self) -> Result<DeviceBuffer> {
        let block = self.miss.serve()?;
        Ok(DeviceBuffer { block: Some(block), bytes: self.nbytes, stream: self.stream })
    }
}

/// [`empty`] in two parts, so that a caller can let others work while the driver is asked.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the stream's device does not exist; `ErrorKind::Library` if the driver refuses.
#[cfg(feature = "python")]
#[inline]
pub(crate) fn try_empty(nbytes: u64, stream: &Stream) -> Result<Empty> {
    let block = match nbytes {
        0 => None,
        _ => match serve::try_allocate(nbytes, stream)? {
            Attempt::Ready(block) => Some(block),
            Attempt::Miss(miss) => return Ok(Empty::Miss(EmptyMiss { miss, nbytes, stream: stream.view() })),
        },
    };
    Ok(Empty::Ready(DeviceBuffer { block, bytes: nbytes, stream: stream.view() }))
}

impl DeviceBuffer {
    /// Returns the address on the device; 0 for an empty buffer.
    #[inline]
    pub fn address(&self) -> u64 {
        self.block.map_or(0, Allocation::address)
    }

    /// Returns the bytes asked for.
    pub const fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the device.
    pub const fn device(&self) -> Device {
        self.stream.device()
    }

    /// Returns the stream on which it was allocated.
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the pool that it came from.
    pub fn pool_id(&self) -> PoolId {
        self.block.and_then(|block| block.cache.service()).map_or(PoolId::NONE, |service| service.pool.id)
    }

    /// Refuses while the buffer's pool is asleep, and there is no memory behind the buffer.
    ///
    /// # Errors
    /// `ErrorKind::Asleep`.
    pub(super) fn refuse_asleep(&self) -> Result<()> {
        match self.block.and_then(|block| block.cache.service()) {
            Some(service) if service.pool.sleep.is_asleep() => Err(pool::asleep(&service.pool)),
            _ => Ok(()),
        }
    }

    /// Keeps the memory, once freed, from being used again before this stream's work at that time is done.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the buffer was freed by its address; `ErrorKind::Forked` in a forked child.
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        match self.block {
            Some(block) => serve::record_stream(block, stream),
            None => Ok(()),
        }
    }

    /// As [`DeviceBuffer::record_stream`] for a stream that may be gone by the time the memory is freed.
    pub(crate) fn record_consumer(&self, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        self.block.map_or(Ok(()), |block| serve::record_consumer(block, stream))
    }

    /// Whether the memory can be freed on this stream.
    #[cfg(feature = "python")]
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<()> {
        self.block.map_or(Ok(()), |block| serve::check_stream(block, stream))
    }

    /// Frees the memory after what was submitted to this stream so far.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses to take back memory of a pool that is gone; the block is freed all
    /// the same. `ErrorKind::Forked` in a forked child.
    pub fn free_on(mut self, stream: &Stream) -> Result<()> {
        self.end(Some(stream))
    }

    /// Frees the memory in the order of its stream, which need not be alive; as dropping it does, but for the errors.
    #[cfg(feature = "python")]
    pub(crate) fn free(mut self) -> Result<()> {
        self.end(None)
    }

    fn end(&mut self, on: Option<&Stream>) -> Result<()> {
        process::refuse_forked()?;
        self.block.take().map_or(Ok(()), |block| serve::free(block, on))
    }

    /// Gives the memory up to a caller that frees it by its address; see [`deallocate`](super::deallocate).
    pub fn into_address(mut self) -> u64 {
        self.block.take().map_or(0, Allocation::address)
    }
}

impl Drop for DeviceBuffer {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            // Refused in a forked child. What the driver refuses to take back is tried again whenever memory is given
            // back.
            let _ = serve::free(block, None);
        }
    }
}
