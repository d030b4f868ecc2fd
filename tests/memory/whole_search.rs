//! Once memory has run out every free block is looked at: a request fails only where none has room for it.

use crate::common::memory::{MIB, PAGE, builder, empty_in, out_of_memory};
use crate::common::stream;
use gpupool::{DeviceBuffer, MemPool, Result, Stream, empty};

const KIB: u64 = 1 << 10;
const MEMORY: u64 = 64 * MIB;

/// A pool that can have a page alone.
fn of_one_page() -> MemPool {
    builder().limit(PAGE).build().unwrap()
}

/// Takes all that is left, in blocks of falling sizes.
fn fill(allocate: impl Fn(u64) -> Result<DeviceBuffer>) -> Vec<DeviceBuffer> {
    let sizes = (0..12).map(|halvings| (8 * MIB) >> halvings);
    sizes.flat_map(|bytes| std::iter::from_fn(|| allocate(bytes).ok()).collect::<Vec<_>>()).collect()
}

/// Twenty-one free blocks between live ones, of which all but the last, which was freed first, are a little smaller: that
/// one's size, and the live ones.
fn larger_behind_smaller(bytes: u64, allocate: &impl Fn(u64) -> Result<DeviceBuffer>) -> (u64, Vec<DeviceBuffer>) {
    let larger = bytes + bytes / 128;
    let mut held = Vec::new();
    let mut freed = Vec::new();
    for index in 0..21 {
        freed.push(allocate(if index == 20 { larger } else { bytes }).unwrap());
        held.push(allocate(96 * KIB).unwrap());
    }
    held.extend(fill(allocate));
    // From high to low, so that each of the others comes before the larger one.
    freed.into_iter().rev().for_each(drop);
    (larger, held)
}

#[test]
fn a_block_behind_twenty_smaller_ones_is_found() {
    type Pool = fn() -> MemPool;
    let pools: [(&str, Pool); 5] = [
        ("the whole device", || builder().build().unwrap()),
        ("a limit", || builder().limit(32 * MIB).build().unwrap()),
        ("a reserve", || builder().reserve(32 * MIB).limit(32 * MIB).build().unwrap()),
        ("segments", || builder().segments(true).limit(32 * MIB).build().unwrap()),
        ("a limit that is lower than the block by then", || builder().limit(32 * MIB).build().unwrap()),
    ];
    memory!(1, MEMORY);
    let own = stream(0);
    for (what, pool) in pools {
        let pool = pool();
        let (larger, held) = larger_behind_smaller(MIB, &|bytes| empty_in(&pool, bytes, &own));
        if what.contains("lower") {
            pool.set_limit(Some(MIB));
        }
        let found = empty_in(&pool, larger, &own);
        assert!(found.is_ok(), "{what}: {}", found.unwrap_err());
        drop((found, held));
    }
}

#[test]
fn a_block_of_another_stream_behind_twenty_smaller_ones_is_found() {
    memory!(1, MEMORY);
    let (own, other) = (stream(0), stream(0));
    let (larger, _held) = larger_behind_smaller(MIB, &|bytes| empty(bytes, &own));
    let _found = empty(larger, &other).unwrap();
}

#[test]
fn a_segment_behind_twenty_smaller_ones_is_found() {
    const GIB: u64 = 1 << 30;
    // From here on two sizes in whole pages are looked at together.
    let (smaller, larger) = (256 * MIB, 258 * MIB);
    memory!(1, 8 * GIB);
    let own = stream(0);
    let pool = builder().no_split(true).limit(20 * smaller + larger).build().unwrap();
    let mut blocks: Vec<_> = (0..20).map(|_| empty_in(&pool, smaller, &own).unwrap()).collect();
    blocks.push(empty_in(&pool, larger, &own).unwrap());
    blocks.sort_unstable_by_key(|block| (block.nbytes(), block.ptr()));
    blocks.into_iter().rev().for_each(drop);
    drop(empty_in(&pool, larger, &own).unwrap());
}

/// Fills the pool's page with live blocks of these sizes, but for those given negative, which are free.
fn page_of(pool: &MemPool, stream: &Stream, sizes: &[i64]) -> Vec<DeviceBuffer> {
    let blocks: Vec<_> = sizes.iter().map(|kib| empty_in(pool, kib.unsigned_abs() * KIB, stream).unwrap()).collect();
    let (free, live): (Vec<_>, Vec<_>) = blocks.into_iter().zip(sizes).partition(|(_, kib)| **kib < 0);
    drop(free);
    live.into_iter().map(|(block, _)| block).collect()
}

#[test]
fn a_small_block_is_found_wherever_there_is_room() {
    let pages: [(&str, u64, &[i64]); 3] = [
        // Slabs start at multiples of 64 KiB.
        ("a slab has room in the second block only", 4 * KIB, &[66, -66, 122, -100, 1694]),
        ("no slab has room anywhere", 4 * KIB, &[66, -66, 1916]),
        ("a slab of this size is larger than all that is free", 64 * KIB, &[100, -900, 1048]),
    ];
    memory!(1, MEMORY);
    let own = stream(0);
    for (what, bytes, sizes) in pages {
        let pool = of_one_page();
        let held = page_of(&pool, &own, sizes);
        let found = empty_in(&pool, bytes, &own);
        assert!(found.is_ok(), "{what}: {}", found.unwrap_err());
        let (address, stats) = (found.as_ref().unwrap().ptr(), pool.stats().unwrap());
        assert_eq!(stats.requested_bytes, held.iter().map(DeviceBuffer::nbytes).sum::<u64>() + bytes, "{what}");
        drop(found);
        assert_eq!(empty_in(&pool, bytes, &own).unwrap().ptr(), address, "{what}");
        drop(held);
        drop(empty_in(&pool, PAGE, &own).unwrap());
    }
}

#[test]
fn a_large_block_finds_what_an_empty_slab_divides() {
    memory!(1, MEMORY);
    let own = stream(0);
    for segments in [false, true] {
        let pool = builder().segments(segments).limit(PAGE).build().unwrap();
        let held = empty_in(&pool, 100 * KIB, &own).unwrap();
        drop(empty_in(&pool, 1, &own).unwrap());
        let found = empty_in(&pool, PAGE - 100 * KIB, &own);
        assert!(found.is_ok(), "segments {segments}: {}", found.unwrap_err());
        drop((found, held));
    }
}

#[test]
fn what_a_pool_has_to_lend_serves_any_stream_once_memory_has_run_out() {
    memory!(1, MEMORY);
    let pool = builder().limit(18 * PAGE).build().unwrap();
    let streams: Vec<_> = (0..24).map(|_| stream(0)).collect();
    // Pools with more than sixteen streams lend small parts of pages to the rest.
    let (with_pages, borrowers) = streams.split_at(17);
    let mut held: Vec<_> = with_pages.iter().map(|stream| empty_in(&pool, PAGE, stream).unwrap()).collect();
    held.extend(borrowers.iter().map(|stream| empty_in(&pool, 4 * KIB, stream).unwrap()));
    assert_eq!(pool.stats().unwrap().reserved_bytes, 18 * PAGE);
    while let Ok(block) = empty_in(&pool, 4 * KIB, &borrowers[3]) {
        held.push(block);
    }
    assert_eq!(pool.stats().unwrap().requested_bytes, 18 * PAGE);
    out_of_memory(empty_in(&pool, 1, &borrowers[0]));
}
