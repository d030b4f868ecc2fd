//! Pools from C: what they are like, which of them serves a request, and what becomes of their memory.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use crate::common::c_pools::{
    Address, CPool, DRIVER, INVALID_VALUE, OUT_OF_MEMORY, create, failed, for_graphs, free, named, options,
    record_stream, succeeded, ticket, with_source,
};
use crate::common::memory::{MIB, PAGE, used};
use crate::common::{MEMORY, device, on_thread, stream};
use gpupool::c_api::{C_API, PoolOptions, PoolSource};
use gpupool::memory::{begin_allocate_to_pool, end_allocate_to_pool, pool_use_count, release_pool};
use gpupool::runtime::host::{
    Call, Fault, before_call, begin_capture, clear_before_call, clear_faults, complete_all, create_stream, end_capture,
    inject, submit,
};
use gpupool::{
    CaptureMode, DeviceBuffer, MemPool, PoolId, StatusKind, Stream, empty, empty_cache, memory_snapshot, memory_summary,
};

/// Where blocks of all kinds come from: slots of slabs, blocks cut to size, pages.
const SIZES: [u64; 3] = [700, 100 << 10, 5 << 20];

/// The pool of the live block at the address.
#[track_caller]
fn pool_of(address: Address) -> PoolId {
    let segments = memory_snapshot().unwrap();
    let holds = |address| {
        segments.iter().find(|segment| segment.blocks.iter().any(|block| block.is_live && block.address == address))
    };
    holds(address.0).expect("a live block").pool
}

fn by_id(ordinal: c_int, id: PoolId) -> Result<CPool, c_int> {
    let mut pool = ptr::null_mut();
    // SAFETY: the id and the place are alive.
    match unsafe { (C_API.pool_by_id)(ordinal, &raw const id, &raw mut pool) } {
        0 => Ok(CPool(pool)),
        status => Err(status),
    }
}

fn set_no_split(pool: CPool) -> c_int {
    // SAFETY: what is no pool is refused.
    unsafe { (C_API.pool_set_no_split)(pool.0) }
}

#[test]
fn a_pool_has_an_id_and_serves_requests_until_its_last_use() {
    memory!();
    let stream = stream(0);
    for (pool, is_user) in [(create(options()), true), (for_graphs(), false)] {
        let id = pool.id();
        assert_eq!((id.0 == 0, id.1 == 0), (is_user, !is_user), "{id}");
        for bytes in SIZES {
            let block = pool.allocate(bytes, &stream);
            assert_eq!(pool_of(block), id);
            free(block);
        }
        assert_eq!(pool.try_allocate(0, ticket(), &stream), Ok(Address(0)), "no bytes are a null pointer");
        let again = by_id(0, id).unwrap();
        assert_eq!((again.id(), pool_use_count(device(0), id).unwrap()), (id, Some(2)));
        pool.release();
        let kept = again.allocate(MIB, &stream);
        again.release();
        assert_eq!(pool_of(kept), id, "a block outlives its pool");
        failed(by_id(0, id).unwrap_err(), INVALID_VALUE, &[&id.to_string(), "is gone"]);
        free(kept);
    }
}

#[test]
fn a_stream_that_gpupool_did_not_make_is_asked_once_whether_it_is_captured() {
    memory!();
    let raw = create_stream(device(0)).unwrap();
    // SAFETY: the stream lives as long as the test.
    let stream = unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap();
    let (pool, ticket) = (create(options()), ticket());
    let allocate = || pool.try_allocate(700, ticket, &stream).unwrap();
    free(allocate());
    // A second question would run what waits for it.
    before_call(Call::StreamCaptureStatus, 1, || {});
    let block = allocate();
    assert_eq!(clear_before_call(), 1);
    free(block);
    begin_capture(&stream, CaptureMode::Relaxed).unwrap();
    let of_the_graph = allocate();
    assert_ne!(of_the_graph, block);
    end_capture(&stream).unwrap();
    free(of_the_graph);
    pool.release();
}

#[test]
fn a_released_pool_is_refused_by_every_call_also_once_its_place_is_another_s() {
    memory!();
    let stream = stream(0);
    let pool = create(options());
    let block = pool.allocate(MIB, &stream);
    let ticket = ticket();
    let second = pool.try_allocate(MIB, ticket, &stream).unwrap();
    pool.release();
    failed(pool.try_allocate(MIB, ticket, &stream).unwrap_err(), INVALID_VALUE, &["is not a pool"]);
    let other = create(options());
    assert_ne!(pool.0, other.0);
    let mut id = PoolId::NONE;
    // SAFETY: what is no pool is refused, and the places are alive.
    unsafe {
        for pool in
            [pool.0, ptr::null_mut(), ptr::without_provenance_mut(0x1234), ptr::without_provenance_mut(usize::MAX)]
        {
            let words: &[&str] =
                if pool.is_null() { &["pool is a null pointer"] } else { &["is not a pool", "released"] };
            failed((C_API.pool_release)(pool), INVALID_VALUE, words);
            failed((C_API.pool_id)(pool, &raw mut id), INVALID_VALUE, words);
            failed((C_API.pool_set_use_on_oom)(pool, 1), INVALID_VALUE, words);
            failed((C_API.pool_set_no_split)(pool), INVALID_VALUE, words);
            failed((C_API.pool_trim)(pool, ptr::null_mut()), INVALID_VALUE, words);
            failed(CPool(pool).try_allocate(MIB, ticket, &stream).unwrap_err(), INVALID_VALUE, words);
            failed(CPool(pool).try_checkpoint().map(drop).unwrap_err(), INVALID_VALUE, words);
        }
    }
    failed(by_id(0, PoolId(0, 1 << 40)).unwrap_err(), INVALID_VALUE, &["(0, 1099511627776)"]);
    failed(by_id(0, PoolId::NONE).unwrap_err(), INVALID_VALUE, &["(0, 0)"]);
    failed(by_id(1, other.id()).unwrap_err(), INVALID_VALUE, &["is of device 0", "device 1"]);
    let unused = gpupool::graph_pool_handle(true);
    failed(by_id(0, unused).unwrap_err(), INVALID_VALUE, &[&unused.to_string(), "yet to be made"]);
    other.release();
    free(block);
    free(second);
}

#[test]
fn a_pool_s_name_stands_beside_its_id_where_memory_is_counted_and_where_it_ran_out() {
    memory!();
    let stream = stream(0);
    let pool = named("PyTorch's (0, 3)");
    let block = pool.allocate(MIB, &stream);
    let label = format!("{} \"PyTorch's (0, 3)\"", pool.id());
    let summary = memory_summary(device(0)).unwrap();
    let found = summary.pools.iter().find(|found| found.id == pool.id()).unwrap();
    assert_eq!(found.name.as_deref(), Some("PyTorch's (0, 3)"));
    assert_eq!(summary.pools[0].name, None);
    let status = pool.try_allocate(2 * MEMORY, ticket(), &stream).unwrap_err();
    failed(
        status,
        OUT_OF_MEMORY,
        &[&format!("from pool {label}"), &format!("memory pool {label} 2.0 MiB (1 live block, 1.0 MiB)")],
    );
    free(block);
    pool.release();
}

#[test]
fn a_pool_s_name_is_shown_on_one_line() {
    memory!();
    let pool = named("a\nb\u{1b}[31m");
    let status = pool.try_allocate(2 * MEMORY, ticket(), &stream(0)).unwrap_err();
    failed(status, OUT_OF_MEMORY, &[&format!("from pool {} \"a\\nb\\u{{1b}}[31m\"", pool.id())]);
    pool.release();
}

#[test]
fn no_split_can_be_set_until_memory_was_cut() {
    memory!();
    let stream = stream(0);
    let pool = create(options());
    succeeded(set_no_split(pool));
    let blocks = [700, 700].map(|bytes| pool.allocate(bytes, &stream));
    assert!(blocks[0].0.abs_diff(blocks[1].0) >= PAGE, "each block has a segment of its own");
    succeeded(set_no_split(pool));
    let cut = create(options());
    let block = cut.allocate(700, &stream);
    failed(set_no_split(cut), INVALID_VALUE, &[&cut.id().to_string(), "before anything is allocated"]);
    let beside = cut.allocate(700, &stream);
    assert!(block.0.abs_diff(beside.0) < PAGE, "a refused call changes nothing");
    blocks.into_iter().chain([block, beside]).for_each(free);
    pool.release();
    cut.release();
}

#[test]
fn use_on_oom_can_be_set_and_taken_back() {
    memory!();
    let stream = stream(0);
    let pool = create(options());
    free(pool.allocate(MEMORY / 2, &stream));
    let wanted = MEMORY * 3 / 4;
    empty(wanted, &stream).map(drop).expect_err("the pool keeps its memory");
    // SAFETY: the pool is alive.
    succeeded(unsafe { (C_API.pool_set_use_on_oom)(pool.0, 1) });
    drop(empty(wanted, &stream).unwrap());
    empty_cache().unwrap();
    free(pool.allocate(MEMORY / 2, &stream));
    // SAFETY: the pool is alive.
    succeeded(unsafe { (C_API.pool_set_use_on_oom)(pool.0, 0) });
    empty(wanted, &stream).map(drop).expect_err("the pool keeps its memory again");
    assert_eq!(pool.trim(), MEMORY / 2);
    pool.release();
}

#[test]
fn a_scope_entered_after_the_ticket_goes_before_the_pool() {
    memory!();
    let stream = stream(0);
    for given in [create(options()), for_graphs()] {
        let (outer, inner) = (MemPool::builder().build().unwrap(), MemPool::builder().build().unwrap());
        let served = |ticket: u64| {
            // Twice: the second finds the cache that served the first.
            let pools = [(); 2].map(|()| {
                let block = given.try_allocate(700, ticket, &stream).unwrap();
                let pool = pool_of(block);
                free(block);
                pool
            });
            assert_eq!(pools[0], pools[1]);
            pools[0]
        };
        let outermost = ticket();
        assert_eq!(served(outermost), given.id());
        let _outer = outer.enter().unwrap();
        assert_eq!(served(outermost), outer.id());
        let between = ticket();
        assert_eq!((served(outermost), served(between)), (outer.id(), given.id()));
        {
            let _inner = inner.enter().unwrap();
            assert_eq!((served(outermost), served(between), served(ticket())), (inner.id(), inner.id(), given.id()));
            // A scope is its own thread's.
            assert_eq!(
                on_thread({
                    let stream = stream.clone();
                    move || {
                        let block = given.try_allocate(700, outermost, &stream).unwrap();
                        let pool = pool_of(block);
                        free(block);
                        pool
                    }
                }),
                given.id()
            );
        }
        assert_eq!((served(outermost), served(between)), (outer.id(), given.id()));
        let everywhere = inner.enter_all_threads().unwrap();
        assert_eq!((served(between), served(ticket())), (inner.id(), given.id()));
        drop(everywhere);
        assert_eq!(served(between), given.id());
        given.release();
    }
}

#[test]
fn memory_of_a_pool_for_graphs_serves_all_threads_captured_or_not() {
    memory!();
    let (captured, pool) = (stream(0), for_graphs());
    let eager = SIZES.map(|bytes| pool.allocate(bytes, &captured));
    eager.into_iter().for_each(free);
    let before = used(0);
    begin_capture(&captured, CaptureMode::Global).unwrap();
    let blocks = SIZES.map(|bytes| pool.allocate(bytes, &captured));
    assert_eq!(blocks, eager, "what a warm-up freed serves the capture");
    blocks.into_iter().for_each(free);
    let (backward, after) = (
        on_thread({
            let captured = captured.clone();
            move || SIZES.map(|bytes| pool.allocate(bytes, &captured))
        }),
        used(0),
    );
    assert_eq!((backward, after), (blocks, before), "what one thread frees serves another");
    drop(end_capture(&captured).unwrap());
    // Freed here, though another thread allocated it, and that thread has ended.
    backward.into_iter().for_each(free);
    assert_eq!(SIZES.map(|bytes| pool.allocate(bytes, &captured)), blocks);
    blocks.into_iter().for_each(free);
    pool.release();
}

#[test]
fn memory_of_a_pool_for_graphs_stays_where_it_is_until_the_last_use() {
    memory!();
    let (own, other, pool) = (stream(0), stream(0), for_graphs());
    let block = pool.allocate(MEMORY / 2, &own);
    free(block);
    // SAFETY: the pool is alive.
    succeeded(unsafe { (C_API.pool_set_use_on_oom)(pool.0, 1) });
    complete_all().unwrap();
    let kept = used(0);
    assert_eq!((pool.trim(), empty_cache().unwrap(), used(0)), (0, 0, kept));
    for stream in [&own, &other] {
        empty(MEMORY * 3 / 4, stream).map(drop).expect_err("a graph's memory serves nothing else");
    }
    let elsewhere = pool.allocate(MIB, &other);
    assert!(elsewhere.0 < block.0 || elsewhere.0 >= block.0 + MEMORY / 2, "each stream has memory of its own");
    assert_eq!(pool.allocate(MEMORY / 2, &own), block);
    free(block);
    free(elsewhere);
    pool.release();
    complete_all().unwrap();
    drop(empty(MEMORY * 3 / 4, &own).unwrap());
}

#[test]
fn what_a_captured_stream_takes_of_a_user_s_pool_is_the_graph_s_until_the_pool_is_released() {
    memory!();
    let (captured, eager, pool) = (stream(0), stream(0), create(options()));
    begin_capture(&captured, CaptureMode::Relaxed).unwrap();
    let block = pool.allocate(8 * MIB, &captured);
    free(block);
    assert_eq!(pool.allocate(8 * MIB, &captured), block, "the capture uses again what it freed");
    free(block);
    drop(end_capture(&captured).unwrap());
    complete_all().unwrap();
    assert_eq!((pool.trim(), empty_cache().unwrap()), (0, 0), "the graph may be replayed");
    for stream in [&captured, &eager] {
        let ordinary = pool.allocate(8 * MIB, stream);
        assert_ne!(ordinary, block, "ordinary work does not get it");
        free(ordinary);
    }
    complete_all().unwrap();
    assert!(pool.trim() > 0, "ordinary memory goes");
    pool.release();
}

#[test]
fn a_graph_keeps_the_pool_of_a_scope_that_its_capture_allocated_in() {
    memory!();
    let (captured, graph) = (stream(0), for_graphs());
    let inner = MemPool::builder().build().unwrap();
    let id = inner.id();
    let route = ticket();
    let eager: DeviceBuffer = {
        let _scope = inner.enter().unwrap();
        let block = graph.try_allocate(MIB, route, &captured).unwrap();
        assert_eq!((pool_of(block), inner.use_count()), (id, 2), "outside of a capture nothing keeps it");
        free(block);
        begin_capture(&captured, CaptureMode::Relaxed).unwrap();
        let block = graph.try_allocate(MIB, route, &captured).unwrap();
        assert_eq!((pool_of(block), inner.use_count()), (id, 3));
        free(block);
        drop(end_capture(&captured).unwrap());
        empty(MIB, &captured).unwrap()
    };
    drop(eager);
    drop(inner);
    assert_eq!(pool_use_count(device(0), id).unwrap(), Some(1), "the graph's");
    graph.release();
    pool_use_count(device(0), id).expect_err("it is gone with the graph");
}

#[test]
fn a_block_that_another_captured_stream_used_waits_for_the_end_of_the_capture() {
    memory!();
    let (own, side, pool) = (stream(0), stream(0), for_graphs());
    begin_capture(&own, CaptureMode::Global).unwrap();
    let block = pool.allocate(MIB, &own);
    record_stream(block, &own);
    let used = pool.allocate(MIB, &own);
    begin_capture(&side, CaptureMode::Relaxed).unwrap();
    record_stream(used, &side);
    free(used);
    free(block);
    let next = [(); 2].map(|()| pool.allocate(MIB, &own));
    assert!(next.contains(&block), "its own stream keeps no block");
    assert!(!next.contains(&used), "nothing records the other stream's work while it is captured");
    drop(end_capture(&side).unwrap());
    drop(end_capture(&own).unwrap());
    next.into_iter().for_each(free);
    complete_all().unwrap();
    let checkpoint = pool.checkpoint();
    assert_eq!(pool.restore(&checkpoint).freed, [], "nothing waits any more");
    pool.release();
}

#[test]
fn scopes_by_id_lead_to_a_pool_for_graphs_and_to_nothing_once_it_is_gone() {
    memory!();
    let (stream, pool) = (stream(0), for_graphs());
    let id = pool.id();
    begin_allocate_to_pool(device(0), id).unwrap();
    let buffer = empty(MIB, &stream).unwrap();
    assert_eq!(buffer.pool_id(), id);
    drop(buffer);
    release_pool(device(0), id).unwrap();
    pool.release();
    // On another thread, so that this one does not look for its caches again; so many that they use again what there is.
    let on = stream.clone();
    let next = on_thread(move || {
        let pools: Vec<_> = (0..64).map(|_| for_graphs()).collect();
        pools.into_iter().map(|pool| (pool, pool.allocate(MIB, &on))).collect::<Vec<_>>()
    });
    let error = empty(MIB, &stream).map(drop).expect_err("the scope's pool is gone, though it is left open");
    assert!(error.to_string().contains("was released, and this thread still allocates to it"), "{error}");
    end_allocate_to_pool(device(0), id).unwrap();
    for (pool, block) in next {
        free(block);
        pool.release();
    }
}

/// What a source was asked.
#[derive(Debug, Default)]
struct Asked {
    next: u64,
    held: Vec<(u64, u64)>,
    released: u32,
    stream: usize,
}

unsafe extern "C" fn give(context: *mut c_void, bytes: u64, device: c_int, stream: *mut c_void) -> *mut c_void {
    // SAFETY: the context is what the test passes.
    let mut asked = unsafe { &*context.cast::<Mutex<Asked>>() }.lock().unwrap();
    assert_eq!((device, asked.released), (0, 0));
    asked.stream = stream.addr();
    if asked.held.len() == 2 {
        return ptr::null_mut();
    }
    asked.next += 1 << 30;
    let address = asked.next;
    asked.held.push((address, bytes));
    ptr::without_provenance_mut(address as usize)
}

unsafe extern "C" fn take(context: *mut c_void, pointer: *mut c_void, bytes: u64, device: c_int, _: *mut c_void) {
    // SAFETY: the context is what the test passes.
    let mut asked = unsafe { &*context.cast::<Mutex<Asked>>() }.lock().unwrap();
    assert_eq!((device, asked.released), (0, 0));
    let place = asked.held.iter().position(|&held| held == (pointer.addr() as u64, bytes)).expect("it comes back once");
    asked.held.remove(place);
}

unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: the context is what the test passes.
    let mut asked = unsafe { &*context.cast::<Mutex<Asked>>() }.lock().unwrap();
    assert_eq!(asked.held, []);
    asked.released += 1;
}

#[test]
fn a_source_supplies_a_pool_and_is_released_once_when_all_its_memory_was_freed() {
    memory!();
    let stream = stream(0);
    let asked = Mutex::new(Asked { next: 1 << 44, ..Asked::default() });
    let source = PoolSource {
        context: ptr::from_ref(&asked).cast_mut().cast(),
        allocate: Some(give),
        free: Some(take),
        release: Some(release),
    };
    let pool = with_source(&source);
    let blocks = [MIB, 8 * MIB].map(|bytes| pool.allocate(bytes, &stream));
    assert_eq!(asked.lock().unwrap().stream, stream.raw().address());
    failed(pool.try_allocate(64 * MIB, ticket(), &stream).unwrap_err(), OUT_OF_MEMORY, &["returned a null pointer"]);
    submit(&stream).unwrap();
    free(blocks[0]);
    pool.release();
    assert_eq!(asked.lock().unwrap().released, 0, "a block is live");
    free(blocks[1]);
    assert_eq!(asked.lock().unwrap().released, 0, "the GPU is at work on it");
    // SAFETY: no place for the bytes is wanted.
    assert_eq!(unsafe { (C_API.empty_cache)(-1, ptr::null_mut()) }, 0);
    assert_eq!(asked.lock().unwrap().released, 1);
}

#[test]
fn a_pool_that_cannot_be_made_releases_its_source() {
    memory!();
    let asked = Mutex::new(Asked::default());
    let source = PoolSource {
        context: ptr::from_ref(&asked).cast_mut().cast(),
        allocate: Some(give),
        free: Some(take),
        release: Some(release),
    };
    let mut made = ptr::null_mut();
    let (no_allocate, no_free) = (PoolSource { allocate: None, ..source }, PoolSource { free: None, ..source });
    let cases: [(_, _, *mut _, _); 4] = [
        (0, no_allocate, &raw mut made, "allocate of the gpupool_source is a null pointer"),
        (0, no_free, &raw mut made, "free of the gpupool_source is a null pointer"),
        (7, source, &raw mut made, "no device 7"),
        (0, source, ptr::null_mut(), "pool is a null pointer"),
    ];
    for (number, (device, source, place, words)) in (1..).zip(cases) {
        let options = PoolOptions { source: &raw const source, ..options() };
        // SAFETY: the options say their size, the source is alive, and the place is one or null.
        let status = unsafe { (C_API.pool_create)(device, &raw const options, place) };
        failed(status, INVALID_VALUE, &[words]);
        assert_eq!(asked.lock().unwrap().released, number, "{words}");
    }
}

#[test]
fn the_legacy_default_stream_is_not_asked_whether_it_is_captured() {
    memory!();
    let (legacy, pool) = (Stream::legacy(device(0)).unwrap(), create(options()));
    free(pool.allocate(MIB, &legacy));
    inject(Fault { call: Call::StreamCaptureStatus, kind: StatusKind::Other, after: 0, times: 1 });
    free(pool.allocate(MIB, &legacy));
    failed(pool.try_allocate(MIB, ticket(), &stream(0)).unwrap_err(), DRIVER, &["StreamCaptureStatus"]);
    clear_faults();
    pool.release();
}
