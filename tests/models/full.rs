//! Random programs on a full device or at a limit: a request fails only where no free block of its pool has room for it.

use std::collections::BTreeMap;

use gpupool::runtime::{self, BoundDevice};
use gpupool::{Device, DeviceBuffer, ErrorKind, MemPool, MemPoolBuilder, PoolId, Stream, empty_cache, memory_snapshot};

use crate::common::memory::{MIB, PAGE, Random};
use crate::common::turns;

const MEMORY: u64 = 48 * MIB;
const DEVICE: Device = Device::from_ordinal(0);
const OPS: usize = 400;
/// The largest small block; without room for a slab one is cut like a larger one.
const SMALL_MAX: u64 = 64 << 10;
const ALIGNMENT: u64 = 512;

type Kind = (&'static str, fn(MemPoolBuilder) -> MemPoolBuilder);

const KINDS: [Kind; 5] = [
    ("all of the device", |builder| builder),
    ("a limit", |builder| builder.limit(16 * MIB)),
    ("a reserve", |builder| builder.reserve(12 * MIB).limit(12 * MIB)),
    ("segments", |builder| builder.segments(true).limit(16 * MIB)),
    ("segments that are not split", |builder| builder.no_split(true).limit(40 * MIB)),
];

/// A size close to a few others.
fn size(random: &mut Random) -> u64 {
    let base = [4 << 10, SMALL_MAX, 70 << 10, 100 << 10, MIB, MIB, MIB, 3 * MIB, 17 * MIB][random.below(9)];
    base + random.below(2 + base as usize / 64) as u64
}

/// The bytes that must be free in one piece.
fn needed(bytes: u64) -> u64 {
    if bytes <= SMALL_MAX { SMALL_MAX + ALIGNMENT } else { bytes.next_multiple_of(ALIGNMENT) }
}

/// Returns what has room for a request that was refused.
fn room_for(pool: &MemPool, bytes: u64) -> Option<String> {
    let needed = needed(bytes);
    let segments = memory_snapshot().unwrap().into_iter().filter(|segment| segment.pool == pool.id());
    let mut free = segments.flat_map(|segment| segment.blocks).filter(|block| !block.is_live);
    if let Some(block) = free.find(|block| block.nbytes >= needed) {
        return Some(format!("a free block of {} bytes", block.nbytes));
    }
    let _bound = BoundDevice::new(runtime::get().unwrap(), DEVICE).unwrap();
    let left = runtime::get().unwrap().memory_info().unwrap().free;
    let allowed = pool.limit().map_or(u64::MAX, |limit| limit.saturating_sub(pool.stats().unwrap().reserved_bytes));
    let has_room = left.min(allowed) >= needed.next_multiple_of(PAGE);
    has_room.then(|| format!("{left} bytes of the device, of which the pool may have {allowed}"))
}

/// Runs a program that allocates more than there is, and counts what was refused though there was room.
fn run(seed: u64, found: &mut BTreeMap<&'static str, Vec<String>>) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (kind, build) = KINDS[random.below(KINDS.len())];
    let pool = build(MemPool::builder().device(DEVICE)).build().unwrap();
    let streams: Vec<_> = (0..=random.below(2)).map(|_| Stream::new(DEVICE).unwrap()).collect();
    let mut blocks: Vec<DeviceBuffer> = Vec::new();
    for _ in 0..OPS {
        // Until it is full, and then blocks between others.
        if random.below(5) < 3 || blocks.is_empty() {
            let (bytes, stream) = (size(&mut random), &streams[random.below(streams.len())]);
            match pool.empty(bytes, stream) {
                Ok(block) => blocks.push(block),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
                    if let Some(room) = room_for(&pool, bytes) {
                        found
                            .entry(kind)
                            .or_default()
                            .push(format!("{bytes} bytes in program {seed}: there was {room}"));
                    }
                }
            }
        } else {
            blocks.swap_remove(random.below(blocks.len()));
        }
    }
    assert_ne!(pool.id(), PoolId::NONE);
    drop((blocks, pool));
    empty_cache().unwrap();
}

#[test]
fn no_request_fails_where_a_free_block_has_room() {
    host!(1, MEMORY);
    let (mut found, mut programs) = (BTreeMap::new(), 0);
    for seed in turns(100) {
        run(seed, &mut found);
        programs = seed;
    }
    let all: usize = found.values().map(Vec::len).sum();
    assert!(all == 0, "{all} requests of {programs} programs: {found:#?}");
}
