//! Snapshots: memory, block by block, at one moment, and the recorded events before it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::frozen::{Frozen, FrozenCache};
use crate::error::Result;
use crate::ids::{Device, MemoryLocation};
use crate::memory::cache::{
    DeviceCaches, Heap, HeapBlock, MemoryAction, MemoryEvent, RecordedGuard, ServingCache, events, is_recorded,
    note_snapshot,
};
use crate::memory::device::DeviceMemory;
use crate::memory::pool::{Pool, PoolId};
use crate::observe::delivery::Delivery;
use crate::observe::recording::{self, Stack};
use crate::process;

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
