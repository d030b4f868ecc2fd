//! Copies between a buffer and the host, and fills, in the order of a stream. Copies to and from gpupool's pinned
//! memory do not wait: it is recorded on the stream, and so kept until the copy is done. Other host memory may be freed
//! or changed as soon as a call returns, so the call waits, and no device uses that memory: see [`staging`]. A captured
//! stream is refused, since its graph would copy again at each replay.

use super::route::PoolStay;
use super::{DeviceBuffer, PinnedBuffer, pool, staging};
use crate::error::{Error, Result};
use crate::process;
use crate::runtime::{BoundDevice, Runtime, Stream, get};

/// Bytes of the host that a copy reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostBytes<'a> {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The pinned memory that they are in.
    pub(crate) pinned: Option<&'a PinnedBuffer>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyDirection {
    ToDevice,
    ToHost,
}

impl DeviceBuffer {
    /// Copies bytes of the host to the buffer, which must have the same size, after the stream's work so far, and waits
    /// until the copy is done.
    ///
    /// ```
    /// let stream = gpupool::Stream::new(gpupool::device(0)?)?;
    /// let buffer = gpupool::empty(4, &stream)?;
    /// buffer.copy_from(b"gpu!", &stream)?;
    /// let mut read = [0; 4];
    /// buffer.copy_to(&mut read, &stream)?;
    /// assert_eq!(&read, b"gpu!");
    /// # Ok::<(), gpupool::Error>(())
    /// ```
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the sizes differ, the stream is captured, its device cannot access the buffer, or it is
    /// the legacy default stream and a blocking stream of the device is captured; `ErrorKind::Asleep` while its pool is
    /// asleep; `ErrorKind::OutOfMemory` if there is no pinned memory for the copy to go by; `ErrorKind::Library` if the
    /// driver refuses. Nothing uses the host's bytes once this returns, also with an error; of the buffer any part may then
    /// be written.
    pub fn copy_from(&self, host: &[u8], stream: &Stream) -> Result<()> {
        let host =
            HostBytes { address: host.as_ptr().expose_provenance() as u64, bytes: host.len() as u64, pinned: None };
        // SAFETY: the slice is as long as it says, and lent until this returns.
        unsafe { self.copy(CopyDirection::ToDevice, host, stream) }
    }

    /// Copies the buffer to bytes of the host, which must have the same size, after the stream's work so far, and waits
    /// until the copy is done.
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_from`]; any part of the host's bytes may then be written.
    pub fn copy_to(&self, host: &mut [u8], stream: &Stream) -> Result<()> {
        let address = host.as_mut_ptr().expose_provenance() as u64;
        let host = HostBytes { address, bytes: host.len() as u64, pinned: None };
        // SAFETY: the slice is as long as it says, and lent until this returns.
        unsafe { self.copy(CopyDirection::ToHost, host, stream) }
    }

    /// Copies pinned memory of the same size to the buffer, in stream order, without a wait. The pinned memory is
    /// recorded on the stream, so it can be dropped at once; wait for the stream before you write it again.
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_from`]; a captured stream is allowed.
    pub fn copy_from_pinned(&self, host: &PinnedBuffer, stream: &Stream) -> Result<()> {
        let host = HostBytes { address: host.ptr(), bytes: host.nbytes(), pinned: Some(host) };
        // SAFETY: the memory is the pinned buffer's.
        unsafe { self.copy(CopyDirection::ToDevice, host, stream) }
    }

    /// Copies the buffer to pinned memory of the same size, in stream order, without a wait. The pinned memory is
    /// recorded on the stream; wait for the stream before you read it.
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_from`]; a captured stream is allowed.
    pub fn copy_to_pinned(&self, host: &PinnedBuffer, stream: &Stream) -> Result<()> {
        let host = HostBytes { address: host.ptr(), bytes: host.nbytes(), pinned: Some(host) };
        // SAFETY: the memory is the pinned buffer's.
        unsafe { self.copy(CopyDirection::ToHost, host, stream) }
    }

    /// Sets every byte of the buffer, in stream order, without a wait.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the stream's device cannot access the buffer, or as for [`DeviceBuffer::copy_from`]
    /// beside a capture; `ErrorKind::Asleep` while its pool is asleep; `ErrorKind::Library` if the driver refuses.
    pub fn fill(&self, byte: u8, stream: &Stream) -> Result<()> {
        // SAFETY: the buffer is as large as it says, and stays until the stream's work is done, as `submit` records.
        self.submit(stream, |runtime| unsafe { runtime.fill(self.ptr(), byte, self.nbytes(), stream.raw()) })
    }

    /// Copies as [`DeviceBuffer::copy_from`], [`DeviceBuffer::copy_to`] and those for pinned memory, by address.
    ///
    /// # Safety
    /// The bytes are there, readable or writable: what is pinned lies in its buffer, and anything else stays until this
    /// returns.
    pub(crate) unsafe fn copy(&self, way: CopyDirection, host: HostBytes<'_>, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        let (own, bytes) = (self.nbytes(), host.bytes);
        if bytes != own {
            return Err(Error::invalid_value(format!(
                "the buffer has {own} bytes and the host's memory has {bytes}; give memory of the same size"
            )));
        }
        let Some(pinned) = host.pinned else {
            if stream.is_captured()? {
                return Err(Error::invalid_value(
                    "the stream is being captured, and its graph would use the host's memory again at each replay: copy from \
                     or to pinned memory of gpupool (empty_pinned), or after the capture",
                ));
            }
            // SAFETY: as the caller promises.
            return unsafe { staging::copy(self, way, host.address, stream) };
        };
        pinned.record_consumer(stream)?;
        // SAFETY: the pinned memory is as large as the buffer, and stays as it is recorded.
        unsafe { self.submit_copy(way, 0, host.address, bytes, stream) }
    }

    /// Submits a copy between a part of the buffer and bytes of the host.
    ///
    /// # Safety
    /// The part is one of the buffer, and the host's bytes are there until the copy is done, readable or writable.
    pub(super) unsafe fn submit_copy(
        &self,
        way: CopyDirection,
        at: u64,
        host: u64,
        bytes: u64,
        stream: &Stream,
    ) -> Result<()> {
        let part = self.ptr() + at;
        self.submit(stream, |runtime| match way {
            // SAFETY: as the caller promises, and the buffer stays until the stream's work is done, as `submit` records.
            CopyDirection::ToDevice => unsafe { runtime.copy_to_device(part, host, bytes, stream.raw()) },
            // SAFETY: as for the other way.
            CopyDirection::ToHost => unsafe { runtime.copy_to_host(host, part, bytes, stream.raw()) },
        })
    }

    /// Submits work with the buffer to a stream, and records it there; nothing for an empty one.
    fn submit(&self, stream: &Stream, work: impl FnOnce(&dyn Runtime) -> Result<()>) -> Result<()> {
        process::refuse_forked()?;
        if self.nbytes() == 0 {
            return Ok(());
        }
        let serving = self.block().and_then(|block| block.cache.serving());
        let _stay = serving.as_ref().map(|of| PoolStay::begin(of.pool())).transpose()?;
        // Until the work is submitted the pool does not fall asleep, and then it waits for the work.
        let inside = serving.as_ref().map(|of| of.pool().sleep.door.enter().ok_or_else(|| pool::asleep(of.pool())));
        let _inside = inside.transpose()?;
        self.record_consumer(stream)?;
        let runtime = get()?;
        let _bound = BoundDevice::of(runtime, stream.device())?;
        let _used = stream.begin_use()?;
        work(runtime).map_err(|error| error.on(stream.device()))
    }
}
