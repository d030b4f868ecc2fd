//! What a heap publishes in its pool's ledger, so that others need not lock it: an upper bound of its live bytes, the
//! most that it has needed, and whether it may have free pages. A rise of the live bytes is published before the block is
//! handed out, somewhat ahead if rises follow each other. A fall is published when pages go, and, if the pool has several heaps, once it is a MiB, so that the sum
//! peaks where the live bytes do. If threads collide there, falls wait until pages go, and the peak is too high by
//! them.

use std::sync::Arc;

use super::Heap;
use super::block::NONE;
use crate::memory::pool::Ledger;
use crate::memory::tuning::{PAGE, PUBLISHED_AHEAD_PARTS, PUBLISHED_SLACK};

/// The ledger of a heap's pool, and the heap's number there, which is its cache's [`birth`](super::super::ServingCache::birth).
#[derive(Debug)]
pub(in crate::memory) struct HeapLedger {
    pub(in crate::memory) ledger: Arc<Ledger>,
    pub(in crate::memory) birth: u64,
}

/// What a heap has published, and when it publishes next.
#[derive(Debug)]
pub(super) struct Published {
    /// Where it publishes.
    ledger: Option<HeapLedger>,
    /// A free block from this size on is published as free pages; `u64::MAX` while that is published already.
    pub(super) from: u64,
    /// A fall of the live bytes below this is published at once; 0 if only where pages go.
    pub(super) least: u64,
    /// Whether another thread published at the same time, since pages last went.
    is_disturbed: bool,
    /// Whether the block being allocated is the one that memory was just added for.
    pub(super) is_growing: bool,
}

impl Default for Published {
    fn default() -> Self {
        Self { ledger: None, from: PAGE, least: 0, is_disturbed: false, is_growing: false }
    }
}

impl Published {
    /// Returns whether the bound stays within a MiB of the live bytes: with several heaps, while none collide.
    fn is_exact(&self) -> bool {
        !self.is_disturbed && self.ledger.as_ref().is_some_and(|to| to.ledger.is_of_several())
    }
}

impl Heap {
    /// Begins to publish in a ledger that does not know this heap, which is empty.
    pub(super) fn begin_publishing(&mut self, ledger: HeapLedger) {
        self.counts.publish(0);
        ledger.ledger.begin_heap();
        self.published.ledger = Some(ledger);
    }

    /// Publishes that more is live.
    #[cold]
    #[inline(never)]
    pub(super) fn publish_rise(&mut self) {
        let is_repeated = self.counts.allocations_since_published() < PUBLISHED_AHEAD_PARTS;
        let ahead = if is_repeated && !self.published.is_growing { self.mapped / PUBLISHED_AHEAD_PARTS } else { 0 };
        let most_ahead = if self.published.is_exact() { PUBLISHED_SLACK } else { u64::MAX };
        self.publish_bound(self.counts.live().saturating_add(ahead.min(most_ahead)).min(self.mapped));
    }

    /// Publishes that less is live.
    #[cold]
    #[inline(never)]
    pub(super) fn publish_fall(&mut self) {
        self.publish_bound(self.counts.live());
    }

    /// Publishes the live bytes, and from now on falls at once if there are other heaps.
    pub(in crate::memory) fn publish_live(&mut self) {
        self.published.is_disturbed = false;
        self.publish_bound(self.counts.live());
    }

    fn publish_bound(&mut self, live: u64) {
        let Some(HeapLedger { ledger, .. }) = &self.published.ledger else { return };
        let before = self.counts.publish(live);
        self.published.is_disturbed |= before != live && ledger.change_live(before, live);
        self.published.least = if self.published.is_exact() { live.saturating_sub(PUBLISHED_SLACK) } else { 0 };
    }

    /// Publishes what was needed at the most.
    pub(super) fn publish_needed(&self, before: u64, now: u64) {
        if let Some(HeapLedger { ledger, .. }) = &self.published.ledger {
            ledger.change_needed(before, now);
        }
    }

    /// Publishes that there may be free pages.
    #[cold]
    pub(super) fn publish_pages(&mut self) {
        self.published.from = u64::MAX;
        if let Some(HeapLedger { ledger, birth }) = &self.published.ledger {
            ledger.add_with_pages(*birth);
        }
    }

    /// Returns whether a free block is as large as a page.
    pub(in crate::memory) fn has_free_page(&self) -> bool {
        self.map.find(PAGE) != NONE
    }

    /// Ends the publication of free pages unless there are some. Returns whether they were published.
    pub(in crate::memory) fn withdraw_if_no_pages(&mut self) -> bool {
        let Some(HeapLedger { ledger, birth }) = self.published.ledger.as_ref().filter(|_| !self.has_free_page())
        else {
            return false;
        };
        self.published.from = PAGE;
        ledger.remove_with_pages(*birth)
    }
}
