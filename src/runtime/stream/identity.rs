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
    /// The stream's own number, none while it is captured, as no driver tells it then; 0 for one that outlives all that has
    /// this identity, so that its address is its alone.
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
        Ok(Self::numbered(stream, stream.id()?))
    }

    /// As [`StreamIdentity::of`], for a caller that knows the stream's number.
    pub(crate) fn numbered(stream: &Stream, number: Option<u64>) -> Self {
        let raw = stream.raw().by_one_name();
        let thread = (raw == RawStream::PER_THREAD).then(|| ThisThread::get().number());
        Self { device: stream.device(), raw, number, thread }
    }

    pub(crate) const fn number(&self) -> Option<u64> {
        self.number
    }

    /// Returns whether it is the per-thread default stream of a thread.
    pub(crate) const fn is_per_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Returns whether the thread can name the stream: it is not the per-thread default stream of another one.
    pub(crate) fn is_nameable_by(&self, thread: ThisThread) -> bool {
        self.thread.is_none_or(|own| own == thread.number())
    }

    /// Returns whether a stream that the calling thread names is this one, as far as is known: a captured one, whose number
    /// no driver tells, is taken for the last one at its address.
    pub(crate) fn is_named_by(&self, stream: &Stream) -> bool {
        Self::numbered(stream, self.number).is_behind(self)
            && (self.number == Some(0) || is_still(self.number, || stream.id()))
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

/// Returns whether the stream at an address is the one that had this number, as far as is known. If the driver refuses to
/// answer, it is not.
#[inline(never)]
pub(crate) fn is_still(number: Option<u64>, now: impl FnOnce() -> Result<Option<u64>>) -> bool {
    now().is_ok_and(|now| now.is_none() || now == number)
}
