//! A table that only grows, read by any thread without a lock. Entries are made a chunk at a time and never move, so
//! that references last as long as the table. So any thread can look up the block of any cache.

use std::sync::OnceLock;

/// Up to a fixed number of entries, 2^`BITS` to a chunk, of which only used ones take memory.
#[derive(Debug)]
pub(crate) struct Table<T, const BITS: u32> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
}

impl<T: Default, const BITS: u32> Table<T, BITS> {
    pub(crate) fn new(capacity: usize) -> Self {
        let chunks = capacity.div_ceil(1 << BITS);
        // Miri takes minutes to make a million.
        let chunks = if cfg!(miri) { chunks.min(2048) } else { chunks };
        Self { chunks: (0..chunks).map(|_| OnceLock::new()).collect() }
    }

    /// Returns the entry, if its chunk was ever used.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index >> BITS)?.get()?.get(index & ((1 << BITS) - 1))
    }

    /// Returns the entry, and makes its chunk if needed; none beyond the capacity.
    pub(crate) fn get_or_make(&self, index: usize) -> Option<&T> {
        let chunk = self.chunks.get(index >> BITS)?;
        chunk.get_or_init(|| (0..1 << BITS).map(|_| T::default()).collect()).get(index & ((1 << BITS) - 1))
    }
}
