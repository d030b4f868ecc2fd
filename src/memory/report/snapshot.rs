//! Memory at one moment: snapshots, block by block, with the recorded events before it; live blocks, found by address; and
//! the beginning and the end of a recording. A reader of several caches has them stand still, so that it sees one moment.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::ids::{Device, MemoryLocation};
use crate::memory::cache::{
    DeviceCaches, EventCallback, Heap, HeapBlock, MemoryAction, MemoryEvent, RecordedGuard, ServingCache, each_event,
    events, is_recorded, note_snapshot, observe,
};
use crate::memory::device::DeviceMemory;
use crate::memory::pool::{Pool, PoolId};
use crate::memory::serve::{self, Allocation};
use crate::observe::delivery::Delivery;
use crate::observe::recording::{self, Settings, Stack};
use crate::process;
use crate::sync::{OwnerGuard, lock};

/// A contiguous range of memory, and its blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SegmentView {
    /// Where it is.
    pub location: MemoryLocation,
    /// The start address.
    pub address: u64,
    /// The size in bytes.
    pub nbytes: u64,
    /// The address of the stream whose requests it serves.
    pub stream: usize,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Whether its pages can be moved.
    pub is_movable: bool,
    /// Whether it is asleep: its addresses are reserved, without device memory.
    pub is_asleep: bool,
    /// The stack of the request for which its start was mapped.
    pub(crate) stack: Stack,
    /// Its blocks, sorted by address.
    pub blocks: Vec<BlockView>,
}

/// A block, free or live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BlockView {
    /// The start address.
    pub address: u64,
    /// The size in bytes.
    pub nbytes: u64,
    /// The requested size in bytes; 0 if it is free.
    pub requested: u64,
    /// Whether it is live, or was freed and waits for streams.
    pub is_live: bool,
    /// Whether it was freed and waits for streams.
    pub is_waiting: bool,
    /// The stack that it was allocated under.
    pub(crate) stack: Stack,
    /// Whether it is a slot of a slab, or free in one: see [`SMALL_MAX`](crate::memory::tuning::SMALL_MAX).
    pub(crate) is_small: bool,
    /// Whether the recording knows it.
    is_known: bool,
}

/// Memory at one moment, and the events recorded before it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MemorySnapshot {
    /// The memory.
    pub segments: Vec<SegmentView>,
    /// The recorded events, in order. Undone from the last to the first, they lead from the segments back to the
    /// initial state.
    pub events: Vec<MemoryEvent>,
}

fn segments(frozen: &Frozen) -> Vec<SegmentView> {
    frozen.caches.iter().flat_map(segments_of).collect()
}

/// Returns the view of gapless memory, without blocks.
pub(super) fn segment_view(cache: &ServingCache, heap: &Heap, range: Range<u64>) -> SegmentView {
    let (memory, pool) = (cache.memory, cache.pool());
    SegmentView {
        location: memory.location,
        address: memory.address(range.start),
        nbytes: range.end - range.start,
        stream: cache.stream_address(),
        pool: pool.id,
        // A segment for one block stays where it is.
        is_movable: !pool.no_split() && memory.pages.mapping(range.start).is_some(),
        is_asleep: heap.is_asleep(),
        stack: Stack::NONE,
        blocks: Vec::new(),
    }
}

pub(super) fn block_view(memory: &DeviceMemory, recorded: &RecordedGuard<'_>, block: HeapBlock) -> BlockView {
    let HeapBlock { start, size, requested, is_live, is_waiting, is_small } = block;
    BlockView {
        address: memory.address(start),
        nbytes: size,
        requested,
        is_live,
        // Also if the free is recorded and about to be done.
        is_waiting: is_waiting || (is_live && recorded.is_freed(start)),
        stack: if is_live { recorded.stack(start) } else { Stack::NONE },
        is_small,
        is_known: recorded.knows(start),
    }
}

fn segments_of(FrozenCache { cache, recorded, heap }: &FrozenCache) -> Vec<SegmentView> {
    let view = |span: Vec<HeapBlock>| {
        let start = span.first()?.start;
        let range = start..start + span.iter().map(|block| block.size).sum::<u64>();
        let blocks = span.into_iter().map(|block| block_view(cache.memory, recorded, block)).collect();
        Some(SegmentView { blocks, ..segment_view(cache, heap, range) })
    };
    heap.views(&cache.memory.pages).into_iter().filter_map(view).collect()
}

pub(in crate::memory) fn segments_of_pool(pool: &Pool) -> Vec<SegmentView> {
    segments(&Frozen::of(pool))
}

/// Returns the serving caches of a device, or of all.
pub(super) fn caches(device: Option<Device>) -> Vec<Arc<ServingCache>> {
    let wanted = DeviceCaches::all().filter(|caches| device.is_none_or(|device| caches.memory.location == device));
    wanted.flat_map(|caches| caches.pools.serving()).collect()
}

/// Returns the memory of every pool on every device that was used.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn memory_snapshot() -> Result<Vec<SegmentView>> {
    process::refuse_forked()?;
    Ok(segments(&Frozen::new(|| caches(None))))
}

/// Returns the memory of a device, or of all, and what was recorded. Allocations wait meanwhile.
pub(crate) fn take_snapshot(device: Option<Device>) -> Result<MemorySnapshot> {
    process::refuse_forked()?;
    let _delivery = Delivery::at_end();
    let frozen = Frozen::new(|| caches(device));
    let mut segments = segments(&frozen);
    if !is_recorded() {
        return Ok(MemorySnapshot { segments, events: Vec::new() });
    }
    let mut events = events();
    events.retain(|event| event.nanos() <= frozen.time && device.is_none_or(|device| event.location == device));
    end_frees(&mut segments, &events);
    let used = DeviceCaches::all().map(|caches| caches.memory.location);
    for location in used.filter(|&used| device.is_none_or(|device| used == device)) {
        let blocks = segments.iter().filter(|segment| segment.location == location).flat_map(|segment| &segment.blocks);
        let active = blocks.filter(|block| block.is_live).map(|block| block.nbytes).sum();
        events.extend(note_snapshot(location, active));
    }
    drop(frozen);
    events.drain(..events.len().saturating_sub(recording::most()));
    name_stacks(&mut segments, &events);
    Ok(MemorySnapshot { segments, events })
}

/// Marks blocks as free whose free another thread has recorded and not yet done.
fn end_frees(segments: &mut [SegmentView], events: &[MemoryEvent]) {
    let mut unknown: HashMap<(MemoryLocation, u64), &mut BlockView> = HashMap::new();
    for segment in segments {
        let location = segment.location;
        let blocks = segment.blocks.iter_mut().filter(|block| block.is_live && !block.is_known);
        unknown.extend(blocks.map(|block| ((location, block.address), block)));
    }
    for event in events.iter().rev() {
        if unknown.is_empty() {
            return;
        }
        let is_of_block =
            matches!(event.action, MemoryAction::Alloc | MemoryAction::FreeRequested | MemoryAction::FreeCompleted);
        if is_of_block
            && let Some(block) = unknown.remove(&(event.location, event.address))
            && event.action == MemoryAction::FreeCompleted
        {
            *block = BlockView { requested: 0, is_live: false, is_waiting: false, stack: Stack::NONE, ..*block };
        }
    }
}

/// Gives each segment the stack of the last request for which its start was mapped.
fn name_stacks(segments: &mut [SegmentView], events: &[MemoryEvent]) {
    segments.sort_by_key(|segment| (segment.location, segment.address));
    let mut is_named = vec![false; segments.len()];
    let mapped = |event: &&MemoryEvent| matches!(event.action, MemoryAction::SegmentMap | MemoryAction::SegmentAlloc);
    for event in events.iter().rev().filter(mapped) {
        let place = |address| segments.partition_point(|one| (one.location, one.address) < (event.location, address));
        for index in place(event.address)..place(event.address + event.nbytes) {
            if !std::mem::replace(&mut is_named[index], true) {
                segments[index].stack = event.stack;
            }
        }
    }
}

/// Returns the live block that starts at an address, and the gapless memory that it is cut from.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; `ErrorKind::Forked` in a forked child.
pub(crate) fn live_block(address: u64) -> Result<(SegmentView, BlockView)> {
    process::refuse_forked()?;
    let block = serve::find(address, None)?;
    serve::check_live(block)?;
    let cache = block.cache;
    let heap = cache.lock_by_mutex();
    let found = heap.live_block(&cache.memory.pages, block.offset).zip(cache.serving());
    let Some(((block, segment), of)) = found else {
        return Err(Error::invalid_value(format!("the block at {address:#x} was freed meanwhile by another thread")));
    };
    let recorded = cache.recording.lock();
    let segment = segment_view(&of, &heap, segment);
    let mut found = block_view(cache.memory, &recorded, block);
    // It was held when it was looked up, even if another thread has recorded its free since.
    found.is_waiting = false;
    Ok((segment, found))
}

/// Returns the start and the requested bytes of the live block that contains an address.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; `ErrorKind::Forked` in a forked child.
pub(in crate::memory) fn block_around(address: u64) -> Result<(u64, u64)> {
    process::refuse_forked()?;
    let Allocation { cache, offset } = serve::find(address, None)?;
    let memory = cache.memory;
    let heap = cache.lock_by_mutex();
    if let Some((found, _)) = heap.live_block(&memory.pages, offset) {
        return Ok((address, found.requested));
    }
    // Any address but a block's start takes a search.
    let blocks = heap.views(&memory.pages).into_iter().flatten();
    let held = blocks.filter(|block| block.is_live && !block.is_waiting);
    let around = held.filter(|block| (block.start..block.start + block.requested).contains(&offset));
    around.map(|block| (memory.address(block.start), block.requested)).next().ok_or_else(|| {
        Error::invalid_value(format!(
            "{address:#x} lies in no block that gpupool has handed out; give a pointer into one"
        ))
    })
}

/// A cache in which nothing is allocated or freed as long as this lives.
#[derive(Debug)]
pub(in crate::memory) struct FrozenCache {
    pub(in crate::memory) cache: Arc<ServingCache>,
    pub(in crate::memory) recorded: RecordedGuard<'static>,
    pub(in crate::memory) heap: OwnerGuard<'static, Heap>,
}

/// Caches in which nothing is allocated or freed as long as this lives, which must be short: their threads wait.
#[derive(Debug)]
pub(in crate::memory) struct Frozen {
    pub(in crate::memory) caches: Vec<FrozenCache>,
    /// The moment. Other caches had nothing before it.
    pub(in crate::memory) time: u64,
    /// Only its holder locks two caches at once, so that no threads wait in a circle.
    _alone: MutexGuard<'static, ()>,
    /// Dropped after the locks: the last name of a cache that has ended drops its stream.
    named: Vec<Arc<ServingCache>>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Frozen {
    /// Freezes the caches of a pool.
    pub(in crate::memory) fn of(pool: &Pool) -> Self {
        Self::new(|| DeviceCaches::caches_of(pool))
    }

    /// Freezes the caches that `list` returns, also those made meanwhile.
    pub(in crate::memory) fn new(list: impl Fn() -> Vec<Arc<ServingCache>>) -> Self {
        let alone = lock(&ALONE);
        let mut frozen = Self { caches: Vec::new(), time: 0, _alone: alone, named: Vec::new() };
        let mut known = HashSet::new();
        loop {
            let before = frozen.caches.len();
            for cache in list() {
                if known.insert(Arc::as_ptr(&cache)) {
                    // By the mutex, also for this thread's own caches: as the owner it would block threads that only
                    // read its cache.
                    let (heap, recorded) = (cache.cache.lock_by_mutex(), cache.cache.recording.lock());
                    frozen.named.push(Arc::clone(&cache));
                    frozen.caches.push(FrozenCache { cache, recorded, heap });
                }
            }
            if frozen.caches.len() == before {
                return frozen;
            }
            frozen.time = recording::now();
        }
    }
}

/// Makes the present blocks known, at the moment of `begin`.
fn begin_with_blocks(begin: impl FnOnce()) {
    let mut frozen = Frozen::new(|| caches(None));
    begin();
    for FrozenCache { cache, recorded, heap } in &mut frozen.caches {
        recorded.begin(heap.views(&cache.memory.pages).into_iter().flatten());
    }
}

/// Starts to record, with room for `most` events. Under [`recording::lock_changes`].
pub(crate) fn begin_recording(settings: Settings, most: usize) {
    begin_with_blocks(|| recording::start(settings, most));
}

/// Ends recording, and forgets what was recorded, of handles too. Under [`recording::lock_changes`].
pub(crate) fn end_recording() {
    recording::stop();
    recording::forget_events();
    for cache in caches(None) {
        // The observer needs the blocks' events when they are freed, but not the stacks.
        if process::state().is_observed() {
            cache.recording.forget_stacks(|_| true);
        } else {
            cache.recording.clear();
        }
    }
}

/// Sets the observer, which is called with each event. Under [`recording::lock_changes`].
pub(crate) fn begin_observing(observer: EventCallback) {
    begin_with_blocks(|| {
        observe(Some(observer));
        process::set_observed(true);
    });
}

/// As [`end_recording`], but live blocks keep a plug's stacks until they are freed.
pub(crate) fn end_recording_with_stacks() {
    if process::state().is_observed() {
        recording::stop();
        caches(None).into_iter().for_each(|cache| cache.recording.forget_stacks(|stack| !stack.is_of_plug()));
    } else {
        end_but_for_stacks(recording::stop);
    }
    recording::forget_events();
}

/// Forgets all blocks from the moment of `end` on, but for the plugs' stacks of live ones.
fn end_but_for_stacks(end: impl FnOnce()) {
    let mut frozen = Frozen::new(|| caches(None));
    for FrozenCache { cache, recorded, .. } in &mut frozen.caches {
        cache.keep_stacks(recorded);
    }
    end();
}

/// Removes the observer. Under [`recording::lock_changes`].
pub(crate) fn end_observing() {
    observe(None);
    if process::state().is_only_observed() {
        end_but_for_stacks(|| process::set_observed(false));
    } else {
        process::set_observed(false);
    }
}

pub(crate) fn stacks_in_use() -> HashSet<Stack> {
    let mut stacks = HashSet::new();
    each_event(|event| _ = stacks.insert(event.stack));
    for cache in caches(None) {
        stacks.extend(cache.recording.lock().stacks());
    }
    stacks
}
