//! Free blocks by size: finds the smallest that is large enough, or the lowest, in constant time. Each multiple of 512
//! bytes up to 64 KiB has a bin, then each doubling has 64, so that sizes in a bin differ by at most 1.6 %. A bitmap,
//! one word a doubling, marks the bins in use. In a bin only a few blocks are compared, of which the lowest is first; who
//! needs any that fits, however many there are, asks for all of them ([`FreeIndex::at_least`]).

use super::block::{BLOCK_BYTES_MAX, BlockNode, NONE};
use crate::memory::tuning::{A_FEW, ALIGNMENT, FREE_STEP_BITS};

/// Sizes below this many units of 512 bytes have a bin each.
const EXACT: u64 = 2 << FREE_STEP_BITS;
const BINS: usize =
    EXACT as usize + (((BLOCK_BYTES_MAX / ALIGNMENT).ilog2() - FREE_STEP_BITS) << FREE_STEP_BITS) as usize;
const WORDS: usize = BINS.div_ceil(u64::BITS as usize);

/// The bins; the links are in the blocks.
#[derive(Debug)]
pub(super) struct FreeIndex {
    heads: Box<[u32; BINS]>,
    used: [u64; WORDS],
    /// One bit for each word of `used` that is not zero.
    words: u64,
    /// For each word of `used` the lowest start among its bins' first blocks, or [`NOWHERE`].
    lowest: [u64; WORDS],
}

const NOWHERE: u64 = u64::MAX;

#[inline]
fn bin_of(size: u64) -> usize {
    let units = size / ALIGNMENT;
    if units < EXACT {
        return units as usize;
    }
    let doubling = units.ilog2() - FREE_STEP_BITS;
    ((u64::from(doubling) << FREE_STEP_BITS) + (units >> doubling)) as usize
}

/// Links a block into a bin after its first.
#[inline]
fn link_after(blocks: &mut [BlockNode], first: u32, id: u32) {
    let (_, next) = blocks[first as usize].bin_links();
    blocks[first as usize].set_bin_next(id);
    blocks[id as usize].set_bin_links(first, next);
    if let Some(next) = blocks.get_mut(next as usize) {
        next.set_bin_previous(id);
    }
}

/// Moves the lowest of a bin's first few blocks to the front, and returns it.
fn lowest_first(blocks: &mut [BlockNode], head: u32) -> u32 {
    let (mut lowest, mut id) = (head, head);
    for _ in 0..A_FEW {
        let Some(block) = blocks.get(id as usize) else { break };
        if block.start < blocks[lowest as usize].start {
            lowest = id;
        }
        id = block.bin_links().1;
    }
    if lowest != head {
        let (previous, next) = blocks[lowest as usize].bin_links();
        blocks[previous as usize].set_bin_next(next);
        if let Some(next) = blocks.get_mut(next as usize) {
            next.set_bin_previous(previous);
        }
        blocks[lowest as usize].set_bin_links(NONE, head);
        blocks[head as usize].set_bin_previous(lowest);
    }
    lowest
}

impl FreeIndex {
    pub(super) fn new() -> Self {
        Self { heads: Box::new([NONE; BINS]), used: [0; WORDS], words: 0, lowest: [NOWHERE; WORDS] }
    }

    #[inline]
    pub(super) fn insert(&mut self, blocks: &mut [BlockNode], id: u32) {
        let block = &blocks[id as usize];
        let (bin, start) = (bin_of(block.size()), block.start);
        let head = self.heads[bin];
        match blocks.get(head as usize) {
            // The lowest stays first.
            Some(lowest) if lowest.start < start => link_after(blocks, head, id),
            Some(_) => {
                blocks[id as usize].set_bin_links(NONE, head);
                blocks[head as usize].set_bin_previous(id);
                self.set_head(bin, id, start);
            }
            None => {
                blocks[id as usize].set_bin_links(NONE, NONE);
                self.used[bin / 64] |= 1 << (bin % 64);
                self.words |= 1 << (bin / 64);
                self.set_head(bin, id, start);
            }
        }
    }

    #[inline]
    fn set_head(&mut self, bin: usize, id: u32, start: u64) {
        self.heads[bin] = id;
        let lowest = &mut self.lowest[bin / 64];
        *lowest = start.min(*lowest);
    }

    #[inline]
    pub(super) fn remove(&mut self, blocks: &mut [BlockNode], id: u32) {
        let (previous, next) = blocks[id as usize].bin_links();
        if next != NONE {
            blocks[next as usize].set_bin_previous(previous);
        }
        if previous != NONE {
            blocks[previous as usize].set_bin_next(next);
            return;
        }
        let block = &blocks[id as usize];
        let (bin, start) = (bin_of(block.size()), block.start);
        if next == NONE {
            self.heads[bin] = NONE;
            self.used[bin / 64] &= !(1 << (bin % 64));
            if self.used[bin / 64] == 0 {
                self.words &= !(1 << (bin / 64));
            }
        } else {
            self.heads[bin] = lowest_first(blocks, next);
        }
        if self.lowest[bin / 64] == start {
            let heads = self.heads_of(bin / 64, 0);
            self.lowest[bin / 64] = heads.map(|head| blocks[head as usize].start).min().unwrap_or(NOWHERE);
        }
    }

    /// Returns the first block of each used bin of a word, from this bit on.
    fn heads_of(&self, word: usize, from: u32) -> impl Iterator<Item = u32> {
        let mut left = self.used[word] & u64::MAX.checked_shl(from).unwrap_or(0);
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            self.heads.get(word * 64 + bit as usize).copied()
        })
    }

    /// Returns the lowest block of at least this size, or [`NONE`].
    #[inline]
    pub(super) fn find_lowest(&self, blocks: &[BlockNode], size: u64) -> u32 {
        let bin = bin_of(size);
        let mut best = (NOWHERE, NONE);
        let mut take = |id: u32| best = best.min((blocks[id as usize].start, id));
        let mut id = self.heads.get(bin).copied().unwrap_or(NONE);
        for _ in 0..A_FEW {
            let Some(block) = blocks.get(id as usize) else { break };
            if block.size() >= size {
                take(id);
            }
            id = block.bin_links().1;
        }
        let word = bin / 64;
        if word < WORDS {
            self.heads_of(word, (bin % 64) as u32 + 1).for_each(&mut take);
        }
        let later = self.words & u64::MAX.checked_shl(word as u32 + 1).unwrap_or(0);
        let words = (0..WORDS).filter(|word| later >> word & 1 == 1);
        if let Some(word) = words.min_by_key(|&word| self.lowest[word]) {
            self.heads_of(word, 0).for_each(&mut take);
        }
        best.1
    }

    /// Returns the best block of at least this size, or [`NONE`].
    #[inline]
    pub(super) fn find(&self, blocks: &[BlockNode], size: u64) -> u32 {
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
    fn best_in(&self, blocks: &[BlockNode], bin: usize, size: u64) -> u32 {
        let mut best = NONE;
        let mut best_key = (u64::MAX, u64::MAX);
        // Sizes larger than any memory have no bin.
        let mut id = self.heads.get(bin).copied().unwrap_or(NONE);
        for _ in 0..A_FEW {
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

    pub(super) fn at_least(&self, blocks: &[BlockNode], size: u64) -> Vec<u32> {
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
