//! A heap whose memory is away: its blocks stay and may be freed, and none is handed out. It serves requests as a
//! closed heap does, so they need no check of their own. A thread that adds or takes memory finds it as one that has ended.

use std::ops::Range;

use super::block::BlockState;
use super::{Cut, Heap, Life, Serving};
use crate::memory::device::{Pages, Run, Slab};

impl Heap {
    pub(in crate::memory) fn fall_asleep(&mut self) {
        if self.is_awake() {
            self.serving.life = Life::Asleep(self.serving.cut);
            self.serving.cut = Cut::Nothing;
        }
    }

    pub(in crate::memory) fn wake(&mut self) {
        if let Life::Asleep(cut) = self.serving.life {
            self.serving = Serving { cut, life: Life::Awake };
        }
    }

    pub(in crate::memory) fn is_asleep(&self) -> bool {
        matches!(self.serving.life, Life::Asleep(_))
    }

    /// Takes whole free pages below an offset out of the sleeping heap.
    pub(in crate::memory) fn take_pages_asleep(&mut self, pages: &'static Pages, below: u64) -> Vec<Run> {
        self.drop_empty_slabs(pages);
        let taken = self.take_pages(pages, 0..below);
        if !taken.is_empty() {
            self.publish_live();
        }
        taken
    }

    /// Returns the live ranges by address: large blocks, slots of slabs, and lent slabs as a whole.
    pub(in crate::memory) fn live_ranges(&self, pages: &'static Pages) -> Vec<Range<u64>> {
        let mut live = Vec::new();
        for block in self.map.blocks() {
            match block.state() {
                BlockState::Live => live.push(block.start..block.end()),
                BlockState::Slab => {
                    let slots = pages.slabs.get(block.number()).into_iter().flat_map(Slab::live_slots);
                    live.extend(slots.map(|(start, bytes, ..)| start..start + bytes));
                }
                BlockState::Free | BlockState::Vacant => {}
            }
        }
        live
    }

    /// Returns the whole pages inside each live block that has at least `least` of them.
    pub(in crate::memory) fn large_blocks(&self, pages: &'static Pages, least: u32) -> Vec<Run> {
        let inside = self.live_ranges(pages).into_iter().filter_map(|block| Run::between(block.start, block.end));
        inside.filter(|run| run.pages >= least).collect()
    }
}
