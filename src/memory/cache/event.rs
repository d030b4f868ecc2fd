//! Events of memory: what happened to each block and each page, while that is recorded. An event is written where its
//! block or page changes hands, under the lock that is held there anyway. So the events of an address are in order, and
//! a snapshot that holds those locks agrees with them. A free is written before the block can be had again, an
//! allocation once it cannot.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock, RwLock};

use crate::ids::MemoryLocation;
use crate::memory::device::call_out;
use crate::memory::pool::PoolId;
use crate::observe::recording::{self, Settings, Stack};
use crate::observe::{OwnBuffer, Ring, Timed, delivery};
use crate::process;
use crate::sync::{CallbackKind, Ordering, ThisThread, read, write};

/// What the allocator did; numbered as PyTorch's actions are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MemoryAction {
    /// Memory was allocated.
    Alloc,
    /// Memory was freed; streams may still use it.
    FreeRequested,
    /// The same memory can be allocated again.
    FreeCompleted,
    /// A segment came from the driver's plain allocation or the pool's own allocator.
    SegmentAlloc,
    /// A segment is returned there.
    SegmentFree,
    /// Pages were mapped: new ones, or free ones from elsewhere.
    SegmentMap,
    /// Pages are unmapped, to be moved or released to the driver.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// Memory ran out; callbacks are called after that.
    Oom,
}

impl MemoryAction {
    /// All actions.
    pub const ALL: [Self; 9] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Oom,
    ];

    /// Returns the name that PyTorch's snapshots have for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
        }
    }

    pub(crate) const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// One thing that the allocator did.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MemoryEvent {
    pub(super) time: u64,
    /// The thread, as the operating system numbers it.
    pub thread: u32,
    pub(crate) stack: Stack,
    /// What happened.
    pub action: MemoryAction,
    /// Where the memory is.
    pub location: MemoryLocation,
    /// The start address of the block or the pages; for [`MemoryAction::Oom`] the bytes that the driver still had.
    pub address: u64,
    /// The requested bytes, those of the pages, or for [`MemoryAction::Snapshot`] all live bytes.
    pub nbytes: u64,
    /// The address of the stream whose requests the memory serves.
    pub stream: usize,
    /// The pool.
    pub pool: PoolId,
}

impl MemoryEvent {
    /// Microseconds since 1970.
    pub fn unix_micros(&self) -> u64 {
        recording::unix_micros(self.time)
    }

    pub(crate) fn nanos(&self) -> u64 {
        self.time
    }
}

impl Timed for MemoryEvent {
    fn time(&self) -> u64 {
        self.time
    }
}

static RING: LazyLock<Ring<MemoryEvent>> = LazyLock::new(|| {
    recording::add_kind(|| RING.clear());
    Ring::new()
});

thread_local! {
    static OWN: OwnBuffer<MemoryEvent> = OwnBuffer::new(&RING);
}

/// The receivers of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum To {
    /// Only the recording: the observer was called before.
    Recording,
    /// Only the observer: the event is recorded where the block or page changes hands.
    Observer,
    Both,
}

/// Writes an event to the recording and passes it to the observer, where there are such. Returns it if it was recorded.
#[inline]
pub(super) fn note(event: MemoryEvent, to: To) -> Option<MemoryEvent> {
    let event = MemoryEvent { time: recording::now(), thread: ThisThread::get().system_id(), ..event };
    if to != To::Recording && process::state().is_observed() {
        keep(event);
    }
    let settings = Settings::get();
    if to == To::Observer || !settings.has_events || settings.skipped & event.action.bit() != 0 {
        return None;
    }
    RING.note(&OWN, event, recording::most());
    Some(event)
}

/// A user's function that is called with each event.
pub(in crate::memory) type EventCallback = Arc<dyn Fn(&MemoryEvent) + Send + Sync>;

static OBSERVER: RwLock<Option<EventCallback>> = RwLock::new(None);
/// How many observations have begun: an event of an earlier one is not delivered to a later one.
static OBSERVATION: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The thread's undelivered events, each with its observation.
    static KEPT: RefCell<VecDeque<(u64, MemoryEvent)>> = const { RefCell::new(VecDeque::new()) };
}

/// Keeps an event until it can be delivered, with no lock held.
#[cold]
fn keep(event: MemoryEvent) {
    let kept = (OBSERVATION.load(Ordering::Relaxed), event);
    let _ = KEPT.try_with(|events| events.try_borrow_mut().map(|mut events| events.push_back(kept)));
}

/// Delivers the thread's events in order. The observer may cause more.
fn deliver_kept() {
    let next = || KEPT.try_with(|events| events.try_borrow_mut().ok()?.pop_front()).ok().flatten();
    while let Some((observation, event)) = next() {
        // A clone: the observer may end the observation, and is called without a lock.
        let observer = read(&OBSERVER).clone().filter(|_| observation == OBSERVATION.load(Ordering::Relaxed));
        if let Some(observer) = observer {
            call_out(CallbackKind::Observer, || observer(&event));
        }
    }
}

/// Sets the observer, which then gets every event, or removes it with none.
pub(in crate::memory) fn observe(observer: Option<EventCallback>) {
    if observer.is_some() {
        OBSERVATION.fetch_add(1, Ordering::Relaxed);
        delivery::set_deliver(deliver_kept);
        recording::start_clock();
    }
    *write(&OBSERVER) = observer;
}

/// Records that memory ran out for a request on this stream while the driver has `free` bytes left.
#[cold]
pub(in crate::memory) fn note_oom(location: MemoryLocation, stream: usize, pool: PoolId, requested: u64, free: u64) {
    let (action, stack) = (MemoryAction::Oom, recording::stack_if(Settings::get().has_alloc_stacks));
    note(
        MemoryEvent { time: 0, thread: 0, stack, action, location, address: free, nbytes: requested, stream, pool },
        To::Both,
    );
}

/// Records a snapshot of memory with so many live bytes, and returns the event.
pub(in crate::memory) fn note_snapshot(location: MemoryLocation, active: u64) -> Option<MemoryEvent> {
    let (action, stack, pool) = (MemoryAction::Snapshot, Stack::NONE, PoolId::NONE);
    note(
        MemoryEvent { time: 0, thread: 0, stack, action, location, address: 0, nbytes: active, stream: 0, pool },
        To::Both,
    )
}

/// Returns the recorded events, in order.
pub(in crate::memory) fn events() -> Vec<MemoryEvent> {
    if Settings::get().has_events { RING.newest(recording::most()) } else { Vec::new() }
}

/// Calls `see` with every recorded event.
pub(in crate::memory) fn each_event(see: impl FnMut(&MemoryEvent)) {
    RING.for_each(see);
}

#[inline]
pub(in crate::memory) fn is_recorded() -> bool {
    process::state().is_recorded()
}
