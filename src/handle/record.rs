//! One handle, and what its pool knows of it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::library::RawHandle;
use crate::stream::RawStream;

/// A handle with the counters of the thread that holds it. Only that thread writes to it, so plain stores suffice;
/// others read the counters for statistics.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) handle: RawHandle,
    /// Device memory that creating it took, in bytes.
    pub(super) bytes: u64,
    stream: AtomicUsize,
    hits: AtomicU64,
}

impl Record {
    pub(super) fn new(handle: RawHandle, bytes: u64) -> Self {
        Self { handle, bytes, stream: AtomicUsize::new(0), hits: AtomicU64::new(0) }
    }

    /// Notes the stream that the handle's next calls run on.
    #[inline]
    pub(super) fn note_stream(&self, stream: RawStream) {
        self.stream.store(stream.address(), Ordering::Relaxed);
    }

    /// Whether the handle last ran on this very stream. A per-thread default stream is another one in each thread.
    pub(super) fn last_ran_on(&self, stream: RawStream) -> bool {
        stream != RawStream::PER_THREAD && self.stream.load(Ordering::Relaxed) == stream.address()
    }

    #[inline]
    pub(super) fn count_hit(&self) {
        self.hits.store(self.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}
