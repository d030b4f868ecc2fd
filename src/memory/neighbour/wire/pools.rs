//! The pools that a process tells of when it is asked for those of a device: names and numbers, the largest pools first, as
//! many as a packet has room for.

use std::cmp::Reverse;

use super::name::{self, NAME_BYTES};
use super::{begin, bytes, head};
use crate::memory::pool::PoolId;
use crate::memory::share::Reader;

/// The most pools that a process tells of.
const POOLS_MOST: usize = 0x40;
const POOL: usize = 0x6 * 0x8 + NAME_BYTES;

/// What a pool of another process holds, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NeighbourPool {
    /// Its id in that process.
    pub id: PoolId,
    /// The name that its maker gave it, of which 64 bytes are told.
    pub name: Option<String>,
    /// Device memory that it has.
    pub reserved_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Free bytes, cached for its next requests.
    pub free_bytes: u64,
    /// Live bytes that are asleep.
    pub asleep_bytes: u64,
}

impl NeighbourPool {
    fn to_bytes(&self) -> impl Iterator<Item = u8> {
        let Self { id, reserved_bytes, live_bytes, free_bytes, asleep_bytes, .. } = *self;
        let name = name::to_bytes(self.name.as_deref().unwrap_or_default());
        let numbers = [id.0, id.1, reserved_bytes, live_bytes, free_bytes, asleep_bytes];
        name.into_iter().chain(numbers.into_iter().flat_map(u64::to_le_bytes))
    }

    fn read(packed: &[u8; POOL]) -> Option<Self> {
        let mut reader = Reader(packed);
        let name = Some(name::read(reader.take())?).filter(|name| !name.is_empty());
        let id = PoolId(reader.u64(), reader.u64());
        let mut next = || bytes(&mut reader);
        let (reserved_bytes, live_bytes, free_bytes, asleep_bytes) = (next()?, next()?, next()?, next()?);
        Some(Self { id, name, reserved_bytes, live_bytes, free_bytes, asleep_bytes })
    }
}

/// Returns the pools of which a process tells, in order.
pub(in crate::memory::neighbour) fn told_of(mut pools: Vec<NeighbourPool>) -> Vec<NeighbourPool> {
    pools.sort_by_key(|pool| (Reverse(pool.reserved_bytes.saturating_add(pool.asleep_bytes)), pool.id));
    pools.truncate(POOLS_MOST);
    pools
}

/// Returns the answer to [`Question::Pools`](super::Question::Pools).
pub(in crate::memory::neighbour) fn pools(pools: Vec<NeighbourPool>) -> Vec<u8> {
    let told = told_of(pools);
    head().into_iter().chain(told.iter().flat_map(NeighbourPool::to_bytes)).collect()
}

/// Reads the output of [`pools`], unless it is something else.
pub(in crate::memory::neighbour) fn read_pools(packet: &[u8]) -> Option<Vec<NeighbourPool>> {
    let (pools, left) = begin(packet)?.0.as_chunks::<POOL>();
    let is_whole = left.is_empty() && pools.len() <= POOLS_MOST;
    is_whole.then(|| pools.iter().map(NeighbourPool::read).collect()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(number: u64) -> NeighbourPool {
        NeighbourPool {
            id: PoolId(0, number),
            name: None,
            reserved_bytes: number,
            live_bytes: 2,
            free_bytes: 3,
            asleep_bytes: 4,
        }
    }

    #[test]
    fn pools_travel_and_rubbish_is_none() {
        let sent = [NeighbourPool { name: Some("weights".to_owned()), ..pool(9) }, pool(1)];
        let bytes = pools(sent.to_vec());
        assert_eq!(read_pools(&bytes), Some(sent.to_vec()));
        assert_eq!(read_pools(&pools(Vec::new())), Some(Vec::new()));
        for wrong in (0..bytes.len()).filter(|wrong| *wrong != head().len() && *wrong != bytes.len() - POOL) {
            assert_eq!(read_pools(&bytes[..wrong]), None, "{wrong}");
        }
        // Another version, a name that is no text, and a count above any memory.
        for place in [0, 4, head().len(), bytes.len() - 1] {
            let mut other = bytes.clone();
            other[place] = 0xff;
            assert_eq!(read_pools(&other), None, "{place}");
        }
        let many = [&bytes[..], &vec![0; POOLS_MOST * POOL]].concat();
        assert_eq!(read_pools(&many), None);
    }

    #[test]
    fn of_many_pools_the_largest_travel() {
        // What sleeps will be reserved again.
        let asleep = NeighbourPool { asleep_bytes: 1 << 20, ..pool(0) };
        let many = (1..2 * POOLS_MOST as u64).map(pool).chain([asleep.clone()]).collect();
        let read = read_pools(&pools(many)).unwrap_or_default();
        assert_eq!((read.len(), read[0].id, read[1].id), (POOLS_MOST, asleep.id, PoolId(0, 127)));
        assert!(read[1..].is_sorted_by_key(|pool| Reverse(pool.reserved_bytes)));
        const { assert!(0x6 + POOLS_MOST * POOL <= 0x2000, "a packet's size") };
    }
}
