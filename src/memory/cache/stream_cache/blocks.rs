//! What is done with a cache's blocks: they are freed, from any thread; other users than its stream are noted, for which a freed
//! block waits (further streams and other processes) or does not wait (other pools); and of the cache that a pool has for memory
//! ranges, whose committed pages are live blocks, each is handed out where it is asked for.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Asked, StreamCache};
use crate::memory::cache::block_user::{BlockUser, Sharing, Waiting};
use crate::memory::cache::event::{To, is_recorded};
use crate::memory::cache::heap::Heap;
use crate::memory::device::Invalid;
use crate::sync::ThisThread;

/// Answers to a free: the block is free, or there is none; no answer: it was freed before.
const FREED: u64 = 0;
const NO_BLOCK: u64 = 1;

/// No block starts there.
const NOWHERE: u64 = u64::MAX;

fn has(users: &[BlockUser], wanted: &BlockUser) -> bool {
    users.iter().any(|user| user.is(wanted))
}

impl StreamCache {
    /// Frees a block of this cache, which was just looked up, from any thread.
    #[inline]
    pub(in crate::memory) fn free(&self, thread: ThisThread, offset: u64) -> Result<(), Invalid> {
        match self.lock_fast(thread) {
            Some(mut heap) => heap.free(&self.memory.pages, offset),
            None => self.free_beside_others(thread, offset),
        }
    }

    #[cold]
    fn free_beside_others(&self, thread: ThisThread, offset: u64) -> Result<(), Invalid> {
        match self.serve_beside_others(thread, Asked::Free { offset }) {
            Some(FREED) => Ok(()),
            Some(NO_BLOCK) => Err(Invalid::NotABlock),
            _ => Err(Invalid::Freed),
        }
    }

    /// Frees a block with the heap locked. Returns the answer.
    pub(super) fn free_locked(&self, heap: &mut Heap, offset: u64) -> Option<u64> {
        // For a wrong second free, the page may be another cache's by now.
        let freed = if self.has_block_at(offset) { heap.free(&self.memory.pages, offset) } else { Err(Invalid::Freed) };
        match freed {
            Ok(()) => Some(FREED),
            Err(Invalid::NotABlock) => Some(NO_BLOCK),
            Err(Invalid::Freed) => None,
        }
    }

    /// Makes a block wait for streams before it is free.
    pub(in crate::memory) fn begin_waiting(&self, thread: ThisThread, offset: u64) -> Result<(), Invalid> {
        let mut heap = self.lock(thread);
        if self.has_block_at(offset) { heap.begin_waiting(&self.memory.pages, offset) } else { Err(Invalid::Freed) }
    }

    /// Refuses an offset at which no block starts that a caller holds.
    pub(in crate::memory) fn check_live(&self, offset: u64) -> Result<(), Invalid> {
        self.memory.pages.entry(offset).check_live()
    }

    /// Notes another user of a live block.
    pub(in crate::memory) fn add_use(&self, offset: u64, user: BlockUser) {
        self.uses.change(|uses| {
            let users = uses.entry(offset).or_default();
            if users.iter().all(|known| !known.is(&user)) {
                users.push(user);
            }
        });
    }

    /// Returns how other processes use a live block, from now on; made if it is not shared yet.
    pub(in crate::memory) fn share_block(&self, offset: u64) -> Arc<Sharing> {
        self.uses.change(|uses| {
            let users = uses.entry(offset).or_default();
            let known = users.iter().find_map(BlockUser::sharing);
            known.cloned().unwrap_or_else(|| {
                let sharing = Arc::<Sharing>::default();
                users.push(BlockUser::Processes(Arc::clone(&sharing)));
                sharing
            })
        })
    }

    /// Returns whether any block has users other than its stream.
    #[inline]
    pub(in crate::memory) fn has_uses(&self) -> bool {
        !self.uses.is_empty()
    }

    /// Returns the offsets of blocks that other pools use.
    pub(in crate::memory) fn used_by_other_pools(&self) -> Vec<u64> {
        self.uses.change(|uses| {
            let lent = uses.iter().filter(|(_, users)| has(users, &BlockUser::OtherPool));
            lent.map(|(offset, _)| *offset).collect()
        })
    }

    pub(in crate::memory) fn is_gpupools(&self, offset: u64) -> bool {
        let is_own = |users: &Vec<BlockUser>| has(users, &BlockUser::Gpupool);
        self.has_uses() && self.uses.change(|uses| uses.get(&offset).is_some_and(is_own))
    }

    pub(in crate::memory) fn all_uses(&self) -> Vec<(u64, Vec<BlockUser>)> {
        let copy = |(offset, users): (&u64, &Vec<BlockUser>)| (*offset, users.clone());
        self.uses.change(|uses| uses.iter().map(copy).collect())
    }

    /// Forgets the further users of all blocks but those at kept offsets, whose streams may be gone by the free.
    /// Returns the forgotten ones, to be dropped without locks: the last clone of a stream destroys it.
    #[must_use]
    pub(in crate::memory) fn keep_uses(&self, is_kept: impl Fn(u64) -> bool) -> HashMap<u64, Vec<BlockUser>> {
        self.uses.change(|uses| {
            let (kept, forgotten) = std::mem::take(uses).into_iter().partition(|(offset, _)| is_kept(*offset));
            *uses = kept;
            uses.values_mut().for_each(|users| users.iter_mut().for_each(BlockUser::become_fleeting));
            forgotten
        })
    }

    /// Notes that the further streams of a block may be gone by its free.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn let_streams_end(&self, offset: u64) {
        self.uses.change(|uses| uses.get_mut(&offset).into_iter().flatten().for_each(BlockUser::become_fleeting));
    }

    /// Returns the further users of a block, which end with it.
    pub(in crate::memory) fn take_uses(&self, offset: u64) -> Vec<BlockUser> {
        self.uses.change(|uses| uses.remove(&offset).unwrap_or_default())
    }

    /// Notes that its blocks are pages of ranges, so that callers who name one by its address are refused: each look-up of
    /// a block asks for its further users first.
    pub(super) fn hold_for_ranges(&self) {
        self.add_use(NOWHERE, BlockUser::Gpupool);
    }

    pub(super) fn end_hold_for_ranges(&self) {
        if self.has_uses() {
            self.take_uses(NOWHERE);
        }
    }

    /// Returns whether its blocks are the pages of memory ranges.
    pub(in crate::memory) fn is_of_ranges(&self) -> bool {
        self.has_uses() && self.is_gpupools(NOWHERE)
    }

    /// Hands out those of these places that are free, and returns them.
    pub(in crate::memory) fn allocate_each(&self, heap: &mut Heap, places: &[u64], bytes: u64) -> Vec<u64> {
        let is_here = |offset: &u64| self.memory.pages.is_of(*offset, self.number);
        let places = places.iter().copied().filter(is_here);
        let live: Vec<_> = places.filter(|&at| heap.allocate_at(&self.memory.pages, at, bytes).is_some()).collect();
        if is_recorded() {
            live.iter().for_each(|&offset| self.record_alloc(offset, bytes));
        }
        live
    }

    /// Makes freed blocks live again that wait for streams, and returns them.
    pub(in crate::memory) fn resume_each(
        &self,
        heap: &mut Heap,
        places: impl Iterator<Item = u64>,
        bytes: u64,
    ) -> Vec<u64> {
        let resumed: Vec<_> = places.filter(|&offset| heap.resume(&self.memory.pages, offset)).collect();
        if is_recorded() {
            for &offset in &resumed {
                self.note_completed(offset, To::Observer);
                self.note_completed(offset, To::Recording);
                self.record_alloc(offset, bytes);
            }
        }
        resumed
    }

    /// Makes live blocks wait for what `waiting` waits for, and those beside it.
    ///
    /// # Errors
    /// The first that is not live. Those before it wait all the same.
    pub(in crate::memory) fn begin_waiting_each(&self, thread: ThisThread, waiting: &Waiting) -> Result<(), Invalid> {
        let mut heap = self.lock(thread);
        waiting.offsets().try_for_each(|offset| {
            if self.has_block_at(offset) { heap.begin_waiting(&self.memory.pages, offset) } else { Err(Invalid::Freed) }
        })
    }
}
