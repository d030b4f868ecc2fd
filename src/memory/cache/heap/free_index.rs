//! Free blocks by size: finds the smallest that is large enough, in a time that does not grow with their number.
//!
//! Blocks hang in bins by size: each multiple of 512 bytes to 64 KiB has its own, then 64 to each doubling, so that the
//! sizes of a bin differ by at most 1.6 %. A bitmap tells which bins hold any. Inside a bin a few blocks are compared.

use super::block::{Block, NONE};
use crate::memory::device::ALIGNMENT;

/// Bins to a doubling, as a power of two: 64, so that the blocks of a bin differ by at most 1.6 %, which is the most that a
/// fit within the bin can be worse than the best.
const STEP_BITS: u32 = 6;
/// Sizes below this many units of 512 bytes have a bin each.
const EXACT: u64 = 2 << STEP_BITS;
/// Enough for 2^62 bytes.
const BINS: usize = EXACT as usize + ((53 - STEP_BITS as usize - 1) << STEP_BITS);
const WORDS: usize = BINS.div_ceil(64);
/// How many blocks of a bin are compared: a bound on the time that a search takes, not measured against others.
const COMPARED: usize = 16;

/// The bins; the blocks themselves carry the links.
#[derive(Debug)]
pub(super) struct FreeIndex {
    heads: Box<[u32; BINS]>,
    used: [u64; WORDS],
    /// One bit for each word of `used` that is not zero.
    words: u64,
}

/// Returns the bin for a size.
#[inline]
fn bin_of(size: u64) -> usize {
    let units = size / ALIGNMENT;
    if units < EXACT {
        return units as usize;
    }
    let doubling = units.ilog2() - STEP_BITS;
    ((u64::from(doubling) << STEP_BITS) + (units >> doubling)) as usize
}

impl FreeIndex {
    pub(super) fn new() -> Self {
        Self { heads: Box::new([NONE; BINS]), used: [0; WORDS], words: 0 }
    }

    #[inline]
    pub(super) fn insert(&mut self, blocks: &mut [Block], id: u32) {
        let bin = bin_of(blocks[id as usize].size());
        let head = std::mem::replace(&mut self.heads[bin], id);
        blocks[id as usize].set_bin_links(NONE, head);
        if head != NONE {
            blocks[head as usize].set_bin_previous(id);
        } else {
            self.used[bin / 64] |= 1 << (bin % 64);
            self.words |= 1 << (bin / 64);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, blocks: &mut [Block], id: u32) {
        let (previous, next) = blocks[id as usize].bin_links();
        if next != NONE {
            blocks[next as usize].set_bin_previous(previous);
        }
        if previous != NONE {
            blocks[previous as usize].set_bin_next(next);
            return;
        }
        let bin = bin_of(blocks[id as usize].size());
        self.heads[bin] = next;
        if next == NONE {
            self.used[bin / 64] &= !(1 << (bin % 64));
            if self.used[bin / 64] == 0 {
                self.words &= !(1 << (bin / 64));
            }
        }
    }

    /// Returns the best block of at least this size, [`NONE`] if there is none.
    #[inline]
    pub(super) fn find(&self, blocks: &[Block], size: u64) -> u32 {
        let bin = bin_of(size);
        let found = self.best_in(blocks, bin, size);
        if found != NONE {
            return found;
        }
        match self.next_used(bin + 1) {
            Some(bin) => self.best_in(blocks, bin, size),
            None => NONE,
        }
    }

    /// Returns the smallest block of a bin that is large enough, the lowest of equals, among the first few.
    #[inline]
    fn best_in(&self, blocks: &[Block], bin: usize, size: u64) -> u32 {
        let mut best = NONE;
        let mut best_key = (u64::MAX, u64::MAX);
        // No bin is there for sizes that no memory has.
        let mut id = self.heads.get(bin).copied().unwrap_or(NONE);
        for _ in 0..COMPARED {
            if id == NONE {
                break;
            }
            let block = &blocks[id as usize];
            let key = (block.size(), block.start);
            if block.size() >= size && key < best_key {
                best = id;
                best_key = key;
            }
            id = block.bin_links().1;
        }
        best
    }

    #[inline]
    fn next_used(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let here = self.used.get(word)? & (u64::MAX << (bin % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let later = self.words & (u64::MAX << word) & !(1 << word);
        let word = later.trailing_zeros() as usize;
        Some(word * 64 + self.used.get(word)?.trailing_zeros() as usize)
    }

    /// Returns every free block of at least this size.
    pub(super) fn at_least(&self, blocks: &[Block], size: u64) -> Vec<u32> {
        let mut found = Vec::new();
        let mut bin = self.next_used(bin_of(size));
        while let Some(this) = bin {
            let mut id = self.heads[this];
            while id != NONE {
                if blocks[id as usize].size() >= size {
                    found.push(id);
                }
                id = blocks[id as usize].bin_links().1;
            }
            bin = self.next_used(this + 1);
        }
        found
    }
}
