//! What a heap tells its pool's ledger, so that others need not lock it to know: how much is live at most, and that it
//! may have free pages.
//!
//! More than was told is told before the block is handed out, with a little ahead where it rises again and again. Less
//! is told where pages go; and, while there are several heaps, once it is a MiB, so that their sum peaks where what is
//! live does. Where threads are in each other's way there, less waits until pages go, and the peak is too high by what
//! waits.

use std::sync::Arc;

use super::Heap;
use super::block::NONE;
use crate::memory::pool::Ledger;
use crate::memory::tuning::{PAGE, TOLD_BYTES, TOLD_PARTS};

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
    /// If less than this is live, that is told at once; 0 if only where pages go.
    pub(super) least: u64,
    /// Whether another thread told something at the same time, since pages went.
    is_disturbed: bool,
    /// Whether the block under way is the one that memory was just added for.
    pub(super) is_growing: bool,
}

impl Default for Telling {
    fn default() -> Self {
        Self { ledger: None, from: PAGE, least: 0, is_disturbed: false, is_growing: false }
    }
}

impl Telling {
    /// Returns whether what is told is what is live, but for a MiB: of several heaps, while no other is in the way.
    fn is_exact(&self) -> bool {
        !self.is_disturbed && self.ledger.as_ref().is_some_and(|told| told.ledger.is_of_several())
    }
}

impl Heap {
    /// Begins to tell a ledger that knows nothing of this heap, which is empty.
    pub(super) fn begin_telling(&mut self, ledger: HeapLedger) {
        self.counts.tell(0);
        ledger.ledger.begin_heap();
        self.telling.ledger = Some(ledger);
    }

    /// Tells that more is live than was told.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_rise(&mut self) {
        let is_soon = self.counts.allocations_since_told() < TOLD_PARTS;
        let ahead = if is_soon && !self.telling.is_growing { self.mapped / TOLD_PARTS } else { 0 };
        let most_ahead = if self.telling.is_exact() { TOLD_BYTES } else { u64::MAX };
        self.tell_at_most(self.counts.live().saturating_add(ahead.min(most_ahead)).min(self.mapped));
    }

    /// Tells that less is live than was told.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_fall(&mut self) {
        self.tell_at_most(self.counts.live());
    }

    /// Tells how much is live, and has falls told at once from now on, if there are other heaps.
    pub(in crate::memory) fn tell_live(&mut self) {
        self.telling.is_disturbed = false;
        self.tell_at_most(self.counts.live());
    }

    fn tell_at_most(&mut self, live: u64) {
        let Some(HeapLedger { ledger, .. }) = &self.telling.ledger else { return };
        let before = self.counts.tell(live);
        self.telling.is_disturbed |= before != live && ledger.change_live(before, live);
        self.telling.least = if self.telling.is_exact() { live.saturating_sub(TOLD_BYTES) } else { 0 };
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
