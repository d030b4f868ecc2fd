//! Copies between a buffer and ordinary host memory, in pieces, through gpupool's pinned memory. Ordinary memory may go
//! as soon as a call returns, even a failed one, and it may be impossible to wait for a submitted copy: the driver
//! refuses, or the stream has begun to be captured. So no device ever uses such memory. The host moves the bytes
//! between it and pinned memory, and pinned memory whose copy was not waited for is free only once the stream's work is
//! done.

use std::collections::VecDeque;
use std::{mem, ptr};

use super::DeviceBuffer;
use super::copies::CopyDirection;
use super::pinned::{PinnedBuffer, pinned_for_gpupool};
use crate::error::{ErrorKind, Result};
use crate::memory::tuning::{COPY_LEAST, SIDE_BY_SIDE, STAGED_MOST};
use crate::runtime::{self, Event, RelaxedCapture, Stream};

/// Copies the buffer from or to bytes of the host at an address, after the stream's work so far, and waits for the
/// copy.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is no pinned memory; else as [`DeviceBuffer::copy_from`]. In any case nothing uses
/// the host's bytes any more.
///
/// # Safety
/// As many bytes as the buffer has are there until this returns, to be read or written by the way.
pub(super) unsafe fn copy(buffer: &DeviceBuffer, way: CopyDirection, host: u64, stream: &Stream) -> Result<()> {
    let bytes = buffer.nbytes();
    if bytes == 0 {
        return Ok(());
    }
    // Waiting would be refused during a capture of another stream, and spoil it.
    let _relaxed = RelaxedCapture::new(runtime::get()?)?;
    let node = runtime::nearest_host_node(stream.device())?.number();
    let mut under_way: VecDeque<StagedPart<'_>> = VecDeque::new();
    let (mut pieces, mut most) = (SIDE_BY_SIDE, bytes.min(STAGED_MOST));
    let mut at = 0;
    while at < bytes {
        let new = if under_way.len() < pieces { Some(StagedPart::new(most, node, stream)) } else { None };
        let new = match new.transpose() {
            // One piece less, or smaller ones, take longer, but no more than there is.
            Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory(_)) && !under_way.is_empty() => {
                pieces = under_way.len();
                None
            }
            Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory(_)) && most > COPY_LEAST => {
                most = COPY_LEAST;
                continue;
            }
            new => new?,
        };
        let Some(mut piece) = new.or_else(|| under_way.pop_front()) else { continue };
        if piece.is_used {
            piece.wait()?;
            // SAFETY: the piece's copy is done, and the caller vouches for the host's bytes.
            unsafe { piece.end(way, host) };
        }
        let part = most.min(bytes - at);
        // SAFETY: the part is one of the buffer's and of the host's bytes, for which the caller vouches.
        unsafe { piece.begin(buffer, way, host, at, part) }?;
        at += part;
        if at < bytes {
            piece.record()?;
        }
        under_way.push_back(piece);
    }
    stream.synchronize()?;
    for piece in &mut under_way {
        // SAFETY: all copies are done, and the caller vouches for the host's bytes.
        unsafe { piece.end(way, host) };
    }
    Ok(())
}

/// Pinned memory for a part of the copy.
#[derive(Debug)]
struct StagedPart<'a> {
    /// Taken when this is dropped.
    pinned: Option<PinnedBuffer>,
    stream: &'a Stream,
    /// Where the part begins in the buffer, and its bytes.
    at: u64,
    bytes: u64,
    /// Whether the stream may still use the memory.
    is_used: bool,
    /// Recorded after the copy, if more follow.
    event: Option<Event>,
}

impl<'a> StagedPart<'a> {
    fn new(bytes: u64, node: u32, stream: &'a Stream) -> Result<Self> {
        let pinned = Some(pinned_for_gpupool(bytes, node)?);
        Ok(Self { pinned, stream, at: 0, bytes: 0, is_used: false, event: None })
    }

    fn address(&self) -> u64 {
        self.pinned.as_ref().map_or(0, PinnedBuffer::ptr)
    }

    /// Begins to copy a part, from bytes of the host or to them.
    ///
    /// # Safety
    /// The piece is not used, and has room for the part, which is one of the buffer's and of the host's bytes.
    unsafe fn begin(
        &mut self,
        buffer: &DeviceBuffer,
        way: CopyDirection,
        host: u64,
        at: u64,
        bytes: u64,
    ) -> Result<()> {
        (self.at, self.bytes) = (at, bytes);
        let pinned = self.address();
        if way == CopyDirection::ToDevice {
            // SAFETY: the caller vouches for the host's bytes, and no one else has the pinned ones, which have room.
            unsafe { move_bytes(host + at, pinned, bytes) };
        }
        self.is_used = true;
        // SAFETY: the pinned memory stays until the stream is done with it: it is waited for, or recorded when it is freed.
        unsafe { buffer.submit_copy(way, at, pinned, bytes, self.stream) }
    }

    /// Records the end of the copy, so that it can be waited for without what follows.
    fn record(&mut self) -> Result<()> {
        let event = match &self.event {
            Some(event) => event,
            None => self.event.insert(Event::of(self.stream.device())?),
        };
        event.record(self.stream)
    }

    /// Waits for the copy that was recorded last.
    fn wait(&self) -> Result<()> {
        self.event.as_ref().map_or_else(|| self.stream.synchronize(), Event::synchronize)
    }

    /// # Safety
    /// It is done, and the part of the host's bytes is there.
    unsafe fn end(&mut self, way: CopyDirection, host: u64) {
        self.is_used = false;
        if way == CopyDirection::ToHost {
            // SAFETY: the caller vouches for the host's bytes, and the stream has written the pinned ones.
            unsafe { move_bytes(self.address(), host + self.at, self.bytes) };
        }
    }
}

impl Drop for StagedPart<'_> {
    fn drop(&mut self) {
        let Some(pinned) = self.pinned.take() else { return };
        if self.is_used && pinned.record_consumer(self.stream).is_err() {
            // In a forked child no stream uses the memory; elsewhere, unrecorded memory is never free again.
            mem::forget(pinned);
        }
    }
}

/// # Safety
/// The bytes are there, readable at the first place and writable at the other, and do not overlap.
unsafe fn move_bytes(from: u64, to: u64, bytes: u64) {
    let from = ptr::with_exposed_provenance::<u8>(from as usize);
    let to = ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: as the caller promises.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes as usize) };
}
