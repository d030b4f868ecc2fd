//! What is recorded of a cache's blocks: the live ones, with their allocations' stacks; and how a cache writes events.

use std::sync::{Mutex, MutexGuard};

use rustc_hash::FxHashMap;

use super::event::{MemoryAction, MemoryEvent, To, is_recorded, note};
use super::heap::HeapBlock;
use super::stream_cache::StreamCache;
use crate::memory::pool::PoolId;
use crate::observe::recording::{self, Settings, Stack};
use crate::sync::lock;

/// A block that a caller holds, or that waits for streams.
#[derive(Clone, Copy, Debug)]
struct RecordedBlock {
    requested: u64,
    stack: Stack,
    /// The stack that it was freed under, if it was.
    freed: Option<Stack>,
}

/// When a freed block can be had again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum Freed {
    AtOnce,
    /// Once what it waits for is done.
    Later,
}

/// What is recorded of one cache's blocks, by offset.
#[derive(Debug, Default)]
pub(in crate::memory) struct RecordedBlocks {
    pool: PoolId,
    blocks: FxHashMap<u64, RecordedBlock>,
}

pub(in crate::memory) type RecordedGuard<'a> = MutexGuard<'a, RecordedBlocks>;

/// What recording needs of a cache. Locked under the heap's lock or alone, never the other way round.
#[derive(Debug, Default)]
pub(in crate::memory) struct CacheRecording(Mutex<RecordedBlocks>);

impl CacheRecording {
    pub(in crate::memory) fn lock(&self) -> RecordedGuard<'_> {
        lock(&self.0)
    }

    pub(in crate::memory) fn set_pool(&self, pool: PoolId) {
        *self.lock() = RecordedBlocks { pool, ..RecordedBlocks::default() };
    }

    /// Forgets these stacks, in every block.
    pub(in crate::memory) fn forget_stacks(&self, is_such: impl Fn(Stack) -> bool) {
        let kept = |stack| if is_such(stack) { Stack::NONE } else { stack };
        for block in self.lock().blocks.values_mut() {
            block.stack = kept(block.stack);
            block.freed = block.freed.map(kept);
        }
    }

    pub(in crate::memory) fn clear(&self) {
        let forgotten = std::mem::take(&mut self.lock().blocks);
        // Dropped outside the lock, since it may be large.
        drop(forgotten);
    }
}

impl RecordedBlocks {
    /// Returns the stack that a block was allocated under.
    pub(in crate::memory) fn stack(&self, offset: u64) -> Stack {
        self.blocks.get(&offset).map_or(Stack::NONE, |block| block.stack)
    }

    /// Returns whether the block was freed, and waits for streams.
    pub(in crate::memory) fn is_freed(&self, offset: u64) -> bool {
        self.blocks.get(&offset).is_some_and(|block| block.freed.is_some())
    }

    /// Returns whether the block is known.
    pub(in crate::memory) fn knows(&self, offset: u64) -> bool {
        self.blocks.contains_key(&offset)
    }

    /// Returns the stacks that the blocks were allocated and freed under.
    pub(in crate::memory) fn stacks(&self) -> impl Iterator<Item = Stack> {
        self.blocks.values().flat_map(|block| [Some(block.stack), block.freed]).flatten()
    }

    /// Begins to record with the present blocks.
    pub(in crate::memory) fn begin(&mut self, blocks: impl Iterator<Item = HeapBlock>) {
        // Known blocks keep their stacks.
        let known = std::mem::take(&mut self.blocks);
        let blocks = blocks.filter(|block| block.is_live).map(|block| {
            let begun = RecordedBlock {
                requested: block.requested,
                stack: Stack::NONE,
                freed: block.is_waiting.then_some(Stack::NONE),
            };
            (block.start, known.get(&block.start).copied().unwrap_or(begun))
        });
        self.blocks = blocks.collect();
    }

    fn note(&self, cache: &StreamCache, action: MemoryAction, offset: u64, nbytes: u64, stack: Stack, to: To) {
        let (location, address, stream) = (cache.memory.location, cache.memory.address(offset), cache.stream_address());
        let pool = self.pool;
        note(MemoryEvent { time: 0, thread: 0, stack, action, location, address, nbytes, stream, pool }, to);
    }
}

impl StreamCache {
    /// Ends a recording of this cache, whose `recorded` is locked, but leaves live blocks the stacks that a plug took.
    pub(in crate::memory) fn keep_stacks(&self, recorded: &mut RecordedBlocks) {
        recorded.blocks.retain(|_, block| block.stack.is_of_plug() && block.freed.is_none());
        recorded.blocks.shrink_to_fit();
        self.set_keeps_stacks(!recorded.blocks.is_empty());
    }

    /// Notes the free of a live block before it can be had again: records it, or forgets the stack that an ended
    /// recording left.
    pub(in crate::memory) fn note_free(&self, offset: u64, freed: Freed) {
        if is_recorded() {
            self.record_free(offset, freed);
        } else if self.keeps_stacks() {
            self.forget_stack(offset);
        }
    }

    #[cold]
    fn forget_stack(&self, offset: u64) {
        let mut recorded = self.recording.lock();
        recorded.blocks.remove(&offset);
        if recorded.blocks.is_empty() {
            self.set_keeps_stacks(false);
        }
    }

    /// Records an allocation; with the heap's lock held.
    #[cold]
    pub(in crate::memory) fn record_alloc(&self, offset: u64, requested: u64) {
        let settings = Settings::get();
        let mut recorded = self.recording.lock();
        let stack = recording::stack_if(settings.has_live_stacks);
        recorded.blocks.insert(offset, RecordedBlock { requested, stack, freed: None });
        let stack = recording::stack_if(settings.has_alloc_stacks);
        recorded.note(self, MemoryAction::Alloc, offset, requested, stack, To::Both);
    }

    #[cold]
    fn record_free(&self, offset: u64, freed: Freed) {
        let stack = recording::stack_if(Settings::get().has_free_stacks);
        let mut recorded = self.recording.lock();
        // A recording that has ended since keeps nothing but stacks of live blocks.
        if !is_recorded() {
            drop(recorded);
            return self.forget_stack(offset);
        }
        // An unknown block was allocated before the recording, or does not exist.
        let Some(block) = recorded.blocks.get_mut(&offset).filter(|block| block.freed.is_none()) else { return };
        block.freed = Some(stack);
        let requested = block.requested;
        recorded.note(self, MemoryAction::FreeRequested, offset, requested, stack, To::Both);
        if freed == Freed::AtOnce {
            recorded.blocks.remove(&offset);
            recorded.note(self, MemoryAction::FreeCompleted, offset, requested, stack, To::Both);
        }
    }

    /// Notes that a freed block's streams are done, before the block is free: calls the observer, then records it and
    /// forgets the block, with the heap's lock held.
    #[cold]
    pub(in crate::memory) fn note_completed(&self, offset: u64, to: To) {
        let mut recorded = self.recording.lock();
        let Some(&RecordedBlock { requested, freed, .. }) = recorded.blocks.get(&offset) else { return };
        recorded.note(self, MemoryAction::FreeCompleted, offset, requested, freed.unwrap_or(Stack::NONE), to);
        if to == To::Recording {
            recorded.blocks.remove(&offset);
        }
    }

    /// Records pages or a segment that come or go; with the heap's lock held, unless only the observer gets the event.
    #[cold]
    pub(in crate::memory) fn record_segment(&self, to: To, action: MemoryAction, start: u64, bytes: u64) {
        let stack = recording::stack_if(Settings::get().has_alloc_stacks);
        self.recording.lock().note(self, action, start, bytes, stack, to);
    }
}
