//! A handle of a pool, with its state.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use super::device_pool::DevicePool;
use super::handle_queue::{HandleState, Queued};
use crate::ids::RawStream;
use crate::library::RawHandle;
use crate::runtime::{Stream, StreamIdentity};
use crate::sync::lock;

/// A handle with its state. Only its holder writes to it, so plain stores suffice; others read the counters for
/// statistics. Alone in its cache lines, so that threads with different handles do not slow each other down.
#[repr(align(128))]
pub(crate) struct PooledHandle {
    /// The pool that it goes back to.
    pub(super) home: &'static DevicePool,
    pub(super) handle: RawHandle,
    pub(super) bytes: u64,
    /// The address of the stream that it last ran on, plus one; 0 if it never ran. A request prefers a handle by it,
    /// which needs not be the right one.
    last_stream: AtomicUsize,
    /// The only stream that uses its scratch memory, if it has some and ever ran.
    ready_for: OnceLock<Mutex<StreamIdentity>>,
    hits: AtomicU64,
    pub(super) state: HandleState,
    /// The round of peaks that last counted this handle as in use; 0 for none.
    counted_round: AtomicU64,
}

impl Queued for PooledHandle {
    #[inline]
    fn state(&self) -> &HandleState {
        &self.state
    }
}

impl PooledHandle {
    pub(super) fn new(home: &'static DevicePool, handle: RawHandle, bytes: u64) -> Self {
        Self {
            home,
            handle,
            bytes,
            last_stream: AtomicUsize::new(0),
            ready_for: OnceLock::new(),
            hits: AtomicU64::new(0),
            state: HandleState::new(),
            counted_round: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn note_stream(&self, stream: RawStream) {
        self.last_stream.store(stream.address().wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns whether the handle last ran on a stream of this address. Per-thread default streams differ by thread.
    #[inline]
    pub(super) fn last_ran_on(&self, stream: RawStream) -> bool {
        stream != RawStream::PER_THREAD && self.last_stream.load(Ordering::Relaxed) == stream.address().wrapping_add(1)
    }

    /// Notes the only stream that uses the handle's scratch memory. Without its number now, the next hand-over waits
    /// for it.
    pub(super) fn note_ready_for(&self, stream: &Stream) {
        let identity = StreamIdentity::of(stream).unwrap_or_else(|_| StreamIdentity::numbered(stream, None));
        *lock(self.ready_for.get_or_init(|| Mutex::new(identity))) = identity;
    }

    /// Returns the only stream that uses the handle's scratch memory, if it has some and ever ran. Not inlined: most
    /// libraries' handles have none.
    #[inline(never)]
    pub(super) fn ready_for(&self) -> Option<StreamIdentity> {
        self.ready_for.get().map(|stream| *lock(stream))
    }

    /// Returns whether only this stream uses the handle's scratch memory; if it has none, whether it last ran on a
    /// stream of this address.
    #[inline]
    pub(super) fn is_ready_for(&self, stream: &Stream) -> bool {
        if self.ready_for.get().is_none() {
            return self.last_ran_on(stream.raw());
        }
        self.ready_for().is_some_and(|known| known.is_named_by(stream))
    }

    #[inline]
    pub(super) fn is_counted(&self, round: u64) -> bool {
        self.counted_round.load(Ordering::Relaxed) == round
    }

    pub(super) fn note_counted(&self, round: u64) {
        self.counted_round.store(round, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn count_hit(&self) {
        self.hits.store(self.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}
