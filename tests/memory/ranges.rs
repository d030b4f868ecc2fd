//! Memory ranges: addresses that stay, whose pages come and go.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::memory::{
    MIB, PAGE, assert_all_back, builder, deallocate, empty_in, memory_calls, out_of_memory, pool, read, refused, used,
    write,
};
use crate::common::{MEMORY, device, stream, wait_until};
use gpupool::memory::{memory_snapshot, record_stream};
use gpupool::runtime::host::{
    Call, Fault, UsedBlock, accessible, before_call, begin_capture, clear_before_call, clear_faults, collect_mistakes,
    complete_all, end_capture, inject, submit, submit_using,
};
use gpupool::{
    Backup, CaptureMode, CommitOptions, ErrorKind, MemPool, MemoryRange, Result, StatusKind, Stream, empty, empty_cache,
};

fn plain() -> CommitOptions {
    CommitOptions::default()
}

fn priority(priority: i32) -> CommitOptions {
    CommitOptions { priority: Some(priority), fill: None }
}

fn filled(byte: u8) -> CommitOptions {
    CommitOptions { priority: None, fill: Some(byte) }
}

fn page(range: &MemoryRange, page: u32) -> u64 {
    range.ptr() + u64::from(page) * range.page_bytes()
}

/// Work of the stream that uses a page.
fn use_page(range: &MemoryRange, number: u32, stream: &Stream) {
    let used = UsedBlock { number: u64::from(number), address: page(range, number), bytes: range.page_bytes() };
    submit_using(stream, &[used]).unwrap();
}

#[test]
fn addresses_take_no_memory_and_committed_pages_do() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(1 << 40, PAGE).unwrap();
    assert_eq!((range.nbytes(), range.page_bytes(), range.committed_bytes().unwrap()), (1 << 40, PAGE, 0));
    assert_eq!((range.pool_id(), range.device().unwrap(), used(0)), (pool.id(), device(0), 0));
    range.commit(4 * PAGE..8 * PAGE, &stream, plain()).unwrap();
    range.commit(&[100, 5, 100_000, 5], &stream, plain()).unwrap();
    assert_eq!((range.committed_bytes().unwrap(), used(0)), (6 * PAGE, 6 * PAGE));
    assert_eq!((pool.stats().unwrap().live_bytes, pool.stats().unwrap().live_blocks), (6 * PAGE, 6));
    for number in [4, 5, 6, 7, 100, 100_000] {
        write(page(&range, number), u64::from(number));
    }
    assert!(!accessible(page(&range, 3), device(0)) && accessible(page(&range, 7), device(0)));
    assert_eq!([4, 7, 100, 100_000].map(|number| read(page(&range, number))), [4, 7, 100, 100_000]);
    range.decommit(0..1 << 30, Some(&stream)).unwrap();
    assert_eq!((range.committed_bytes().unwrap(), pool.trim().unwrap(), used(0)), (PAGE, 5 * PAGE, PAGE));
    assert_eq!(pool.stats().unwrap().live_bytes, PAGE);
    range.free(None).unwrap();
    range.free(None).unwrap();
    refused(range.commit(&[1], &stream, plain()), &["was freed"]);
    refused(range.committed_bytes(), &["was freed"]);
}

#[test]
fn sizes_and_pages_that_do_not_fit_are_refused_with_the_values() {
    memory!();
    let (pool, stream, other) = (pool(), stream(0), stream(1));
    refused(pool.reserve_range(5 * MIB, PAGE), &["5242880", "2097152"]);
    refused(pool.reserve_range(0, PAGE), &["0 bytes"]);
    refused(pool.reserve_range(6 * MIB, 3 * MIB), &["3145728", "2097152"]);
    refused(pool.reserve_range(4 * MIB, 0), &["0 bytes"]);
    out_of_memory(pool.reserve_range(1 << 60, PAGE));
    let range = pool.reserve_range(64 * PAGE, 2 * PAGE).unwrap();
    refused(range.commit(PAGE..4 * PAGE, &stream, plain()), &["2097152 to 8388608", "4194304"]);
    refused(range.commit(0..66 * PAGE, &stream, plain()), &["138412032"]);
    refused(range.commit(&[0, 32], &stream, plain()), &["32 pages", "no page 32"]);
    refused(range.pin(&[0, 32], None), &["no page 32"]);
    refused(range.unpin(&[0], None), &["page 0", "not pinned"]);
    for pages in [33, u32::MAX] {
        refused(range.prepare(pages), &[&pages.to_string(), "32"]);
    }
    refused(range.commit(&[0], &other, plain()), &["enable_peer_access"]);
    assert_eq!((range.committed_bytes().unwrap(), used(0)), (0, 0));
    range.commit(Vec::new().as_slice(), &stream, plain()).unwrap();
    range.commit(0..0, &stream, plain()).unwrap();
}

#[test]
fn pools_whose_memory_stays_where_it_is_have_none() {
    memory!();
    for pool in [MemPool::builder().no_split(true), MemPool::builder().segments(true)] {
        let error = pool.device(device(0)).build().unwrap().reserve_range(PAGE, PAGE).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable(_)) && error.to_string().contains("no_split"), "{error}");
    }
    let pool = pool();
    pool.close().unwrap();
    refused(pool.reserve_range(PAGE, PAGE), &["closed"]);
}

#[test]
fn a_page_that_is_committed_again_in_the_same_order_is_there_still_without_a_driver_call() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(16 * PAGE, PAGE).unwrap();
    range.commit(0..16 * PAGE, &stream, plain()).unwrap();
    use_page(&range, 3, &stream);
    let before = memory_calls();
    range.decommit(0..16 * PAGE, Some(&stream)).unwrap();
    range.commit(&[3, 4], &stream, plain()).unwrap();
    use_page(&range, 3, &stream);
    assert_eq!(memory_calls(), before);
    complete_all().unwrap();
    // Also once the work is done.
    range.commit(0..16 * PAGE, &stream, plain()).unwrap();
    assert_eq!((memory_calls(), used(0)), (before, 16 * PAGE));
    // Committed a second time nothing changes.
    range.commit(0..16 * PAGE, &stream, plain()).unwrap();
    assert_eq!((memory_calls(), range.committed_bytes().unwrap()), (before, 16 * PAGE));
}

#[test]
fn a_decommitted_page_stays_mapped_for_running_work_and_then_serves_others() {
    memory!();
    let (pool, own, other) = (pool(), stream(0), stream(0));
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.commit(&[0, 1, 2], &own, plain()).unwrap();
    use_page(&range, 0, &own);
    range.decommit(&[0, 1, 2], Some(&own)).unwrap();
    // While the work runs, others get new memory, and nothing waits.
    range.commit(&[9], &other, plain()).unwrap();
    assert!(accessible(page(&range, 0), device(0)));
    assert_eq!(used(0), 4 * PAGE);
    complete_all().unwrap();
    // Done, its pages move: to another page, another range, and a request.
    let second = pool.reserve_range(PAGE, PAGE).unwrap();
    range.commit(&[10], &other, plain()).unwrap();
    second.commit(&[0], &own, plain()).unwrap();
    let block = empty_in(&pool, PAGE, &own).unwrap();
    assert_eq!(used(0), 4 * PAGE);
    assert!([0, 1, 2].iter().all(|&number| !accessible(page(&range, number), device(0))));
    assert!(!(range.ptr()..range.ptr() + range.nbytes()).contains(&block.ptr()));
}

#[test]
fn free_pages_of_the_pool_move_to_a_range_before_new_ones_are_made() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    drop(empty_in(&pool, 5 * PAGE, &stream).unwrap());
    assert_eq!(used(0), 5 * PAGE);
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.commit(0..7 * PAGE, &stream, plain()).unwrap();
    assert_eq!((used(0), pool.stats().unwrap().cached_bytes), (7 * PAGE, 0));
}

#[test]
fn pages_of_several_sizes_come_and_go_whole() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let large = pool.reserve_range(64 * PAGE, 8 * PAGE).unwrap();
    let small = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    large.commit(&[1, 3, 4], &stream, filled(7)).unwrap();
    small.commit(&[1], &stream, plain()).unwrap();
    complete_all().unwrap();
    assert_eq!((used(0), large.committed_bytes().unwrap()), (25 * PAGE, 24 * PAGE));
    submit(&stream).unwrap();
    large.decommit(&[1, 4], Some(&stream)).unwrap();
    large.commit(&[6], &stream, plain()).unwrap();
    complete_all().unwrap();
    large.commit(&[7], &stream, plain()).unwrap();
    assert_eq!(used(0), 33 * PAGE);
    assert_eq!(pool.trim().unwrap(), 8 * PAGE);
    assert_eq!(large.committed_bytes().unwrap(), 24 * PAGE);
}

#[test]
fn fill_sets_what_was_not_committed_before() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(4 * PAGE, PAGE).unwrap();
    range.commit(&[0, 1], &stream, filled(0xab)).unwrap();
    complete_all().unwrap();
    assert_eq!([0, 1].map(|number| read(page(&range, number))), [0xabab_abab_abab_abab; 2]);
    write(page(&range, 0), 5);
    range.commit(0..4 * PAGE, &stream, filled(0)).unwrap();
    complete_all().unwrap();
    assert_eq!([0, 1, 2, 3].map(|number| read(page(&range, number))), [5, 0xabab_abab_abab_abab, 0, 0]);
}

#[test]
fn the_pools_limit_counts_committed_pages_and_a_failed_commit_leaves_nothing() {
    memory!();
    let pool = builder().limit(8 * PAGE).build().unwrap();
    let stream = stream(0);
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.commit(0..6 * PAGE, &stream, plain()).unwrap();
    let error = out_of_memory(range.commit(&[2, 8, 10, 12], &stream, plain())).to_string();
    assert!(error.contains("limit") && error.contains("of it in ranges)"), "{error}");
    assert_eq!((range.committed_bytes().unwrap(), pool.stats().unwrap().live_bytes), (6 * PAGE, 6 * PAGE));
    assert!(!accessible(page(&range, 12), device(0)));
    range.commit(&[8, 10], &stream, plain()).unwrap();
    out_of_memory(empty_in(&pool, 100, &stream));
    range.decommit(&[8], Some(&stream)).unwrap();
    drop(empty_in(&pool, 100, &stream).unwrap());
}

#[test]
fn a_full_device_gives_what_waits_and_what_others_have_free() {
    memory!();
    let (pool, other_pool, own, other) = (pool(), pool(), stream(0), stream(0));
    let range = pool.reserve_range(2 * MEMORY, PAGE).unwrap();
    let pages = (MEMORY / PAGE) as u32;
    range.commit(0..MEMORY, &own, plain()).unwrap();
    use_page(&range, 5, &own);
    range.decommit(0..MEMORY / 2, Some(&own)).unwrap();
    // All is taken, and half of it waits for work that the test ends from another thread.
    let helper = std::thread::spawn(complete_all);
    range.commit(MEMORY..MEMORY + MEMORY / 2, &other, plain()).unwrap();
    helper.join().unwrap().unwrap();
    assert_eq!((used(0), range.committed_bytes().unwrap()), (MEMORY, MEMORY));
    out_of_memory(range.commit(&[1], &own, plain()));
    out_of_memory(empty_in(&other_pool, PAGE, &own));
    // A live pool keeps what it has free.
    range.decommit(&[pages], Some(&own)).unwrap();
    complete_all().unwrap();
    out_of_memory(empty_in(&other_pool, PAGE, &own));
    pool.trim().unwrap();
    let _block = empty_in(&other_pool, PAGE, &own).unwrap();
}

#[test]
fn pages_with_a_priority_are_taken_before_a_request_fails_the_lowest_first() {
    memory!();
    let (pool, own) = (pool(), stream(0));
    let range = pool.reserve_range(2 * MEMORY, PAGE).unwrap();
    let gone = Arc::new(Mutex::new(Vec::new()));
    let _guard = {
        let gone = Arc::clone(&gone);
        range.on_discard(move |pages| gone.lock().unwrap().extend_from_slice(pages))
    };
    let pages = (MEMORY / PAGE) as u32;
    range.commit(0..MEMORY - 6 * PAGE, &own, plain()).unwrap();
    range.commit(&[pages, pages + 1], &own, priority(5)).unwrap();
    range.commit(&[pages + 2, pages + 3], &own, priority(-1)).unwrap();
    range.commit(&[pages + 4, pages + 5], &own, priority(1)).unwrap();
    assert_eq!((used(0), range.discardable_bytes().unwrap()), (MEMORY, 6 * PAGE));
    assert_eq!(range.pin(&[pages + 2, 0, pages + 6], Some(&own)).unwrap(), [0b011]);
    let _first = empty(PAGE, &own).unwrap();
    assert_eq!(*gone.lock().unwrap(), [pages + 3]);
    let _second = empty(2 * PAGE, &own).unwrap();
    assert_eq!(*gone.lock().unwrap(), [pages + 3, pages + 4, pages + 5]);
    assert_eq!(range.pin(&[pages + 2, pages + 3, pages + 4, pages], None).unwrap(), [0b1001]);
    range.unpin(&[pages + 2], Some(&own)).unwrap();
    // Of its own pages too, and what is pinned never.
    range.commit(&[pages + 6], &own, plain()).unwrap();
    assert_eq!(gone.lock().unwrap().last(), Some(&(pages + 1)));
    out_of_memory(empty(PAGE, &own));
    assert!(!accessible(page(&range, pages + 1), device(0)) && accessible(page(&range, pages), device(0)));
    refused(range.decommit(&[pages], Some(&own)), &["pinned", &pages.to_string()]);
    refused(range.free(Some(&own)), &["pinned"]);
    range.unpin(&[pages, pages + 2, 0], None).unwrap();
    drop(empty(PAGE, &own).unwrap());
    assert_eq!(gone.lock().unwrap().len(), 5);
}

#[test]
fn pages_that_cannot_go_hide_none_that_can() {
    const PAGES: u64 = 32;
    memory!(1, PAGES * PAGE);
    let (pool, stuck, own) = (pool(), stream(0), stream(0));
    let (range, other) =
        (pool.reserve_range(PAGES * PAGE, PAGE).unwrap(), pool.reserve_range(PAGES * PAGE, PAGE).unwrap());
    // The page that is looked at first, which a captured stream uses, and the one that is to go.
    let cases: [(&str, &MemoryRange, i32); 3] =
        [("of its priority", &range, 0), ("of a higher one", &range, 1), ("of another range", &other, 0)];
    for (what, second, its_priority) in cases {
        range.commit(2 * PAGE..PAGES * PAGE, &own, plain()).unwrap();
        range.commit(&[0], &stuck, priority(0)).unwrap();
        second.commit(&[1], &own, priority(its_priority)).unwrap();
        begin_capture(&stuck, CaptureMode::Relaxed).unwrap();
        let found = empty(PAGE, &own);
        end_capture(&stuck).unwrap();
        assert!(found.is_ok(), "{what}: {}", found.unwrap_err());
        assert_eq!(second.pin(&[1], None).unwrap(), [0], "{what}");
        drop(found);
        range.decommit(0..PAGES * PAGE, Some(&own)).unwrap();
    }
}

#[test]
fn a_page_that_the_driver_does_not_unmap_at_once_serves_whom_it_was_taken_for() {
    const PAGES: u64 = 8;
    memory!(1, PAGES * PAGE);
    let (pool, other_pool, own) = (pool(), pool(), stream(0));
    let range = pool.reserve_range(PAGES * PAGE, PAGE).unwrap();
    let other = other_pool.reserve_range(PAGE, PAGE).unwrap();
    let needs: [(&str, &dyn Fn() -> Result<()>); 2] =
        [("a request", &|| empty(PAGE, &own).map(drop)), ("a commit", &|| other.commit(&[0], &own, plain()))];
    for (what, need) in needs {
        range.commit(PAGE..PAGES * PAGE, &own, plain()).unwrap();
        range.commit(&[0], &own, priority(0)).unwrap();
        inject(Fault { call: Call::MemoryUnmap, kind: StatusKind::Other, after: 0, times: 1 });
        let outcome = need();
        assert_eq!(clear_faults(), 0, "{what}");
        assert!(outcome.is_ok(), "{what}: {}", outcome.unwrap_err());
        range.decommit(0..PAGES * PAGE, Some(&own)).unwrap();
        other.decommit(&[0], Some(&own)).unwrap();
        pool.trim().unwrap();
        other_pool.trim().unwrap();
        empty_cache().unwrap();
    }
}

#[test]
fn a_range_that_is_dropped_while_its_pages_are_taken_tells_nobody_and_goes_with_that_call() {
    const PAGES: u64 = 4;
    memory!(1, PAGES * PAGE);
    let (pool, own) = (pool(), stream(0));
    let range = pool.reserve_range(PAGES * PAGE, PAGE).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    range.on_discard(move |_| _ = count.fetch_add(1, Ordering::Relaxed)).keep();
    range.commit(0..PAGES * PAGE, &own, priority(0)).unwrap();
    before_call(Call::MemoryUnmap, 0, move || drop(range));
    let _block = empty(PAGE, &own).unwrap();
    assert_eq!((clear_before_call(), told.load(Ordering::Relaxed), pool.use_count()), (0, 0, 1));
    assert_eq!((pool.trim().unwrap(), used(0)), (3 * PAGE, PAGE));
}

#[test]
fn a_callback_that_commits_what_was_taken_keeps_no_request_going() {
    memory!();
    let (pool, own) = (pool(), stream(0));
    let range = Arc::new(pool.reserve_range(MEMORY, PAGE).unwrap());
    range.commit(64 * PAGE..MEMORY, &own, plain()).unwrap();
    range.commit(0..64 * PAGE, &own, priority(0)).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let _guard = {
        let (range, calls, own) = (Arc::downgrade(&range), Arc::clone(&calls), own.clone());
        range.upgrade().unwrap().on_discard(move |pages| {
            // A request that goes on and on ends there.
            if calls.fetch_add(1, Ordering::Relaxed) < 5000 {
                range.upgrade().unwrap().commit(pages, &own, priority(0)).unwrap();
            }
        })
    };
    let other = pool.reserve_range(PAGE, PAGE).unwrap();
    let requests: [&dyn Fn() -> Result<()>; 2] =
        [&|| empty(PAGE, &own).map(drop), &|| other.commit(&[0], &own, plain())];
    for request in requests {
        out_of_memory(request());
        // No more than the device has.
        let calls = calls.swap(0, Ordering::Relaxed) as u64;
        assert!((1..=MEMORY / PAGE).contains(&calls), "{calls}");
    }
    assert_eq!(range.committed_bytes().unwrap(), MEMORY);
}

#[test]
fn a_callback_that_commits_more_than_was_taken_gets_nothing_of_its_range_for_that() {
    memory!();
    let (pool, own) = (pool(), stream(0));
    let range = Arc::new(pool.reserve_range(2 * MEMORY, PAGE).unwrap());
    let every_other: Vec<_> = (0..(2 * MEMORY / PAGE) as u32).step_by(2).collect();
    range.commit(&every_other, &own, priority(0)).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let _guard = {
        let (range, calls, own) = (Arc::downgrade(&range), Arc::clone(&calls), own.clone());
        range.upgrade().unwrap().on_discard(move |taken| {
            calls.fetch_add(1, Ordering::Relaxed);
            out_of_memory(range.upgrade().unwrap().commit(&[taken[0], taken[0] + 1], &own, priority(0)));
        })
    };
    let _block = empty(PAGE, &own).unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), range.committed_bytes().unwrap()), (1, MEMORY - PAGE));
}

#[test]
fn a_pool_with_ranges_sleeps_and_wakes_with_their_committed_pages_at_their_addresses() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.commit(0..8 * PAGE, &stream, plain()).unwrap();
    range.commit(&[20, 22], &stream, priority(1)).unwrap();
    for number in [0, 7, 20, 22] {
        write(page(&range, number), 100 + u64::from(number));
    }
    range.decommit(&[3, 4], Some(&stream)).unwrap();
    assert_eq!((pool.sleep(Backup::Host).unwrap(), used(0)), (10 * PAGE, 0));
    for asleep in [range.commit(&[1], &stream, plain()), range.decommit(&[1], None)] {
        assert!(matches!(asleep.unwrap_err().kind(), ErrorKind::Asleep(_)));
    }
    assert_eq!(range.committed_bytes().unwrap(), 8 * PAGE);
    pool.wake().unwrap();
    assert_eq!([0, 7, 20, 22].map(|number| read(page(&range, number))), [100, 107, 120, 122]);
    assert_eq!(used(0), 8 * PAGE);
    // Each page goes by itself still, and serves another.
    range.decommit(&[5], Some(&stream)).unwrap();
    complete_all().unwrap();
    range.commit(&[40], &stream, plain()).unwrap();
    assert_eq!(used(0), 8 * PAGE);
    pool.sleep(Backup::None).unwrap();
    range.free(None).unwrap();
    drop(range);
    pool.wake().unwrap();
    assert_eq!(used(0), 0);
}

#[test]
fn a_page_that_wakes_is_one_extent_however_large_it_is() {
    const LARGE: u64 = 1 << 30;
    memory!(1, 4 * LARGE);
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(4 * LARGE, LARGE).unwrap();
    range.commit(&[0, 1], &stream, plain()).unwrap();
    pool.sleep(Backup::None).unwrap();
    pool.wake().unwrap();
    // Each goes alone, and its memory serves another, or itself.
    for (gone, wanted) in [(0, 2), (1, 3), (2, 2), (3, 0)] {
        range.decommit(&[gone], Some(&stream)).unwrap();
        complete_all().unwrap();
        range.commit(&[wanted], &stream, plain()).unwrap();
        assert_eq!(used(0), 2 * LARGE);
    }
}

#[test]
fn while_a_stream_of_the_pool_is_captured_no_page_comes_or_goes() {
    memory!();
    let (pool, own, other) = (pool(), stream(0), stream(0));
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.commit(&[0], &own, plain()).unwrap();
    begin_capture(&own, CaptureMode::Relaxed).unwrap();
    for outcome in [range.commit(&[1], &own, plain()), range.commit(&[1], &other, plain()), range.decommit(&[0], None)]
    {
        refused(outcome, &["captured"]);
    }
    end_capture(&own).unwrap();
    range.commit(&[1], &other, plain()).unwrap();
    range.decommit(&[0], None).unwrap();
}

#[test]
fn a_range_that_is_dropped_frees_itself_in_stream_order_and_its_addresses_are_used_again() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    for backwards in [false, true] {
        let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
        let address = range.ptr();
        range.commit(0..4 * PAGE, &stream, plain()).unwrap();
        range.pin(&[1], Some(&stream)).unwrap();
        use_page(&range, 1, &stream);
        drop(range);
        // The work runs, and its page is there.
        assert!(accessible(address + PAGE, device(0)));
        complete_all().unwrap();
        if backwards {
            pool.trim().unwrap();
        }
        let again = pool.reserve_range(64 * PAGE, PAGE).unwrap();
        again.commit(0..4 * PAGE, &stream, plain()).unwrap();
        assert_eq!(used(0), 4 * PAGE);
        drop(again);
        complete_all().unwrap();
        pool.trim().unwrap();
        assert_eq!(used(0), 0);
    }
}

#[test]
fn addresses_of_freed_ranges_serve_others_also_where_pages_were_left_there() {
    const GIB: u64 = 1 << 30;
    memory!();
    let (pools, stream) = ([pool(), pool()], stream(0));
    for is_at_work in [false, true] {
        for pool in &pools {
            // Of 1 TiB; the page is in the middle.
            let range = pool.reserve_range(600 * GIB, PAGE).unwrap();
            range.commit(&[150_000], &stream, plain()).unwrap();
            if is_at_work {
                use_page(&range, 150_000, &stream);
            }
            range.free(None).unwrap();
        }
    }
}

#[test]
fn a_range_keeps_its_pool_and_a_closed_one_takes_no_more() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.commit(0..4 * PAGE, &stream, plain()).unwrap();
    write(page(&range, 3), 9);
    assert_eq!(pool.use_count(), 2);
    drop(pool);
    range.commit(&[8], &stream, plain()).unwrap();
    assert_eq!((read(page(&range, 3)), used(0)), (9, 5 * PAGE));
    drop(range);
    assert_all_back();
    let pool = builder().build().unwrap();
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.commit(0..4 * PAGE, &stream, plain()).unwrap();
    pool.close().unwrap();
    refused(range.commit(&[9], &stream, plain()), &["closed"]);
    range.decommit(&[3], Some(&stream)).unwrap();
    assert_eq!((range.committed_bytes().unwrap(), used(0)), (3 * PAGE, 3 * PAGE));
    range.free(None).unwrap();
    assert_eq!(pool.use_count(), 1);
}

#[test]
fn an_address_in_a_range_is_no_block_to_free_or_record() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.commit(0..4 * PAGE, &stream, plain()).unwrap();
    refused(deallocate(page(&range, 1), None), &["MemoryRange"]);
    refused(record_stream(page(&range, 1), &stream), &["MemoryRange"]);
    refused(deallocate(page(&range, 9), None), &["not memory"]);
    assert_eq!(range.committed_bytes().unwrap(), 4 * PAGE);
}

/// Returns whether so many prepared pages are ready, of a pool that has nothing else free.
fn has_ready(pool: &MemPool, pages: u64) -> bool {
    pool.stats().unwrap().cached_bytes == pages * PAGE
}

#[test]
fn prepared_pages_are_only_mapped_by_a_commit_and_go_when_asked_to() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.prepare(3).unwrap();
    wait_until("three pages are ready", || has_ready(&pool, 3));
    assert_eq!(pool.stats().unwrap().reserved_bytes, 3 * PAGE);
    let before = memory_calls();
    range.commit(&[5], &stream, plain()).unwrap();
    wait_until("the taken one is made again", || has_ready(&pool, 3));
    // Mapped and opened here; created, mapped and opened there.
    assert_eq!(memory_calls(), before + 5);
    // Two ranges share what is ready, and each has as many kept as it asked for.
    let second = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    second.prepare(2).unwrap();
    wait_until("five pages are ready", || has_ready(&pool, 5));
    second.free(None).unwrap();
    range.prepare(0).unwrap();
    assert_eq!((pool.trim().unwrap(), used(0)), (5 * PAGE, PAGE));
    range.prepare(2).unwrap();
    wait_until("two are ready", || has_ready(&pool, 2));
    assert!(pool.sleep(Backup::None).unwrap() > 0);
    assert_eq!(used(0), 0);
    pool.wake().unwrap();
}

#[test]
fn pages_that_cannot_be_prepared_leave_nothing_and_are_prepared_later() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    for call in [Call::ExtentCreate, Call::MemoryMap, Call::MemorySetAccess] {
        inject(Fault { call, kind: StatusKind::Other, after: 1, times: 1 });
        wait_until("two are ready", || {
            range.prepare(2).unwrap();
            has_ready(&pool, 2)
        });
        assert_eq!(clear_faults(), 0, "{call:?} was not refused");
        assert_eq!(used(0), 2 * PAGE, "{call:?}");
        range.prepare(0).unwrap();
        range.commit(&[1, 2], &stream, plain()).unwrap();
        assert_eq!((used(0), pool.stats().unwrap().cached_bytes), (2 * PAGE, 0));
        range.decommit(&[1, 2], None).unwrap();
        pool.trim().unwrap();
    }
}

#[test]
fn prepared_pages_of_a_commit_that_failed_serve_the_next_one() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.prepare(3).unwrap();
    wait_until("three pages are ready", || has_ready(&pool, 3));
    range.prepare(0).unwrap();
    for call in [Call::MemoryMap, Call::MemorySetAccess] {
        inject(Fault { call, kind: StatusKind::NotSupported, after: 0, times: 1 });
        range.commit(0..2 * PAGE, &stream, plain()).unwrap_err();
        assert_eq!(clear_faults(), 0);
        let stats = pool.stats().unwrap();
        assert_eq!((stats.live_bytes, stats.cached_bytes, used(0)), (0, 3 * PAGE, 3 * PAGE), "{call:?}");
    }
    range.commit(0..3 * PAGE, &stream, filled(7)).unwrap();
    complete_all().unwrap();
    assert_eq!((used(0), pool.stats().unwrap().cached_bytes), (3 * PAGE, 0));
}

#[test]
fn snapshots_show_committed_pages_as_blocks() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(64 * PAGE, PAGE).unwrap();
    range.commit(&[0, 1, 5], &stream, plain()).unwrap();
    let segments = memory_snapshot().unwrap();
    let blocks: Vec<_> = segments.iter().flat_map(|segment| &segment.blocks).collect();
    assert_eq!(segments.len(), 2);
    assert!(blocks.iter().all(|block| block.is_live && block.nbytes == PAGE));
    assert_eq!(blocks.len(), 3);
}

#[test]
fn work_that_uses_a_page_after_its_decommit_is_seen() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(4 * PAGE, PAGE).unwrap();
    range.commit(0..2 * PAGE, &stream, plain()).unwrap();
    use_page(&range, 1, &stream);
    range.decommit(&[1], Some(&stream)).unwrap();
    complete_all().unwrap();
    pool.trim().unwrap();
    assert_eq!(collect_mistakes(), [""; 0]);
    use_page(&range, 1, &stream);
    let mistakes = collect_mistakes();
    assert!(mistakes.len() == 1 && mistakes[0].contains("cannot reach"), "{mistakes:?}");
}

#[test]
fn a_page_whose_fill_was_refused_in_the_middle_waits_for_what_was_filled() {
    memory!();
    let (pool, own, other) = (pool(), stream(0), stream(0));
    let range = pool.reserve_range(4 * PAGE, PAGE).unwrap();
    // So that the fill is not done at once.
    submit(&own).unwrap();
    inject(Fault { call: Call::Fill, kind: StatusKind::Other, after: 1, times: 1 });
    range.commit(&[0, 2], &own, filled(7)).unwrap_err();
    clear_faults();
    range.commit(&[0], &other, plain()).unwrap();
    // The simulated device checks that its work comes after the fill.
    use_page(&range, 0, &other);
}
