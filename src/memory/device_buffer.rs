//! A block of device memory that frees itself.

use std::mem;

use super::peer::{self, AttachedBuffer, ShareToken};
use super::pool::PoolId;
use super::route;
use super::serve::{self, Allocation};
use super::shared_block;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::process;
use crate::runtime::Stream;
#[cfg(feature = "python")]
use crate::runtime::{Event, RelaxedCapture, StreamIdentity, get};
#[cfg(feature = "python")]
use crate::sync::ThisThread;

/// Device memory, aligned to 512 bytes, freed in stream order when dropped.
///
/// Work on the buffer's own stream needs no further calls: freed memory is reused after it in stream order. For work of
/// other streams call [`DeviceBuffer::record_stream`] or [`DeviceBuffer::free_on`].
///
/// ```
/// use gpupool::Stream;
///
/// let device = gpupool::device(0)?;
/// let (stream, other) = (Stream::new(device)?, Stream::new(device)?);
/// let buffer = gpupool::empty(1 << 20, &stream)?;
/// // Give `buffer.ptr()` to work on `stream`, and on `other` too, which is said here:
/// buffer.record_stream(&other)?;
/// drop(buffer); // used again once the work so far on both is done; nothing waits here
/// # Ok::<(), gpupool::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceBuffer {
    held: BufferMemory,
    bytes: u64,
    /// A view, if there is a block: its cache keeps a stream of gpupool's alive as long as it has memory.
    stream: Stream,
}

#[derive(Debug, Default)]
enum BufferMemory {
    /// None: 0 bytes, or freed.
    #[default]
    Nothing,
    /// A block of this process.
    Block(Allocation),
    /// A block that was attached.
    Attached(Box<AttachedBuffer>),
}

impl BufferMemory {
    #[inline]
    fn free(self, own: &Stream, on: Option<&Stream>) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Block(block) => serve::free_kept(block, on),
            Self::Attached(attached) => attached.free(own, on),
        }
    }
}

/// Allocates uninitialised device memory on the stream, from the pool whose scope the calling thread is in, otherwise
/// from the device's default pool. A buffer of 0 bytes uses no memory and has the address 0.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough memory; `ErrorKind::InvalidValue` if the stream's device does not
/// exist; `ErrorKind::Library` if the driver refuses.
#[inline]
pub fn empty(nbytes: u64, stream: &Stream) -> Result<DeviceBuffer> {
    empty_by(nbytes, stream, route::allocate)
}

/// As [`empty`], with a block from `allocate`.
#[inline]
pub(crate) fn empty_by(
    nbytes: u64,
    stream: &Stream,
    allocate: impl FnOnce(u64, &Stream) -> Result<Allocation>,
) -> Result<DeviceBuffer> {
    if nbytes == 0 {
        return Ok(DeviceBuffer::empty(stream));
    }
    let held = BufferMemory::Block(allocate(nbytes, stream)?);
    Ok(DeviceBuffer { held, bytes: nbytes, stream: stream.view() })
}

impl DeviceBuffer {
    /// Makes one of 0 bytes, which no cache keeps the stream alive for.
    #[cold]
    fn empty(stream: &Stream) -> Self {
        Self { held: BufferMemory::Nothing, bytes: 0, stream: stream.kept() }
    }

    /// Returns the address on the device; 0 for an empty buffer.
    #[inline]
    pub fn ptr(&self) -> u64 {
        match &self.held {
            BufferMemory::Block(block) => block.address(),
            BufferMemory::Attached(attached) => attached.address,
            BufferMemory::Nothing => 0,
        }
    }

    /// Returns the block, if it is this process's own.
    pub(super) fn block(&self) -> Option<Allocation> {
        match self.held {
            BufferMemory::Block(block) => Some(block),
            BufferMemory::Attached(_) | BufferMemory::Nothing => None,
        }
    }

    /// Returns whether the memory belongs to another process and was attached by this one.
    pub const fn is_attached(&self) -> bool {
        matches!(self.held, BufferMemory::Attached(_))
    }

    /// Returns the requested size in bytes.
    pub const fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the device.
    pub const fn device(&self) -> Device {
        self.stream.device()
    }

    /// Returns the stream on which it was allocated, which the result keeps alive if it is one of gpupool's. A per-thread
    /// default stream is that of the thread which allocated it, and no other thread can name it: there the result is the
    /// calling thread's own, which is in no order with it.
    pub fn stream(&self) -> Stream {
        self.stream.kept()
    }

    /// As [`DeviceBuffer::stream`], for a caller that uses it while the buffer lives.
    #[cfg(feature = "python")]
    pub(crate) const fn own_stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns its own stream for work of the calling thread: if that is the per-thread default stream of another one, which
    /// alone can name it, this is the calling thread's, behind all work of the device so far.
    ///
    /// # Errors
    /// As [`DeviceBuffer::hold_back`].
    #[cfg(feature = "python")]
    pub(crate) fn own_stream_here(&self) -> Result<Stream> {
        let own = self.stream.view();
        if self.is_of_another_threads_stream() {
            self.hold_back(&own)?;
        }
        Ok(own)
    }

    /// Makes later work on a stream wait for what was submitted to the buffer's own so far.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the wait would cross the boundary of a capture, or a known one would be spoilt, and as
    /// for [`Stream::wait`]; `ErrorKind::Library` if the driver refuses.
    #[cfg(feature = "python")]
    pub(crate) fn hold_back(&self, stream: &Stream) -> Result<()> {
        let own = &self.stream;
        let event = if self.is_of_another_threads_stream() {
            let event = Event::of(own.device())?;
            // The stream's capture may be one that gpupool does not know of.
            if stream.is_captured()? || !event.record_or_await_context()? {
                return Err(Error::invalid_value(
                    "the buffer was allocated on another thread's per-thread default stream, whose work cannot be waited for \
                     while a stream of its device is captured: do this outside of the capture, or allocate it on a stream that \
                     both threads can name",
                ));
            }
            event
        } else {
            if StreamIdentity::of(stream)?.is_behind(&StreamIdentity::of(own)?) || !must_wait(stream, own)? {
                return Ok(());
            }
            let event = Event::of(own.device())?;
            event.record(own)?;
            event
        };
        stream.wait(&event)
    }

    /// Returns whether its own stream is the per-thread default stream of another thread, which alone can name it.
    #[cfg(feature = "python")]
    pub(crate) fn is_of_another_threads_stream(&self) -> bool {
        match &self.held {
            BufferMemory::Block(block) => !block.cache.is_nameable_by(ThisThread::get()),
            BufferMemory::Attached(attached) => !attached.is_nameable_by(ThisThread::get()),
            BufferMemory::Nothing => false,
        }
    }

    /// Returns the pool that it came from; [`PoolId::NONE`] for attached memory.
    pub fn pool_id(&self) -> PoolId {
        self.block().and_then(|block| block.cache.serving()).map_or(PoolId::NONE, |of| of.pool().id)
    }

    /// Prevents the memory, once freed, from being reused before the work that this stream has at that time is done.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the buffer was freed by its address; `ErrorKind::Forked` in a forked child.
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        match &self.held {
            BufferMemory::Block(block) => serve::record_stream(*block, stream),
            BufferMemory::Attached(attached) => attached.record_stream(stream, false),
            BufferMemory::Nothing => Ok(()),
        }
    }

    /// As [`DeviceBuffer::record_stream`], for a stream that may be gone by the free.
    pub(crate) fn record_consumer(&self, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        match &self.held {
            BufferMemory::Block(block) => serve::record_consumer(*block, stream),
            BufferMemory::Attached(attached) => attached.record_stream(stream, true),
            BufferMemory::Nothing => Ok(()),
        }
    }

    /// Notes that the streams that it was recorded on may be gone by the free.
    #[cfg(feature = "python")]
    pub(crate) fn let_streams_end(&self) {
        if let BufferMemory::Block(block) = &self.held {
            serve::let_streams_end(*block);
        }
    }

    /// Checks that the memory can be freed on this stream.
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<()> {
        match &self.held {
            BufferMemory::Block(_) if stream.device() == self.device() => Ok(()),
            BufferMemory::Block(block) => serve::check_stream(*block, stream),
            BufferMemory::Attached(attached) => attached.check_stream(stream),
            BufferMemory::Nothing => Ok(()),
        }
    }

    /// Frees the memory after the work submitted to this stream so far.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the stream's device cannot reach the memory, which is then freed as by dropping it;
    /// `ErrorKind::Forked` in a forked child.
    pub fn free_on(mut self, stream: &Stream) -> Result<()> {
        self.end(Some(stream))
    }

    /// Frees the memory as dropping it does, in the order of its stream, which may be gone, and returns errors.
    #[cfg(feature = "python")]
    pub(crate) fn free(mut self) -> Result<()> {
        self.end(None)
    }

    fn end(&mut self, on: Option<&Stream>) -> Result<()> {
        process::refuse_forked()?;
        // A refusal leaves the buffer as it is, to be freed when dropped.
        on.map_or(Ok(()), |on| self.check_stream(on))?;
        mem::take(&mut self.held).free(&self.stream, on)
    }

    /// Passes ownership to a caller that frees the memory by its address; see [`deallocate`](super::deallocate).
    /// Attached memory cannot be passed on: it is freed, and 0 is returned.
    pub fn into_ptr(mut self) -> u64 {
        let Some(block) = self.block() else { return 0 };
        self.held = BufferMemory::Nothing;
        block.address()
    }

    /// Shares the buffer with other processes of the same user. The work submitted to the stream so far comes first:
    /// work of a process that attaches the token waits for it. The token does not keep the buffer: it must live until
    /// it is attached. Memory freed after that is reused once every process has freed it and its work is done; nothing
    /// here waits.
    ///
    /// ```
    /// let stream = gpupool::Stream::new(gpupool::device(0)?)?;
    /// let buffer = gpupool::empty(1 << 20, &stream)?;
    /// let token = buffer.share(&stream)?;
    /// // In another process, which was sent the token's bytes:
    /// let token = gpupool::ShareToken::from_bytes(token.as_bytes())?;
    /// let same = gpupool::attach(&token, None, None)?;
    /// assert_eq!(same.nbytes(), 1 << 20);
    /// # Ok::<(), gpupool::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for an empty or attached buffer, for memory of graphs, of a custom allocator or of a
    /// device whose memory cannot be exported, or if the stream is captured; `ErrorKind::Asleep` while its pool is
    /// asleep; `ErrorKind::Unavailable` if the system has no thread or descriptor left; `ErrorKind::Library` if the
    /// driver refuses.
    pub fn share(&self, stream: &Stream) -> Result<ShareToken> {
        self.share_as(stream, false)
    }

    /// As [`DeviceBuffer::share`], and keeps the memory until the token was attached once: the buffer may be freed at
    /// once. If a token is never attached, its memory is kept until the process ends, and
    /// [`memory_stats`](crate::memory_stats) counts it as sent.
    ///
    /// # Errors
    /// As [`DeviceBuffer::share`].
    pub fn send(&self, stream: &Stream) -> Result<ShareToken> {
        self.share_as(stream, true)
    }

    /// Ends what keeps the memory for tokens of [`DeviceBuffer::send`] that were not attached, because a message was not sent
    /// or will not be received. As with [`DeviceBuffer::share`], they can be attached until the buffer is freed.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn recall(&self) -> Result<()> {
        process::refuse_forked()?;
        if let BufferMemory::Block(block) = &self.held {
            shared_block::recall(*block);
        }
        Ok(())
    }

    fn share_as(&self, stream: &Stream, is_sent: bool) -> Result<ShareToken> {
        process::refuse_forked()?;
        match &self.held {
            BufferMemory::Block(block) => peer::share(*block, self.bytes, Some(stream), is_sent),
            BufferMemory::Attached(attached) => Err(Error::invalid_value(format!(
                "{:#x} is memory of another process, which alone can share it: pass its token on, or copy the {} bytes to a \
                 buffer of this process",
                attached.address, attached.bytes
            ))),
            BufferMemory::Nothing => {
                Err(Error::invalid_value("an empty buffer has no memory to share: send its size alone"))
            }
        }
    }
}

/// Attaches a buffer that another process shares: the same memory, for the given device or that of the stream, by
/// default the device it is on. Work on the stream, by default the device's current one, runs after the work submitted
/// before the buffer was shared. When the attached buffer is freed, its owner can reuse the memory once this process's
/// work with it is done. The memory stays valid if its owner ends first. Freed memory stays mapped in this process
/// until its owner releases it to the driver, so that attaching another buffer in the same memory maps nothing;
/// [`empty_cache`](crate::empty_cache) unmaps it.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a token of another machine, boot, user or version of gpupool, a buffer that was freed,
/// a device that cannot access the memory, or if the stream is captured; `ErrorKind::Unavailable` if its owner has
/// ended or does not answer, or this process can open no more files; `ErrorKind::Library` if the driver refuses.
pub fn attach(token: &ShareToken, device: Option<Device>, stream: Option<&Stream>) -> Result<DeviceBuffer> {
    let (attached, stream) = peer::attach(token, device, stream)?;
    Ok(DeviceBuffer { bytes: attached.bytes, held: BufferMemory::Attached(Box::new(attached)), stream })
}

/// Returns whether a stream must wait for the work so far on another one, which the calling thread names too.
///
/// # Errors
/// `ErrorKind::InvalidValue` if just one of them is captured, or they are by different captures.
#[cfg(feature = "python")]
fn must_wait(stream: &Stream, earlier: &Stream) -> Result<bool> {
    let is_one_capture =
        || matches!((stream.capture(), earlier.capture()), (Ok(Some(one)), Ok(Some(other))) if one == other);
    match (stream.is_captured()?, earlier.is_captured()?) {
        (false, false) => Ok(true),
        (true, false) => {
            // The query spoils captures of this thread, and of others in global mode.
            let _relaxed = RelaxedCapture::new(get()?)?;
            if earlier.query()? {
                return Ok(false);
            }
            Err(Error::invalid_value(
                "the consumer's stream is being captured, and its graph cannot wait for work outside of it, which the buffer's \
                 stream has: wait for that one first, or export the buffer before the capture",
            ))
        }
        (true, true) if is_one_capture() => Ok(true),
        (_, true) => Err(Error::invalid_value(
            "the buffer's stream is being captured, and the consumer's is not part of that capture, so that it cannot wait for \
             what the graph will do: export the buffer after the capture, or for a stream that is part of it",
        )),
    }
}

impl Drop for DeviceBuffer {
    #[inline]
    fn drop(&mut self) {
        // Refused in a forked child. What the driver refuses to take back is tried again whenever memory is given back.
        let _ = mem::take(&mut self.held).free(&self.stream, None);
    }
}
