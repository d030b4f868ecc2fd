//! What a heap tells its pool's ledger, so that others need not lock it to know: how much is live at most, and that it
//! may have free pages.
//!
//! More than was told is told before the block is handed out, with a little ahead where it rises again and again. Less is
//! told where pages go, and now and then where blocks and slabs are freed. So the hot path seldom touches what threads
//! share.

use std::sync::Arc;

use super::Heap;
use super::block::NONE;
use crate::memory::pool::Ledger;
use crate::memory::tuning::{LOOK_EVERY, PAGE, TOLD_PARTS};

/// The ledger of a heap's pool, and the number of the cache that it knows the heap by.
#[derive(Debug)]
pub(in crate::memory) struct HeapLedger {
    pub(in crate::memory) ledger: Arc<Ledger>,
    pub(in crate::memory) cache: u32,
}

/// What a pool's ledger knows of a heap, and when it is to know more.
#[derive(Debug)]
pub(super) struct Telling {
    /// Who is told what is live here, and that there are free pages.
    ledger: Option<HeapLedger>,
    /// The least size of a free block that is told as free pages; none is while that is told already.
    pub(super) from: u64,
    /// The turnover at which it is looked next whether much less is live than was told.
    pub(super) next_look: u64,
    /// Whether the block under way is the one that memory was just added for.
    pub(super) is_growing: bool,
}

impl Default for Telling {
    fn default() -> Self {
        Self { ledger: None, from: PAGE, next_look: 0, is_growing: false }
    }
}

impl Heap {
    /// Begins to tell a ledger that knows nothing of this heap, which is empty.
    pub(super) fn begin_telling(&mut self, ledger: HeapLedger) {
        self.counts.tell(0);
        self.telling.ledger = Some(ledger);
    }

    /// Tells that more is live than was told.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_rise(&mut self) {
        let is_soon = self.counts.allocations_since_told() < TOLD_PARTS;
        let ahead = if is_soon && !self.telling.is_growing { self.mapped / TOLD_PARTS } else { 0 };
        self.tell_at_most(self.counts.live().saturating_add(ahead).min(self.mapped));
    }

    /// Tells what a free has changed: that there may be free pages, and now and then how much is live, if that is much
    /// less than was told.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_after_free(&mut self, size: u64) {
        if size >= self.telling.from {
            self.tell_pages();
        }
        if self.map.turnover < self.telling.next_look {
            return;
        }
        self.telling.next_look = self.map.turnover + LOOK_EVERY;
        if self.counts.told().saturating_sub(self.counts.live()) > self.mapped / TOLD_PARTS {
            self.tell_live();
        }
    }

    /// Tells how much is live.
    pub(in crate::memory) fn tell_live(&mut self) {
        self.tell_at_most(self.counts.live());
    }

    fn tell_at_most(&mut self, live: u64) {
        if let Some(HeapLedger { ledger, .. }) = &self.telling.ledger {
            let before = self.counts.tell(live);
            if before != live {
                ledger.change_live(before, live);
            }
        }
    }

    /// Tells that there may be free pages.
    #[cold]
    pub(super) fn tell_pages(&mut self) {
        self.telling.from = u64::MAX;
        if let Some(HeapLedger { ledger, cache }) = &self.telling.ledger {
            ledger.add_with_pages(*cache);
        }
    }

    /// Returns whether a free block is as large as a page.
    pub(in crate::memory) fn has_free_page(&self) -> bool {
        self.map.find(PAGE) != NONE
    }

    /// Notes that it is told of free pages no more, until there are some again, and returns who is told; none if there
    /// are some.
    pub(in crate::memory) fn end_telling_of_pages(&mut self) -> Option<Arc<Ledger>> {
        let told = self.telling.ledger.as_ref().filter(|_| !self.has_free_page())?;
        self.telling.from = PAGE;
        Some(Arc::clone(&told.ledger))
    }
}
