//! A block: a run of bytes that is free, held by a caller, or cut into slots.

use crate::memory::tuning::ALIGNMENT;

/// No block.
pub(super) const NONE: u32 = u32::MAX;
/// Set in place of a neighbour's number where there is none: the other bits are the number of the span that ends here.
pub(super) const EDGE: u32 = 0x8000_0000;

/// The largest block, in bytes: more than any device has. There are bins for blocks up to this size.
pub(in crate::memory) const BLOCK_BYTES_MAX: u64 = (1 << 0x3e) - ALIGNMENT;

/// The bits of a block's size, and of its state.
const SIZE: u64 = !(ALIGNMENT - 1);
const STATE: u64 = 0b11;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum BlockState {
    Free = 0,
    /// Held by a caller.
    Live,
    /// Cut into slots for small blocks.
    Slab,
    /// An unused number.
    Vacant,
}

/// A block and its neighbours by address. Kept small, since each live block has one.
#[derive(Clone, Debug)]
pub(in crate::memory) struct BlockNode {
    /// Offset in the device's memory, in bytes.
    pub(super) start: u64,
    /// Its bytes, with its state in the low bits, which are free in a multiple of 512. A narrower size would overflow
    /// for some free range.
    packed: u64,
    /// The neighbours' numbers, or [`EDGE`] and the span's number.
    pub(super) previous: u32,
    pub(super) next: u32,
    /// Free: the bin's links. Live: size less requested bytes. Slab: its number. Vacant: the next vacant number.
    payload: [u32; 2],
}

impl BlockNode {
    pub(super) const fn free(start: u64, size: u64) -> Self {
        let packed = size & SIZE | BlockState::Free as u64;
        Self { start, packed, previous: NONE, next: NONE, payload: [0; 2] }
    }

    #[inline]
    pub(super) const fn size(&self) -> u64 {
        self.packed & SIZE
    }

    #[inline]
    pub(super) fn set_size(&mut self, size: u64) {
        self.packed = size & SIZE | self.packed & !SIZE;
    }

    #[inline]
    pub(super) const fn state(&self) -> BlockState {
        match self.packed & STATE {
            0 => BlockState::Free,
            1 => BlockState::Live,
            2 => BlockState::Slab,
            _ => BlockState::Vacant,
        }
    }

    #[inline]
    pub(super) fn set_state(&mut self, state: BlockState) {
        self.packed = self.packed & SIZE | state as u64;
    }

    #[inline]
    pub(super) const fn end(&self) -> u64 {
        self.start + self.size()
    }

    #[inline]
    pub(super) fn set_bin_links(&mut self, previous: u32, next: u32) {
        self.payload = [previous, next];
    }

    #[inline]
    pub(super) fn bin_links(&self) -> (u32, u32) {
        (self.payload[0], self.payload[1])
    }

    #[inline]
    pub(super) fn set_bin_previous(&mut self, previous: u32) {
        self.payload[0] = previous;
    }

    #[inline]
    pub(super) fn set_bin_next(&mut self, next: u32) {
        self.payload[1] = next;
    }

    #[inline]
    pub(super) fn set_number(&mut self, number: u32) {
        self.payload[0] = number;
    }

    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.payload[0]
    }

    #[inline]
    pub(super) fn set_requested(&mut self, bytes: u64) {
        let unused = self.size() - bytes;
        self.payload = [unused as u32, (unused >> 32) as u32];
    }

    #[inline]
    pub(super) fn requested(&self) -> u64 {
        self.size() - (u64::from(self.payload[1]) << 32 | u64::from(self.payload[0]))
    }
}
