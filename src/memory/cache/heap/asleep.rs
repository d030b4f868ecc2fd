//! A heap whose memory is away: its blocks stay as they are, may be freed, and none is handed out.
//!
//! The heap cuts nothing meanwhile, as one that was closed, so a request finds nothing without a question of its own. For all
//! that would add or take memory its service has ended for as long.

use std::ops::Range;

use super::{Cut, Heap};
use crate::memory::device::{PAGE, Pages};

impl Heap {
    /// Hands out nothing from now on, and takes no memory.
    pub(in crate::memory) fn fall_asleep(&mut self) {
        if self.asleep.is_none() && !self.has_ended {
            self.asleep = Some(self.cut);
            self.cut = Cut::Nothing;
        }
    }

    /// Goes on as before it fell asleep.
    pub(in crate::memory) fn wake(&mut self) {
        if let Some(cut) = self.asleep.take() {
            self.cut = cut;
        }
    }

    /// Returns whether it is asleep, in the service with this number.
    pub(in crate::memory) fn is_asleep_in(&self, service: u64) -> bool {
        self.asleep.is_some() && self.services == service && !self.has_ended
    }

    pub(in crate::memory) fn is_asleep(&self) -> bool {
        self.asleep.is_some()
    }

    /// Takes whole free pages that stand below an offset out of the heap, which is asleep: start and bytes of each piece.
    pub(in crate::memory) fn take_pages_asleep(&mut self, pages: &'static Pages, below: u64) -> Vec<(u64, u64)> {
        self.drop_empty_slabs(pages);
        let taken = self.take_pages(pages, 0..below);
        if !taken.is_empty() {
            self.tell_live();
        }
        taken
    }

    /// Returns what is live in large blocks, of at least so many pages: the whole pages inside each.
    pub(in crate::memory) fn large_blocks(&self, pages: &'static Pages, least: u64) -> Vec<Range<u64>> {
        let pieces = self.pieces(pages).into_iter();
        let inside = pieces.map(|piece| piece.start().next_multiple_of(PAGE)..piece.end() / PAGE * PAGE);
        inside.filter(|range| range.end.saturating_sub(range.start) >= least * PAGE).collect()
    }
}
