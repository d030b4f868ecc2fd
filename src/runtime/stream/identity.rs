//! What tells two streams apart.

use super::Stream;
use crate::error::Result;
use crate::ids::{Device, RawStream};
use crate::sync::{ThisThread, ThreadNumber};

/// A stream, as a caller has just named it. An address alone tells no two apart: a new stream may get that of one that was
/// destroyed while its work goes on, and each thread has a per-thread default stream of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamIdentity {
    device: Device,
    raw: RawStream,
    /// The stream's own number; none while it is captured, as no driver tells it then.
    number: Option<u64>,
    /// The thread of a per-thread default stream.
    thread: Option<ThreadNumber>,
}

impl StreamIdentity {
    /// Returns the identity of a stream that the calling thread names.
    ///
    /// # Errors
    /// As [`Stream::id`].
    pub(crate) fn of(stream: &Stream) -> Result<Self> {
        // The legacy default stream has two names.
        let raw = if stream.raw().is_legacy() { RawStream::LEGACY } else { stream.raw() };
        let thread = (raw == RawStream::PER_THREAD).then(|| ThisThread::get().number());
        Ok(Self { device: stream.device(), raw, number: stream.id()?, thread })
    }

    /// Returns the stream, if it can be used at any time.
    pub(crate) fn lasting(&self) -> Option<Stream> {
        Stream::lasting(self.raw, self.device)
    }

    /// Returns whether another stream, alive now, has the address that this one had.
    pub(crate) fn had_address_of(&self, alive: &Self) -> bool {
        (self.device, self.raw) == (alive.device, alive.raw) && self != alive
    }

    /// Returns whether work that is submitted now to the one comes after all work so far of the other.
    pub(crate) fn is_behind(&self, earlier: &Self) -> bool {
        self == earlier
    }
}
