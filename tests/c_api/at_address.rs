//! Allocation at an address where memory is free again.

use std::collections::BTreeMap;
use std::ptr;

use crate::common::c_pools::{Address, INVALID_VALUE, create, failed, for_graphs, free, options, succeeded};
use crate::common::memory::{MIB, PAGE, Random};
use crate::common::stream;
use gpupool::Stream;
use gpupool::c_api::C_API;

/// Slots of slabs, blocks in a page, and blocks of pages.
const SIZES: [u64; 9] = [1, 512, 700, 4096, 60 << 10, 100 << 10, MIB, 3 * MIB + 1, 20 * MIB];

fn allocate_at(address: Address, bytes: u64, stream: &Stream) -> i32 {
    let pointer = ptr::without_provenance_mut(address.0 as usize);
    // SAFETY: the stream is alive and of the device.
    unsafe { (C_API.allocate_at)(pointer, bytes, 0, stream.raw().as_ptr()) }
}

#[test]
fn what_a_graphs_pool_has_had_is_allocated_again_where_it_was_in_any_order() {
    memory!();
    let (stream, pool, mut random) = (stream(0), for_graphs(), Random(7));
    let mut had: Vec<(Address, u64)> = Vec::new();
    for _ in 0..200 {
        let bytes = SIZES[random.below(SIZES.len())];
        had.push((pool.allocate(bytes, &stream), bytes));
    }
    for _ in 0..20 {
        let mut live: BTreeMap<Address, u64> = had.iter().copied().collect();
        for _ in 0..400 {
            let (address, bytes) = had[random.below(had.len())];
            if live.remove(&address).is_some() {
                free(address);
            } else {
                succeeded(allocate_at(address, bytes, &stream));
                live.insert(address, bytes);
            }
        }
        // It is live, as any other: once, and with the bytes that were asked for.
        for (&address, &bytes) in &live {
            failed(allocate_at(address, bytes, &stream), INVALID_VALUE, &["not free there"]);
        }
        for (address, bytes) in &had {
            if !live.contains_key(address) {
                succeeded(allocate_at(*address, *bytes, &stream));
            }
        }
    }
    had.iter().for_each(|(address, _)| free(*address));
    pool.release();
}

#[test]
fn a_block_is_placed_in_the_middle_of_what_is_free() {
    memory!();
    let (stream, pool) = (stream(0), create(options()));
    let whole = pool.allocate(8 * MIB, &stream);
    free(whole);
    let at = |offset: u64| Address(whole.0 + offset);
    succeeded(allocate_at(at(3 * MIB), 2 * MIB, &stream));
    failed(allocate_at(at(2 * MIB), 2 * MIB, &stream), INVALID_VALUE, &["not free there in one piece"]);
    succeeded(allocate_at(at(5 * MIB), 3 * MIB, &stream));
    succeeded(allocate_at(at(MIB + 4096), 700, &stream));
    succeeded(allocate_at(at(0), MIB, &stream));
    for offset in [3 * MIB, 5 * MIB, MIB + 4096, 0] {
        free(at(offset));
    }
    // Behind the slab, which stays for the next of its size, all is one piece again.
    succeeded(allocate_at(at(2 * MIB), 6 * MIB, &stream));
    free(at(2 * MIB));
    pool.release();
}

#[test]
fn a_small_block_without_a_slab_is_placed_where_it_was() {
    memory!(1, PAGE);
    let (stream, pool) = (stream(0), create(options()));
    // Beside it there is no room for a slab of 16 blocks.
    let large = pool.allocate(PAGE - (100 << 10), &stream);
    let small = pool.allocate(8 << 10, &stream);
    for _ in 0..2 {
        free(small);
        succeeded(allocate_at(small, 8 << 10, &stream));
    }
    failed(allocate_at(small, 8 << 10, &stream), INVALID_VALUE, &["not free there"]);
    // Nor where less than that is free.
    let behind = Address(small.0 + (80 << 10));
    failed(allocate_at(behind, 8 << 10, &stream), INVALID_VALUE, &["not free there"]);
    free(small);
    free(large);
    pool.release();
}

#[test]
fn what_cannot_be_is_refused() {
    memory!();
    let (stream, other) = (stream(0), Stream::new(crate::common::device(0)).unwrap());
    let pool = create(options());
    let block = pool.allocate(4 * MIB, &stream);
    let inside = Address(block.0 + MIB);
    failed(allocate_at(inside, MIB, &stream), INVALID_VALUE, &["not free there"]);
    failed(allocate_at(Address(4096), MIB, &stream), INVALID_VALUE, &["not memory that gpupool handed out"]);
    free(block);
    failed(allocate_at(Address(block.0 + 8), MIB, &stream), INVALID_VALUE, &["not free there"]);
    failed(allocate_at(block, 0, &stream), INVALID_VALUE, &["not free there"]);
    failed(allocate_at(block, u64::MAX, &stream), INVALID_VALUE, &["not free there"]);
    failed(allocate_at(block, MIB, &other), INVALID_VALUE, &["another stream"]);
    succeeded(allocate_at(block, 4 * MIB, &stream));
    pool.trim();
    free(block);
    pool.trim();
    failed(allocate_at(block, 4 * MIB, &stream), INVALID_VALUE, &[&format!("{:#x}", block.0)]);
    pool.release();
}
