//! A map for what is looked up at every event: by addresses and other words, which nobody chooses so that they collide.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by words, or by sequences of them.
pub(crate) type WordMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// Mixes word by word. The differences of addresses are in their middle bits.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    #[inline]
    fn write_i32(&mut self, value: i32) {
        self.write_u64(value as u64);
    }
}
