//! Random programs on a full device or at a limit: a request fails only where no free block of its pool has room for it.

use std::collections::BTreeMap;

use gpupool::runtime::{self, BoundDevice};
use gpupool::{Device, DeviceBuffer, ErrorKind, MemPool, MemPoolBuilder, Stream, empty_cache, memory_snapshot};

use crate::common::memory::{MIB, PAGE, Random};
use crate::common::turns;

const MEMORY: u64 = 160 * MIB;
const DEVICE: Device = Device::from_ordinal(0);
const OPS: usize = 1000;
/// The largest small block; without room for a slab one is cut like a larger one.
const SMALL_MAX: u64 = 64 << 10;
const ALIGNMENT: u64 = 512;

type Kind = (&'static str, fn(MemPoolBuilder) -> MemPoolBuilder);

const KINDS: [Kind; 5] = [
    ("all of the device", |builder| builder),
    ("a limit", |builder| builder.limit(80 * MIB)),
    ("a reserve", |builder| builder.reserve(80 * MIB).limit(80 * MIB)),
    ("segments", |builder| builder.segments(true).limit(80 * MIB)),
    ("segments that are not split", |builder| builder.no_split(true).limit(40 * MIB)),
];

/// Sizes of blocks of which there are many, and of others.
const MOST: [u64; 4] = [300 << 10, 600 << 10, MIB, 3 * MIB / 2];
const OTHERS: [u64; 4] = [70 << 10, 100 << 10, 3 * MIB, 17 * MIB];
/// Small ones; what is free in a slab serves these alone.
const SMALL: [u64; 2] = [4 << 10, SMALL_MAX - (2 << 10)];
const SLAB_MAX: u64 = MIB;

/// A size of which there are many that are a little smaller or larger, or another.
fn size(random: &mut Random, most: u64, others: &[u64]) -> u64 {
    let base = if random.below(4) > 0 { most } else { others[random.below(others.len())] };
    base + random.below(2 + base as usize / 64) as u64
}

/// The bytes that must be free in one piece.
fn needed(bytes: u64) -> u64 {
    if bytes <= SMALL_MAX { SMALL_MAX + ALIGNMENT } else { bytes.next_multiple_of(ALIGNMENT) }
}

/// Returns what has room for a request that was refused, of at least `least` bytes.
fn room_for(pool: &MemPool, bytes: u64, least: u64) -> Option<String> {
    let needed = needed(bytes);
    let segments = memory_snapshot().unwrap().into_iter().filter(|segment| segment.pool == pool.id());
    let mut free = segments.flat_map(|segment| segment.blocks).filter(|block| !block.is_live);
    if let Some(block) = free.find(|block| block.nbytes >= needed.max(least)) {
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
    let most = MOST[random.below(MOST.len())];
    let (others, least): (&[u64], _) = if random.below(4) > 0 { (&OTHERS, 0) } else { (&SMALL, SLAB_MAX + 1) };
    let mut blocks: Vec<DeviceBuffer> = Vec::new();
    for op in 0..OPS {
        // Until it is full; then many go, each from between others, and as many come.
        let comes = if op < OPS / 2 { 9 } else { [1, 9][op / 100 % 2] };
        if random.below(10) < comes || blocks.is_empty() {
            let (bytes, stream) = (size(&mut random, most, others), &streams[random.below(streams.len())]);
            match pool.empty(bytes, stream) {
                Ok(block) => blocks.push(block),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
                    if let Some(room) = room_for(&pool, bytes, least) {
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
    drop((blocks, pool));
    empty_cache().unwrap();
}

#[test]
fn no_request_fails_where_a_free_block_has_room() {
    host!(1, MEMORY);
    let (mut found, mut programs) = (BTreeMap::new(), 0);
    for seed in turns(30) {
        run(seed, &mut found);
        programs = seed;
    }
    let all: usize = found.values().map(Vec::len).sum();
    assert!(all == 0, "{all} requests of {programs} programs: {found:#?}");
}
