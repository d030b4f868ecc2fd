//! Pages that many streams share, each of which holds little: a slab is one stream's at a time, and another's only once
//! the first one's work is done.

use std::collections::HashSet;

use crate::common::memory::{PAGE, deallocate, reserved};
use crate::common::{device, on_thread, stream};
use gpupool::memory::{allocate, empty_cache, memory_snapshot, memory_stats};
use gpupool::{DeviceBuffer, ErrorKind, Stream, empty};

fn page_of(address: u64) -> u64 {
    address / PAGE
}

/// So many streams, each with a small block; those behind the first few share pages.
fn crowd(count: usize) -> Vec<(Stream, DeviceBuffer)> {
    let with_block = |_| {
        let stream = stream(0);
        let buffer = empty(1, &stream).unwrap();
        (stream, buffer)
    };
    (0..count).map(with_block).collect()
}

#[test]
fn streams_that_hold_little_share_pages() {
    memory!();
    let held = crowd(400);
    // Sixteen with a page each and some more, the others 32 to a page.
    assert!(reserved() <= 40 * PAGE, "{}", reserved());
    let pages: HashSet<_> = held[300..].iter().map(|(_, buffer)| page_of(buffer.ptr())).collect();
    assert!(pages.len() <= 5, "{pages:?}");
    // With a block of another size each has two slabs, 16 streams to a page.
    let _others: Vec<_> = held.iter().map(|(stream, _)| empty(1024, stream).unwrap()).collect();
    assert!(reserved() <= 50 * PAGE, "{}", reserved());
}

#[test]
fn what_there_is_to_lend_is_lent_however_few_streams_are_left() {
    memory!();
    let mut held = crowd(40);
    held.drain(..39);
    empty_cache().unwrap();
    let before = reserved();
    held.extend(crowd(10));
    assert_eq!(reserved(), before);
}

#[test]
fn a_stream_that_holds_more_has_pages_of_its_own() {
    memory!();
    let held = crowd(40);
    let stream = stream(0);
    let buffers: Vec<_> = (0..4000).map(|_| empty(512, &stream).unwrap()).collect();
    let pages = |buffers: &[DeviceBuffer]| page_of(buffers[buffers.len() - 1].ptr());
    let own = pages(&buffers);
    assert!(held.iter().all(|(_, buffer)| page_of(buffer.ptr()) != own));
}

#[test]
fn blocks_of_shared_pages_are_freed_by_address_from_any_thread_and_once() {
    memory!();
    let held = crowd(40);
    let stream = stream(0);
    let addresses: Vec<_> = (0..20).map(|_| allocate(512, &stream).unwrap()).collect();
    let beside = crowd(31);
    let mut others = held.iter().chain(&beside).map(|(_, buffer)| page_of(buffer.ptr()));
    assert!(others.any(|page| page == page_of(addresses[0])));
    let refusal = |address: u64| {
        let error = deallocate(address, None).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
        error.to_string()
    };
    assert!(refusal(addresses[0] + 8).contains("is not the start of a block"));
    let (ours, theirs) = addresses.split_at(10);
    ours.iter().for_each(|&address| deallocate(address, None).unwrap());
    let sent = theirs.to_vec();
    on_thread(move || sent.into_iter().for_each(|address| deallocate(address, None).unwrap()));
    for &address in &addresses {
        assert!(refusal(address).contains("was freed before"), "{address:#x}");
    }
    empty_cache().unwrap();
    // The slab has gone back.
    for &address in &addresses {
        refusal(address);
    }
}

#[test]
fn snapshots_and_statistics_have_every_byte_of_shared_pages_once() {
    memory!();
    let held = crowd(60);
    let stats = memory_stats(device(0)).unwrap().total;
    assert_eq!(stats.live_bytes + stats.cached_bytes + stats.releasing_bytes, stats.reserved_bytes, "{stats:?}");
    assert_eq!((stats.live_bytes, stats.live_blocks, stats.waiting_blocks), (60 * 512, 60, 0), "{stats:?}");
    let mut segments = memory_snapshot().unwrap();
    segments.sort_by_key(|segment| segment.address);
    assert!(segments.windows(2).all(|pair| pair[0].address + pair[0].nbytes <= pair[1].address));
    assert_eq!(segments.iter().map(|segment| segment.nbytes).sum::<u64>(), stats.reserved_bytes);
    for (stream, buffer) in &held {
        let segment = segments.iter().find(|segment| segment.stream == stream.raw().address()).unwrap();
        let block = segment.blocks.iter().find(|block| block.is_live).unwrap();
        assert_eq!((block.address, block.requested), (buffer.ptr(), 1));
    }
    drop(held);
    // Returned slabs that wait for nothing are cached.
    let stats = memory_stats(device(0)).unwrap().total;
    assert_eq!(stats.cached_bytes, stats.reserved_bytes, "{stats:?}");
}
