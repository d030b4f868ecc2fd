//! Wrong addresses, sizes, devices, pools and allocators: a typed error says which one is wrong, and nothing changes.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use crate::common::memory::{assert_all_back, builder, deallocate, empty_in, pool, says};
use crate::common::{MEMORY, device, on_thread, stream};
use gpupool::memory::{
    SegmentFunctions, SegmentSource, allocate, begin_allocate_to_pool, end_allocate_to_pool,
    get_per_process_memory_fraction, pool_use_count, record_stream, release_pool, reset_peak_memory_stats,
    reset_peak_pinned_stats, set_per_process_memory_fraction, shared_blocks,
};
use gpupool::runtime::host::{self, complete_all, submit};
use gpupool::runtime::{self, BoundDevice};
use gpupool::{
    Device, Error, ErrorKind, Event, MemPool, PoolId, PoolScope, PoolStats, Pooled, RawStream, Result, Simulated,
    StatusKind, Stream, Wanted, empty, empty_cache, empty_pinned, empty_pinned_on_node, enable_peer_access,
    graph_pool_handle, memory_snapshot, memory_stats, pinned_stats, warm_pinned, warm_pinned_in_background,
};

/// A slot of a slab, a block cut to size in a page, one of several pages.
const SIZES: [u64; 3] = [700, 100 << 10, 5 << 20];

/// But for the peaks: what was tried may have raised them.
fn stats() -> [PoolStats; 2] {
    [0, 1].map(|ordinal| {
        let mut total = memory_stats(device(ordinal)).unwrap().total;
        (total.peak_live_bytes, total.peak_reserved_bytes) = (0, 0);
        total
    })
}

/// The call was refused as one that cannot be right, the error says all the words, and no count has changed.
fn assert_refused<T>(call: impl FnOnce() -> Result<T>, words: &[&str]) {
    let before = stats();
    let error = call().map(drop).expect_err("this cannot be right");
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
    says(&error, words);
    assert_eq!(stats(), before, "{error}");
}

fn assert_no_memory<T>(outcome: Result<T>, bytes: u64) -> Error {
    let error = outcome.map(drop).expect_err("there is not so much");
    let ErrorKind::OutOfMemory(out) = error.kind() else { panic!("{error}") };
    assert!(matches!(out.wanted, Wanted::Memory { bytes: wanted, .. } if wanted == bytes), "{error}");
    says(&error, &[&format!("({bytes} bytes)"), "device 0"]);
    error
}

fn hex(address: u64) -> String {
    format!("{address:#x}")
}

/// A pool of each kind.
fn pools() -> [MemPool; 4] {
    [builder(), builder().no_split(true), builder().segments(true), builder().allocator(Arc::new(Fake::new()))]
        .map(|builder| builder.build().unwrap())
}

#[test]
fn an_address_that_gpupool_never_gave_is_refused() {
    memory!();
    let stream = stream(0);
    let large = empty(5 << 20, &stream).unwrap();
    let on_stack = 0_u64;
    let stack = std::ptr::from_ref(&on_stack).addr() as u64;
    // Not memory of any device; in the device's addresses, where nothing is mapped; past the end of what is.
    let mapped_end = gpupool::memory_snapshot().unwrap().iter().map(|view| view.address + view.nbytes).max().unwrap();
    for address in [0, 1, 511, stack, large.ptr() - (1 << 30), mapped_end, u64::MAX - 511, u64::MAX] {
        let name = hex(address);
        assert_refused(|| deallocate(address, None), &[&name, "any device"]);
        assert_refused(|| deallocate(address, Some(&stream)), &[&name, "any device"]);
        assert_refused(|| record_stream(address, &stream), &[&name, "any device"]);
    }
}

#[test]
fn an_address_inside_a_block_is_refused_and_the_block_stays() {
    memory!();
    let (stream, other) = (stream(0), stream(0));
    for bytes in SIZES {
        let block = empty(bytes, &stream).unwrap();
        for step in [1, 8, 256, 511, 512, 4096, 64 << 10, (64 << 10) + 512, 2 << 20, 4 << 20, bytes - 1] {
            if step < bytes {
                let address = block.ptr() + step;
                let name = hex(address);
                assert_refused(|| deallocate(address, None), &[&name, "device 0"]);
                assert_refused(|| deallocate(address, Some(&other)), &[&name, "device 0"]);
                assert_refused(|| record_stream(address, &other), &[&name, "device 0"]);
                let from_afar = on_thread(move || deallocate(address, None));
                assert_refused(|| from_afar, &[&name, "device 0"]);
            }
        }
        deallocate(block.into_ptr(), None).unwrap();
    }
}

#[test]
fn the_free_memory_beside_a_block_is_not_a_block() {
    memory!();
    let stream = stream(0);
    for bytes in SIZES {
        let block = empty(bytes, &stream).unwrap();
        // The next slot, or what was left when the block was cut.
        let next = block.ptr() + bytes.next_multiple_of(1024);
        assert_refused(|| deallocate(next, None), &[&hex(next), "device 0"]);
    }
}

#[test]
fn a_block_is_freed_once_whoever_frees_it() {
    memory!();
    let stream = stream(0);
    for bytes in SIZES {
        // So that the pages of the block stay known.
        let neighbour = empty(bytes, &stream).unwrap();
        for (first_afar, second_afar) in [(false, false), (false, true), (true, false), (true, true)] {
            let address = allocate(bytes, &stream).unwrap();
            let free = move |afar: bool| {
                if afar { on_thread(move || deallocate(address, None)) } else { deallocate(address, None) }
            };
            free(first_afar).unwrap();
            assert_refused(|| free(second_afar), &[&hex(address), "device 0"]);
            assert_refused(|| record_stream(address, &stream), &[&hex(address), "device 0"]);
        }
        drop(neighbour);
    }
}

#[test]
fn a_block_that_waits_for_a_stream_counts_as_freed() {
    memory!();
    let (stream, user) = (stream(0), stream(0));
    for bytes in SIZES {
        let address = allocate(bytes, &stream).unwrap();
        record_stream(address, &user).unwrap();
        submit(&user).unwrap();
        deallocate(address, None).unwrap();
        assert_eq!(stats()[0].waiting_blocks, 1);
        for on in [None, Some(&stream), Some(&user)] {
            assert_refused(|| deallocate(address, on), &[&hex(address), "was freed before"]);
        }
        assert_refused(|| on_thread(move || deallocate(address, None)), &[&hex(address), "was freed before"]);
        assert_refused(|| record_stream(address, &user), &[&hex(address), "was freed before"]);
        complete_all().unwrap();
        assert_all_back();
    }
}

#[test]
fn a_stream_of_another_device_frees_no_block() {
    memory!();
    let (here, there) = (stream(0), stream(1));
    // Memory on both, so that both devices' addresses are known.
    let _on_the_other = empty(1 << 20, &there).unwrap();
    for bytes in SIZES {
        let address = allocate(bytes, &here).unwrap();
        assert_refused(|| deallocate(address, Some(&there)), &[&hex(address), "device 1"]);
        assert_refused(|| record_stream(address, &there), &[&hex(address), "device 1"]);
        deallocate(address, Some(&here)).unwrap();
    }
}

#[test]
fn blocks_outlive_their_pool_and_are_then_freed_once() {
    memory!();
    let (stream, user) = (stream(0), stream(0));
    for bytes in SIZES {
        for pool in pools() {
            let blocks = [0; 3].map(|_| empty_in(&pool, bytes, &stream).unwrap().into_ptr());
            record_stream(blocks[1], &user).unwrap();
            drop(pool);
            assert_refused(|| deallocate(blocks[0] + 8, None), &[&hex(blocks[0] + 8)]);
            for address in blocks {
                deallocate(address, None).unwrap();
                assert_refused(|| deallocate(address, None), &[&hex(address)]);
                assert_refused(|| on_thread(move || deallocate(address, None)), &[&hex(address)]);
            }
        }
        assert_all_back();
    }
}

#[test]
fn no_bytes_have_no_address() {
    memory!();
    let stream = stream(0);
    assert_refused(|| allocate(0, &stream), &["0 bytes"]);
    let before = stats();
    let none = empty(0, &stream).unwrap();
    assert_eq!((none.ptr(), none.nbytes(), none.pool_id()), (0, 0, PoolId::NONE));
    none.record_stream(&stream).unwrap();
    none.free_on(&stream).unwrap();
    for pool in pools() {
        let _scope = pool.enter().unwrap();
        assert_refused(|| allocate(0, &stream), &["0 bytes"]);
        assert_eq!(empty(0, &stream).unwrap().into_ptr(), 0);
    }
    assert_eq!(stats(), before);
}

#[test]
fn one_byte_is_a_block() {
    memory!();
    let stream = stream(0);
    let blocks = [0; 2].map(|_| empty(1, &stream).unwrap());
    assert!(blocks[0].ptr().abs_diff(blocks[1].ptr()) >= 512);
    assert_eq!((stats()[0].requested_bytes, stats()[0].live_bytes), (2, 1024));
    drop(blocks);
    for pool in pools() {
        let block = empty_in(&pool, 1, &stream).unwrap();
        assert_eq!(
            (block.ptr() % 512, pool.stats().unwrap().live_blocks, pool.stats().unwrap().requested_bytes),
            (0, 1, 1)
        );
    }
}

#[test]
fn sizes_beyond_any_device_are_refused_without_a_driver_call() {
    memory!();
    let stream = stream(0);
    let calls = || memory_stats(device(0)).unwrap().driver_calls;
    let before = (stats(), calls());
    for bytes in [MEMORY + 1, 1 << 40, (1 << 41) + 512, 1 << 63, u64::MAX - 511, u64::MAX - 1, u64::MAX] {
        assert_no_memory(allocate(bytes, &stream), bytes);
        for pool in pools() {
            let error = assert_no_memory(empty_in(&pool, bytes, &stream), bytes);
            says(&error, &[&format!("pool {}", pool.id())]);
            assert_eq!((pool.use_count(), pool.stats().unwrap().reserved_bytes), (1, 0));
        }
    }
    assert_eq!((stats(), calls()), before);
}

#[test]
fn sizes_beyond_any_host_and_nodes_that_are_none_are_refused_by_name() {
    memory!();
    let own = stream(0);
    for bytes in [1 << 40, (1 << 41) + 512, 1 << 63, u64::MAX - 511, u64::MAX] {
        for outcome in [empty_pinned(bytes, None).map(drop), empty_pinned(bytes, Some(&own)).map(drop)] {
            let error = outcome.expect_err("there is not so much");
            assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
            says(&error, &[&format!("({bytes} bytes)"), "NUMA node 0"]);
        }
        let error = warm_pinned(bytes, None).expect_err("there is not so much");
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
        let error = builder().reserve(bytes).build().expect_err("there is not so much");
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
    }
    for node in [2, 63, 64, 4096, u32::MAX] {
        let words = &[&*format!("no NUMA node {node}:")];
        assert_refused(|| empty_pinned_on_node(1, node, None), words);
        assert_refused(|| empty_pinned_on_node(1, node, Some(&own)), words);
        assert_refused(|| warm_pinned(1, Some(node)), words);
        assert_refused(|| warm_pinned_in_background(1, Some(node)), words);
        assert_refused(|| pinned_stats(Some(node)), words);
        assert_refused(|| reset_peak_pinned_stats(Some(node)), words);
    }
}

#[test]
fn an_address_that_is_no_streams_is_named() {
    memory!();
    let own = stream(0);
    let block = empty(4096, &own).unwrap();
    let raw = own.raw().as_ptr();
    let odd = [3, 7, 4096, raw.addr() + 1, raw.addr() ^ (1 << 40), usize::MAX / 2, usize::MAX - 7, usize::MAX];
    for address in odd.into_iter().chain([block.ptr() as usize]) {
        // SAFETY: the simulated devices recognise what is no stream.
        let error = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(address)) }.unwrap_err();
        says(&error, &[&format!("{address:#x}"), "not the address of a stream"]);
    }
    // The default streams have small numbers.
    for address in [0, 1, 2] {
        // SAFETY: these are always there.
        assert!(unsafe { Stream::from_raw(std::ptr::without_provenance_mut(address)) }.unwrap().raw().is_default());
    }
}

#[test]
fn handles_that_are_too_many_are_refused_and_a_limit_of_none_is_named() {
    memory!();
    let handles = Simulated::pool();
    assert_refused(|| handles.set_limit(Some(0)), &["0"]);
    for count in [1 << 32, usize::MAX / 2, usize::MAX] {
        let error = handles.warm(count, device(0)).expect_err("there is not so much memory");
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
        handles.trim(None).unwrap();
    }
    handles.set_limit(Some(usize::MAX)).unwrap();
    handles.set_limit(None).unwrap();
}

/// `IS_SEND` of a type, without asking for it.
trait NotSend {
    const IS_SEND: bool = false;
}
impl<T> NotSend for T {}
struct Asked<T>(std::marker::PhantomData<T>);
impl<T: Send> Asked<T> {
    const IS_SEND: bool = true;
}

#[test]
fn a_scope_stays_on_its_thread() {
    const { assert!(!Asked::<PoolScope>::IS_SEND && Asked::<MemPool>::IS_SEND) }
    memory!();
    let stream = stream(0);
    let pool = pool();
    let id = pool.id();
    begin_allocate_to_pool(device(0), id).unwrap();
    assert_eq!(pool.use_count(), 2);
    let words = &[&*id.to_string(), "device 0", "same thread"];
    assert_refused(|| on_thread(move || end_allocate_to_pool(device(0), id)), words);
    assert_eq!((pool.use_count(), empty(1, &stream).unwrap().pool_id()), (2, id));
    end_allocate_to_pool(device(0), id).unwrap();
    assert_refused(|| end_allocate_to_pool(device(0), id), words);
    assert_eq!(empty(1, &stream).unwrap().pool_id(), PoolId::NONE);
    release_pool(device(0), id).unwrap();
    assert_eq!(pool.use_count(), 1);
}

#[test]
fn a_thread_that_ends_in_a_pool_leaves_it_to_the_others() {
    memory!();
    let id = graph_pool_handle(true);
    let stream = stream(0);
    let theirs = stream.clone();
    let block = on_thread(move || {
        begin_allocate_to_pool(device(0), id).unwrap();
        empty(5 << 20, &theirs).unwrap()
    });
    assert_eq!((block.pool_id(), pool_use_count(device(0), id).unwrap()), (id, Some(1)));
    assert_eq!(empty(1, &stream).unwrap().pool_id(), PoolId::NONE);
    assert_refused(|| end_allocate_to_pool(device(0), id), &[&id.to_string()]);
    release_pool(device(0), id).unwrap();
    assert_refused(|| pool_use_count(device(0), id), &[&id.to_string(), "gone"]);
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    memory!();
    for ordinal in [2, 255, 256, 4096, u32::MAX] {
        assert_refused_everywhere(Device::from_ordinal(ordinal), &[&format!("no device {ordinal}")]);
    }
}

#[test]
fn pinned_memory_is_on_a_numa_node_and_no_device() {
    memory!();
    let _pinned = empty_pinned(4096, None).unwrap();
    let snapshot = memory_snapshot().unwrap();
    let [segment] = snapshot.as_slice() else { panic!("{snapshot:?}") };
    let location = segment.location;
    assert_eq!((location.numa(), location.device(), location == device(0)), (Some(0), None, false));
    assert_eq!(location.to_string(), "NUMA node 0 of the host");
}

/// Every public function that takes a device, or makes a stream for one, refuses this one.
#[track_caller]
fn assert_refused_everywhere(missing: Device, words: &[&str]) {
    assert_refused(|| Stream::new(missing), words);
    assert_refused(|| Stream::legacy(missing), words);
    assert_refused(|| Stream::per_thread(missing), words);
    assert_refused(|| Stream::current_on(missing), words);
    // SAFETY: it is refused.
    assert_refused(|| unsafe { Stream::from_raw_on(std::ptr::null_mut(), missing) }, words);
    assert_refused(|| Event::new(missing), words);
    assert_refused(|| BoundDevice::new(runtime::get().unwrap(), missing), words);
    assert_refused(|| gpupool::device_info(missing), words);
    assert_refused(|| gpupool::synchronize(missing), words);
    assert_refused(|| host::create_stream(missing), words);
    assert_refused(|| host::create_blocking_stream(missing), words);
    assert_refused(|| host::destroy_stream(RawStream::LEGACY, missing), words);
    assert_refused(|| MemPool::builder().device(missing).build(), words);
    assert_refused(|| MemPool::builder().device(missing).segments(true).build(), words);
    assert_refused(|| memory_stats(missing), words);
    assert_refused(|| reset_peak_memory_stats(missing), words);
    assert_refused(|| set_per_process_memory_fraction(0.5, missing), words);
    assert_refused(|| get_per_process_memory_fraction(missing), words);
    assert_refused(|| enable_peer_access(missing, device(0)), words);
    assert_refused(|| enable_peer_access(device(0), missing), words);
    assert_refused(|| shared_blocks(missing), words);
    assert_refused(|| gpupool::sleep(missing, gpupool::Backup::Host), words);
    assert_refused(|| gpupool::wake(missing), words);
    assert_refused(|| gpupool::snapshot(Some(missing)), words);
    assert_refused(|| gpupool::memory_summary(missing), words);
    assert_refused(|| gpupool::reset_peak_stats(missing), words);
    assert_refused(|| gpupool::handle_stats(Some(missing)), words);
    assert_refused(|| begin_allocate_to_pool(missing, graph_pool_handle(true)), words);
    assert_refused(|| release_pool(missing, PoolId(0, 1)), words);
    assert_refused(|| pool_use_count(missing, PoolId(0, 1)), words);
    assert_refused(|| end_allocate_to_pool(missing, PoolId(0, 1)), words);
    let handles = Simulated::pool();
    assert_refused(|| handles.set_mem_pool(missing, None), words);
    assert_refused(|| handles.warm(1, missing), words);
    assert_refused(|| handles.warm_in_background(1, missing), words);
    assert_refused(|| handles.trim(Some(missing)), words);
    assert_refused(|| handles.stats(Some(missing)), words);
    assert_refused(|| handles.reset_peak_stats(Some(missing)), words);
}

#[test]
fn a_pool_captures_on_its_own_device_only() {
    memory!();
    let pool = pool();
    let words = &[&*pool.id().to_string(), "device 0", "device 1"];
    assert_refused(|| pool.capture(&stream(1)), words);
    assert_eq!(pool.use_count(), 1);
}

#[test]
fn ids_of_no_pool_are_refused() {
    memory!();
    for id in [PoolId::NONE, PoolId(1, 1), PoolId(u64::MAX, u64::MAX)] {
        assert_refused(|| begin_allocate_to_pool(device(0), id), &[&id.to_string()]);
    }
    let handles = [graph_pool_handle(true), graph_pool_handle(false)];
    for id in handles.into_iter().chain([PoolId::NONE, PoolId(0, u64::MAX), PoolId(1, 1)]) {
        assert_refused(|| end_allocate_to_pool(device(0), id), &[&id.to_string(), "device 0"]);
        assert_refused(|| release_pool(device(0), id), &[&id.to_string(), "device 0"]);
    }
    assert_eq!(handles.map(|id| pool_use_count(device(0), id).unwrap()), [None, None]);
}

#[test]
fn a_pool_is_released_as_often_as_it_was_begun() {
    memory!();
    let stream = stream(0);
    for id in [graph_pool_handle(true), graph_pool_handle(false)] {
        for _ in 0..2 {
            begin_allocate_to_pool(device(0), id).unwrap();
        }
        let block = empty(5 << 20, &stream).unwrap();
        assert_eq!(pool_use_count(device(0), id).unwrap(), Some(2));
        let words = &[&*id.to_string(), "is of device 0, not of device 1"];
        assert_refused(|| begin_allocate_to_pool(device(1), id), words);
        assert_refused(|| end_allocate_to_pool(device(1), id), words);
        assert_refused(|| release_pool(device(1), id), words);
        assert_refused(|| pool_use_count(device(1), id), words);
        end_allocate_to_pool(device(0), id).unwrap();
        release_pool(device(0), id).unwrap();
        assert_eq!(pool_use_count(device(0), id).unwrap(), Some(1));
        end_allocate_to_pool(device(0), id).unwrap();
        release_pool(device(0), id).unwrap();
        assert_refused(|| end_allocate_to_pool(device(0), id), &[&id.to_string(), "device 0"]);
        assert_refused(|| release_pool(device(0), id), &[&id.to_string(), "device 0"]);
        drop(block);
        assert_all_back();
    }
}

#[test]
fn an_id_is_no_pools_again_once_its_pool_is_gone() {
    memory!();
    let pool = pool();
    let dropped = pool.id();
    drop(pool);
    let released = [graph_pool_handle(true), graph_pool_handle(false)];
    let mut blocks = Vec::new();
    for id in released {
        begin_allocate_to_pool(device(0), id).unwrap();
        blocks.push(empty(5 << 20, &stream(0)).unwrap());
        end_allocate_to_pool(device(0), id).unwrap();
        release_pool(device(0), id).unwrap();
    }
    // Also while blocks of theirs live, and on another device.
    for id in released.into_iter().chain([dropped]) {
        for ordinal in [0, 1] {
            let words = &[&*id.to_string(), &*format!("device {ordinal}"), "is gone"];
            assert_refused(|| begin_allocate_to_pool(device(ordinal), id), words);
            assert_refused(|| end_allocate_to_pool(device(ordinal), id), words);
            assert_refused(|| release_pool(device(ordinal), id), words);
            assert_refused(|| pool_use_count(device(ordinal), id), words);
        }
    }
}

#[test]
fn threads_that_begin_with_one_id_at_once_get_one_pool() {
    memory!();
    let id = graph_pool_handle(true);
    let threads: Vec<_> =
        (0..8).map(|_| std::thread::spawn(move || begin_allocate_to_pool(device(0), id).unwrap())).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(pool_use_count(device(0), id).unwrap(), Some(8));
    for _ in 0..8 {
        release_pool(device(0), id).unwrap();
    }
}

#[test]
fn a_token_of_a_dropped_pool_enters_nothing() {
    memory!();
    let pool = pool();
    let (token, id) = (pool.token(), pool.id());
    drop(pool);
    assert_refused(|| token.enter(), &[&id.to_string(), "was dropped"]);
    assert_refused(|| pool_use_count(device(0), id), &[&id.to_string(), "gone"]);
    assert_refused(|| release_pool(device(0), id), &[&id.to_string()]);
}

#[test]
fn a_limit_of_nothing_gives_nothing() {
    memory!();
    let stream = stream(0);
    let builder = || builder().limit(0);
    for builder in [builder(), builder().segments(true), builder().allocator(Arc::new(Fake::new()))] {
        let pool = builder.build().unwrap();
        assert_eq!(pool.limit(), Some(0));
        for bytes in SIZES {
            let error = assert_no_memory(empty_in(&pool, bytes, &stream), bytes);
            says(&error, &[&pool.id().to_string(), "limit"]);
            assert_eq!((pool.stats().unwrap().reserved_bytes, pool.use_count()), (0, 1));
        }
        pool.set_limit(None);
        let block = empty_in(&pool, 700, &stream).unwrap();
        // What is there stays, and is used again, but nothing is added.
        pool.set_limit(Some(0));
        drop(block);
        let block = empty_in(&pool, 700, &stream).unwrap();
        assert_no_memory(empty_in(&pool, 50 << 20, &stream), 50 << 20);
        drop(block);
        assert_eq!(pool.stats().unwrap().live_blocks, 0);
    }
}

#[test]
fn a_fraction_is_from_0_to_1() {
    memory!();
    for fraction in [-0.1, 1.000_1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_refused(|| set_per_process_memory_fraction(fraction, device(0)), &[&fraction.to_string()]);
        assert_eq!(get_per_process_memory_fraction(device(0)).unwrap(), 1.0);
    }
    set_per_process_memory_fraction(0.0, device(0)).unwrap();
    let outcomes = SIZES.map(|bytes| empty(bytes, &stream(0)));
    set_per_process_memory_fraction(1.0, device(0)).unwrap();
    for (outcome, bytes) in outcomes.into_iter().zip(SIZES) {
        says(&assert_no_memory(outcome, bytes), &["fraction"]);
    }
}

/// Memory of a user's own, which is numbers only: gpupool never touches it.
#[derive(Debug)]
struct Fake {
    next: AtomicU64,
    /// Given and not taken back: address and bytes.
    held: Mutex<Vec<(u64, u64)>>,
    /// Answers instead of an address of its own, the first one first.
    answers: Mutex<VecDeque<Result<u64>>>,
    refuses_to_free: bool,
}

impl Fake {
    /// Low addresses, which no device has.
    const FIRST: u64 = 1 << 32;

    fn new() -> Self {
        Self {
            // Each its own, so that pools of several do not collide.
            next: AtomicU64::new(Self::FIRST + graph_pool_handle(true).1 * (1 << 34)),
            held: Mutex::default(),
            answers: Mutex::default(),
            refuses_to_free: false,
        }
    }

    fn held(&self) -> Vec<(u64, u64)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For as many tries as one request makes.
    fn answer(&self, answer: impl Fn() -> Result<u64>) {
        self.answers.lock().unwrap().extend((0..100).map(|_| answer()));
    }

    /// Its own addresses again; how many answers were left.
    fn answer_again(&self) -> usize {
        self.answers.lock().unwrap().drain(..).count()
    }
}

fn own_error(text: &str) -> Error {
    Error::refused("the test's allocator", text, "NO", 7, StatusKind::Other)
}

// SAFETY: the addresses are the test's own, and no memory is behind them but the simulated driver's.
unsafe impl SegmentSource for Fake {
    fn allocate(&self, bytes: u64, _stream: &Stream) -> Result<u64> {
        let answer = self.answers.lock().unwrap().pop_front();
        let address =
            answer.unwrap_or_else(|| Ok(self.next.fetch_add(bytes.next_multiple_of(512), Ordering::Relaxed)))?;
        self.held.lock().unwrap().push((address, bytes));
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: u64, _stream: &Stream) -> Result<()> {
        let mut held = self.held.lock().unwrap();
        let place = held.iter().position(|&given| given == (address, bytes)).expect("what was given comes back once");
        held.swap_remove(place);
        if self.refuses_to_free { Err(own_error("free")) } else { Ok(()) }
    }
}

fn pool_of(source: &Arc<Fake>) -> MemPool {
    builder().allocator(Arc::<Fake>::clone(source)).build().unwrap()
}

#[test]
fn an_allocators_own_error_is_what_the_caller_sees() {
    memory!();
    let (stream, source) = (stream(0), Arc::new(Fake::new()));
    let pool = pool_of(&source);
    source.answer(|| Err(own_error("get_memory")));
    let error = empty_in(&pool, 700, &stream).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Library(refused) if refused.code == 7), "{error}");
    says(&error, &["the test's allocator", "get_memory", "NO"]);
    assert_eq!((pool.stats().unwrap().reserved_bytes, pool.use_count(), source.held()), (0, 1, Vec::new()));
    source.answer_again();
    drop(empty_in(&pool, 700, &stream).unwrap());
    drop(pool);
    assert_eq!(source.held(), []);
}

#[test]
fn memory_that_no_block_can_lie_in_goes_back_to_its_allocator() {
    memory!();
    let (stream, source) = (stream(0), Arc::new(Fake::new()));
    let pool = pool_of(&source);
    // Not aligned; and so far up that its end is no address.
    for (address, word) in [(Fake::FIRST + 256, "512"), (1, "512"), (0_u64.wrapping_sub(512), "overlaps")] {
        source.answer(|| Ok(address));
        assert_refused(|| empty_in(&pool, 700, &stream), &[&hex(address), word]);
        source.answer_again();
        assert_eq!((pool.stats().unwrap().reserved_bytes, pool.use_count(), source.held()), (0, 1, Vec::new()));
    }
    drop(empty_in(&pool, 700, &stream).unwrap());
    drop(pool);
    assert_eq!(source.held(), []);
}

#[test]
fn memory_that_somebody_holds_is_not_taken_from_an_allocator() {
    memory!();
    let (stream, source) = (stream(0), Arc::new(Fake::new()));
    let (pool, other) = (pool_of(&source), pool_of(&source));
    let block = empty_in(&pool, 4 << 20, &stream).unwrap();
    let paged = empty(4 << 20, &stream).unwrap();
    let start = block.ptr();
    // Its middle, what reaches into it from below, and gpupool's own.
    for address in [start + (2 << 20), start - 512, paged.ptr(), paged.ptr() + (64 << 20)] {
        source.answer(|| Ok(address));
        for pool in [&pool, &other] {
            let before = pool.stats().unwrap().reserved_bytes;
            assert_refused(|| empty_in(pool, 8 << 20, &stream), &[&hex(address), "overlaps"]);
            assert_eq!((pool.stats().unwrap().reserved_bytes, source.held().len()), (before, 1));
        }
        source.answer_again();
    }
    // The same again is not even freed, since that would free what the block has.
    source.answer(|| Ok(start));
    assert_refused(|| empty_in(&pool, 8 << 20, &stream), &[&hex(start), "overlaps"]);
    let asked = 100 - source.answer_again();
    assert_eq!((asked > 0, source.held().len()), (true, 1 + asked));
    source.held.lock().unwrap().retain(|&given| given == (start, 4 << 20));
    deallocate(block.into_ptr(), None).unwrap();
    drop((paged, pool, other));
    assert_eq!(source.held(), []);
}

#[test]
fn an_allocator_that_does_not_take_memory_back_is_heard_and_the_memory_gone() {
    memory!();
    let stream = stream(0);
    let source = Arc::new(Fake { refuses_to_free: true, ..Fake::new() });
    let pool = pool_of(&source);
    for bytes in SIZES {
        let block = empty_in(&pool, bytes, &stream).unwrap();
        assert_eq!(pool.trim().unwrap(), 0);
        drop(block);
        let error = pool.trim().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Library(refused) if refused.code == 7), "{error}");
        assert_eq!(
            (pool.stats().unwrap().reserved_bytes, pool.stats().unwrap().live_blocks, source.held()),
            (0, 0, Vec::new())
        );
        assert_eq!(pool.trim().unwrap(), 0);
    }
    let last = empty_in(&pool, 700, &stream).unwrap();
    drop(pool);
    // Freed all the same, so that nobody frees it once more.
    let address = last.into_ptr();
    deallocate(address, None).unwrap();
    assert_refused(|| deallocate(address, None), &[&hex(address)]);
    assert_eq!(source.held(), []);
}

unsafe extern "C" fn null(_: isize, _: i32, _: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
    std::ptr::null_mut()
}

unsafe extern "C" fn misaligned(_: isize, _: i32, _: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(0x1234_5678)
}

static FREED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn take_back(address: *mut std::ffi::c_void, _: isize, _: i32, _: *mut std::ffi::c_void) {
    assert_eq!(address.addr(), 0x1234_5678);
    FREED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn c_functions_may_answer_null_or_nonsense() {
    memory!();
    let stream = stream(0);
    // SAFETY: these touch no memory.
    let functions = [null, misaligned].map(|allocate| unsafe { SegmentFunctions::new(allocate, take_back) });
    let pools = functions.map(|source| builder().allocator(Arc::new(source)).build().unwrap());
    for bytes in SIZES {
        let error = assert_no_memory(empty_in(&pools[0], bytes, &stream), bytes);
        says(&error, &["null pointer", &pools[0].id().to_string()]);
        assert_eq!(FREED.swap(0, Ordering::Relaxed), 0);
        assert_refused(|| empty_in(&pools[1], bytes, &stream), &["0x12345678", "512"]);
        assert!(FREED.swap(0, Ordering::Relaxed) > 0);
        for pool in &pools {
            assert_eq!((pool.stats().unwrap().reserved_bytes, pool.use_count()), (0, 1));
        }
    }
}

#[test]
fn allocators_of_two_devices_cannot_give_the_same_memory() {
    memory!();
    let source = Arc::new(Fake::new());
    let (pool, paged) = (pool_of(&source), empty(4 << 20, &stream(0)).unwrap());
    let block = empty_in(&pool, 4 << 20, &stream(0)).unwrap();
    let elsewhere = MemPool::builder().device(device(1)).allocator(Arc::<Fake>::clone(&source)).build().unwrap();
    for address in [block.ptr(), paged.ptr()] {
        source.answer(|| Ok(address));
        assert_refused(|| empty_in(&elsewhere, 4 << 20, &stream(1)), &[&hex(address), "overlaps"]);
        source.answer_again();
    }
}

#[test]
fn ending_a_pool_by_its_id_leaves_its_scopes() {
    memory!();
    let stream = stream(0);
    let pool = pool();
    let scope = pool.enter().unwrap();
    let capture = pool.capture(&stream).unwrap();
    assert_refused(|| end_allocate_to_pool(device(0), pool.id()), &["does not allocate"]);
    assert_refused(|| release_pool(device(0), pool.id()), &["no use to release"]);
    assert_eq!(pool.use_count(), 3);
    drop(capture.end().unwrap());
    drop(scope);
    assert_eq!(pool.use_count(), 1);
}

#[test]
fn a_pool_that_was_released_is_not_allocated_to_any_more() {
    memory!();
    let (first, second) = (stream(0), stream(0));
    let id = graph_pool_handle(true);
    begin_allocate_to_pool(device(0), id).unwrap();
    drop(empty(5 << 20, &first).unwrap());
    release_pool(device(0), id).unwrap();
    assert_refused(|| empty(5 << 20, &second), &["was released", "end_allocate_to_pool"]);
    end_allocate_to_pool(device(0), id).unwrap();
}

#[test]
fn what_holds_memory_can_be_printed() {
    memory!();
    let stream = stream(0);
    let pool = pool();
    let block = empty_in(&pool, 512, &stream).unwrap();
    let printed = format!("{pool:?} {block:?} {:?} {:?}", pool.token(), pool.enter().unwrap());
    assert!(printed.contains(&format!("{:?}", pool.id())), "{printed}");
}

#[test]
fn a_buffer_whose_block_was_freed_by_its_address_touches_no_other_block() {
    memory!();
    // A block of pages, and a slot of a slab.
    for bytes in [4 << 20, 700] {
        let (first, second) = (stream(0), stream(0));
        let buffer = empty(bytes, &first).unwrap();
        let address = buffer.ptr();
        deallocate(address, None).unwrap();
        empty_cache().unwrap();
        // Its page serves another stream, and then the buffer frees it.
        let other = empty(bytes, &second).unwrap();
        assert_eq!(other.ptr(), address);
        // Until this thread has the heap's lock cheaply again, into which others have looked.
        (0..200).for_each(|_| drop(empty(100 << 10, &first).unwrap()));
        says(&buffer.free_on(&first).unwrap_err(), &["freed before"]);
        assert_eq!(memory_stats(device(0)).unwrap().total.live_blocks, 1);
        other.free_on(&second).unwrap();
        assert_all_back();
    }
}
