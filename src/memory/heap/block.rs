//! A block: a run of bytes that is free, held by a caller, or cut into slots.

/// No block.
pub(super) const NONE: u32 = u32::MAX;
/// In place of a neighbour's number: there is none, and the rest is the number of the span that ends here.
pub(super) const EDGE: u32 = 1 << 31;

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum State {
    Free,
    /// Held by a caller.
    Live,
    /// Cut into slots for small blocks.
    Slab,
    /// This record stands for no block.
    Vacant,
}

/// A block and its neighbours by address.
#[derive(Clone, Debug)]
pub(in crate::memory) struct Block {
    /// Offset in the device's memory, in bytes.
    pub(super) start: u64,
    pub(super) size: u64,
    /// The neighbours, or [`EDGE`] and the span's number.
    pub(super) previous: u32,
    pub(super) next: u32,
    /// Free: the bin's links. Live: the bytes asked for. Slab: its number. Vacant: the next vacant record.
    payload: u64,
    pub(super) state: State,
}

impl Block {
    pub(super) const fn free(start: u64, size: u64) -> Self {
        Self { start, size, previous: NONE, next: NONE, payload: 0, state: State::Free }
    }

    pub(super) const fn end(&self) -> u64 {
        self.start + self.size
    }

    #[inline]
    pub(super) fn set_bin_links(&mut self, previous: u32, next: u32) {
        self.payload = u64::from(previous) << 32 | u64::from(next);
    }

    #[inline]
    pub(super) fn bin_links(&self) -> (u32, u32) {
        ((self.payload >> 32) as u32, self.payload as u32)
    }

    #[inline]
    pub(super) fn set_bin_previous(&mut self, previous: u32) {
        self.payload = u64::from(previous) << 32 | self.payload & u64::from(u32::MAX);
    }

    #[inline]
    pub(super) fn set_bin_next(&mut self, next: u32) {
        self.payload = self.payload & !u64::from(u32::MAX) | u64::from(next);
    }

    pub(super) fn set_payload(&mut self, payload: u64) {
        self.payload = payload;
    }

    pub(super) fn payload(&self) -> u64 {
        self.payload
    }
}
