//! One handle, and what its pool knows of it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::holder::Holder;
use crate::ids::RawStream;
use crate::library::RawHandle;

/// A handle with the counters of whoever holds it. Only the holder writes to it, so plain stores suffice; others read the
/// counters for statistics. Alone in its cache lines, so that threads at work on different handles do not slow each other
/// down.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Record {
    pub(super) handle: RawHandle,
    /// Device memory that creating it took, in bytes.
    pub(super) bytes: u64,
    /// One more than the address of the stream that it last ran on; 0 if it never ran.
    stream: AtomicUsize,
    hits: AtomicU64,
    holder: AtomicU64,
    /// Whether it was told to take its device memory from us.
    has_memory: AtomicBool,
    /// The round of peaks in which it was last counted as in use; 0 for none.
    round: AtomicU64,
}

impl Record {
    pub(super) fn new(handle: RawHandle, bytes: u64) -> Self {
        Self {
            handle,
            bytes,
            stream: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            holder: AtomicU64::new(Holder::NONE),
            has_memory: AtomicBool::new(false),
            round: AtomicU64::new(0),
        }
    }

    /// Notes the stream that the handle's next calls run on.
    #[inline]
    pub(super) fn note_stream(&self, stream: RawStream) {
        self.stream.store(stream.address().wrapping_add(1), Ordering::Relaxed);
    }

    /// The stream that it last ran on, if it ever ran.
    pub(super) fn stream(&self) -> Option<RawStream> {
        self.stream.load(Ordering::Relaxed).checked_sub(1).map(RawStream::from_address)
    }

    /// Whether the handle last ran on this very stream. A per-thread default stream is another one in each thread.
    #[inline]
    pub(super) fn last_ran_on(&self, stream: RawStream) -> bool {
        stream != RawStream::PER_THREAD && self.stream() == Some(stream)
    }

    /// Notes that it was told to take its device memory from us.
    pub(super) fn note_memory(&self) {
        self.has_memory.store(true, Ordering::Relaxed);
    }

    /// Whether it was told so, and may have memory of ours.
    #[inline]
    pub(super) fn has_memory(&self) -> bool {
        self.has_memory.load(Ordering::Relaxed)
    }

    /// Notes who holds it from now on.
    #[inline]
    pub(super) fn hold(&self, holder: u64) {
        self.holder.store(holder, Ordering::Relaxed);
    }

    /// Who holds it, if anybody does.
    pub(super) fn holder(&self) -> Option<Holder> {
        Holder::from_bits(self.holder.load(Ordering::Relaxed))
    }

    /// Whether it was counted as in use in this round.
    #[inline]
    pub(super) fn is_counted(&self, round: u64) -> bool {
        self.round.load(Ordering::Relaxed) == round
    }

    /// Notes that it was counted as in use in this round.
    pub(super) fn note_counted(&self, round: u64) {
        self.round.store(round, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn count_hit(&self) {
        self.hits.store(self.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}
