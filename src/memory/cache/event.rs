//! The trace: what happened to each block and each page, while somebody records it.
//!
//! An event is written where its block or page changes hands, under the lock that is held there anyway: so events of one
//! address have the order of what happened, and a snapshot that holds those locks sees neither more nor less than they
//! say. A free is written before the block can be had again, an allocation once it cannot.

#[cfg(feature = "python")]
use std::collections::HashSet;
use std::sync::LazyLock;
use std::sync::{Mutex, MutexGuard};

use crate::ids::Device;
use crate::memory::cache::heap::BlockView;
use crate::memory::cache::thread_cache::ThreadCache;
use crate::memory::device::device_memory::DeviceMemory;
use crate::memory::pool::id::PoolId;
use crate::memory::report::frozen::{Frozen, FrozenCache};
use crate::observe::recording::{self, Settings, Stack};
use crate::observe::{Own, Ring, Timed};
use crate::process;
use crate::sync::ThisThread;
use crate::sync::lock;
use rustc_hash::FxHashMap;

/// What the allocator did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Memory was allocated.
    Alloc,
    /// Memory was freed; streams may still use it.
    FreeRequested,
    /// The same memory can be allocated again.
    FreeCompleted,
    /// A segment came from the driver's plain allocation or the pool's own allocator.
    SegmentAlloc,
    /// A segment goes back there.
    SegmentFree,
    /// Pages were mapped: new ones, or ones that were free elsewhere.
    SegmentMap,
    /// Pages leave their place, to another one or to the driver.
    SegmentUnmap,
    /// Memory ran out; callbacks are asked after that.
    Oom,
    /// A snapshot was taken.
    Snapshot,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Oom,
        Self::Snapshot,
    ];

    /// As PyTorch's snapshots name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Oom => "oom",
            Self::Snapshot => "snapshot",
        }
    }

    pub(crate) const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// One thing that the allocator did.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TraceEvent {
    time: u64,
    /// The thread, as the operating system numbers it.
    pub thread: u32,
    pub(crate) stack: Stack,
    /// What happened.
    pub action: Action,
    /// The device.
    pub device: Device,
    /// Where the block or the pages start; for [`Action::Oom`] the bytes that the driver still had.
    pub address: u64,
    /// The bytes that were asked for, those of the pages, or for [`Action::Snapshot`] all that were held.
    pub bytes: u64,
    /// The address of the stream whose requests the memory serves.
    pub stream: usize,
    /// The pool.
    pub pool: PoolId,
}

impl TraceEvent {
    /// Microseconds since 1970.
    pub fn unix_micros(&self) -> u64 {
        recording::unix_micros(self.time)
    }

    /// Nanoseconds of the clock that orders events.
    pub(crate) fn nanos(&self) -> u64 {
        self.time
    }
}

impl Timed for TraceEvent {
    fn time(&self) -> u64 {
        self.time
    }
}

static RING: LazyLock<Ring<TraceEvent>> = LazyLock::new(Ring::new);

thread_local! {
    static OWN: Own<TraceEvent> = Own::new(&RING);
}

/// A block that a caller holds, or that waits for streams.
#[derive(Clone, Copy, Debug)]
struct Known {
    requested: u64,
    stack: Stack,
    /// The stack it was freed under, once it was.
    freed: Option<Stack>,
}

/// What is recorded of one cache's blocks, by offset.
#[derive(Debug, Default)]
pub(in crate::memory) struct Live {
    pool: PoolId,
    blocks: FxHashMap<u64, Known>,
}

/// The same, locked.
pub(in crate::memory) type LiveGuard<'a> = MutexGuard<'a, Live>;

/// The part of a cache that recording needs. Locked under the heap's lock or alone, never the other way round.
#[derive(Debug, Default)]
pub(in crate::memory) struct CacheTrace(Mutex<Live>);

impl CacheTrace {
    pub(in crate::memory) fn lock(&self) -> LiveGuard<'_> {
        lock(&self.0)
    }

    pub(in crate::memory) fn set_pool(&self, pool: PoolId) {
        *self.lock() = Live { pool, ..Live::default() };
    }
}

impl Live {
    /// The stack that a block was allocated under.
    pub(in crate::memory) fn stack(&self, offset: u64) -> Stack {
        self.blocks.get(&offset).map_or(Stack::NONE, |block| block.stack)
    }

    /// Whether the block was freed, and waits for streams.
    pub(in crate::memory) fn is_freed(&self, offset: u64) -> bool {
        self.blocks.get(&offset).is_some_and(|block| block.freed.is_some())
    }

    /// Whether the block is known to be held, or to wait.
    pub(in crate::memory) fn knows(&self, offset: u64) -> bool {
        self.blocks.contains_key(&offset)
    }

    /// Begins with the blocks that there are.
    pub(in crate::memory) fn begin(&mut self, blocks: impl Iterator<Item = BlockView>) {
        // What is known already keeps its stack.
        let known = std::mem::take(&mut self.blocks);
        let blocks = blocks.filter(|block| block.is_live).map(|block| {
            let begun = Known {
                requested: block.requested,
                stack: Stack::NONE,
                freed: block.is_waiting.then_some(Stack::NONE),
            };
            (block.start, known.get(&block.start).copied().unwrap_or(begun))
        });
        self.blocks = blocks.collect();
    }

    fn note(&self, cache: &ThreadCache, action: Action, offset: u64, bytes: u64, stack: Stack) {
        let (device, address, stream) = (cache.device.device, cache.device.address(offset), cache.stream_address());
        note(TraceEvent { time: 0, thread: 0, stack, action, device, address, bytes, stream, pool: self.pool });
    }
}

#[inline]
fn note(event: TraceEvent) -> Option<TraceEvent> {
    let settings = Settings::get();
    if !settings.has_events || settings.skipped & event.action.bit() != 0 {
        return None;
    }
    let event = TraceEvent { time: recording::now(), thread: ThisThread::get().system_id(), ..event };
    RING.note(&OWN, event, recording::most());
    Some(event)
}

/// The stack, if this kind of event is to name one.
#[inline]
fn stack_if(is_wanted: bool) -> Stack {
    if is_wanted { recording::held_stack() } else { Stack::NONE }
}

impl ThreadCache {
    /// An allocation; with the heap's lock held.
    #[cold]
    pub(in crate::memory) fn trace_alloc(&self, offset: u64, requested: u64) {
        let settings = Settings::get();
        let mut live = self.trace.lock();
        let stack = stack_if(settings.has_live_stacks);
        live.blocks.insert(offset, Known { requested, stack, freed: None });
        live.note(self, Action::Alloc, offset, requested, stack_if(settings.has_alloc_stacks));
    }

    /// A free of a live block, before anybody else can have it.
    #[cold]
    pub(in crate::memory) fn trace_free(&self, offset: u64, is_completed: bool) {
        let stack = stack_if(Settings::get().has_free_stacks);
        let mut live = self.trace.lock();
        // What is not known was allocated before anything was recorded, or is no block.
        let Some(block) = live.blocks.get_mut(&offset).filter(|block| block.freed.is_none()) else { return };
        block.freed = Some(stack);
        let requested = block.requested;
        live.note(self, Action::FreeRequested, offset, requested, stack);
        if is_completed {
            live.blocks.remove(&offset);
            live.note(self, Action::FreeCompleted, offset, requested, stack);
        }
    }

    /// A freed block's streams are done; with the heap's lock held, before the block is free.
    #[cold]
    pub(in crate::memory) fn trace_completed(&self, offset: u64) {
        let mut live = self.trace.lock();
        if let Some(block) = live.blocks.remove(&offset) {
            live.note(self, Action::FreeCompleted, offset, block.requested, block.freed.unwrap_or(Stack::NONE));
        }
    }

    /// Pages, or a segment, that came or go; with the heap's lock held.
    #[cold]
    pub(in crate::memory) fn trace_segment(&self, action: Action, start: u64, bytes: u64) {
        self.trace.lock().note(self, action, start, bytes, stack_if(Settings::get().has_alloc_stacks));
    }
}

/// Memory ran out for a request, and the driver has so much.
#[cold]
pub(in crate::memory) fn note_oom(cache: &ThreadCache, pool: PoolId, requested: u64, free: u64) {
    let stack = stack_if(Settings::get().has_alloc_stacks);
    let (device, stream) = (cache.device.device, cache.stream_address());
    let action = Action::Oom;
    note(TraceEvent { time: 0, thread: 0, stack, action, device, address: free, bytes: requested, stream, pool });
}

/// A snapshot is taken of a device of which so many bytes are held.
pub(in crate::memory) fn note_snapshot(device: Device, active: u64) -> Option<TraceEvent> {
    let (action, stack, pool) = (Action::Snapshot, Stack::NONE, PoolId::NONE);
    note(TraceEvent { time: 0, thread: 0, stack, action, device, address: 0, bytes: active, stream: 0, pool })
}

fn caches() -> impl Iterator<Item = &'static ThreadCache> {
    DeviceMemory::all().flat_map(DeviceMemory::serving)
}

/// Records from now on.
pub(crate) fn begin(settings: Settings, most: usize) {
    let mut frozen = Frozen::new(|| caches().collect());
    recording::start(settings, most);
    for FrozenCache { cache, live, heap } in &mut frozen.caches {
        live.begin(heap.views(&cache.device.pages).into_iter().flatten());
    }
}

/// The events, in order.
pub(in crate::memory) fn events() -> Vec<TraceEvent> {
    if Settings::get().has_events { RING.newest(recording::most()) } else { Vec::new() }
}

/// Forgets events, and with `blocks` what is known of live blocks.
pub(crate) fn clear(blocks: bool) {
    RING.clear();
    if !blocks {
        return;
    }
    for cache in caches() {
        let known = std::mem::take(&mut cache.trace.lock().blocks);
        // Outside the lock: it may be large.
        drop(known);
    }
}

/// The stacks that events and live blocks name.
#[cfg(feature = "python")]
pub(crate) fn stacks_in_use() -> HashSet<Stack> {
    let mut stacks = HashSet::new();
    RING.visit(|event| {
        stacks.insert(event.stack);
    });
    for cache in caches() {
        stacks.extend(cache.trace.lock().blocks.values().flat_map(|block| [Some(block.stack), block.freed]).flatten());
    }
    stacks
}

/// Whether anything is recorded.
#[inline]
pub(in crate::memory) fn is_on() -> bool {
    process::state().is_recorded()
}
