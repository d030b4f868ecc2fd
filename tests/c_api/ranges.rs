//! Memory ranges, by the C interface.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::c_pools::{CPool, INVALID_VALUE, OUT_OF_MEMORY, UNAVAILABLE, create, failed, options, succeeded};
use crate::common::memory::{PAGE, used};
use crate::common::{MEMORY, device, stream, wait_until};
use gpupool::c_api::{C_API, Event, PoolOptions, RangeHandle};
use gpupool::runtime::host::{complete_all, submit};
use gpupool::{CommitOptions, ErrorKind, MemPool};

fn reserve(pool: CPool, bytes: u64) -> (*mut RangeHandle, *mut c_void) {
    let (mut range, mut address) = (null_mut(), null_mut());
    // SAFETY: both places are those of pointers.
    succeeded(unsafe { (C_API.pool_reserve_range)(pool.0, bytes, PAGE, &raw mut range, &raw mut address) });
    (range, address)
}

fn commit(range: *mut RangeHandle, pages: &[u32], stream: *mut c_void, priority: Option<c_int>, fill: c_int) -> c_int {
    let priority = priority.as_ref().map_or(null(), ptr::from_ref);
    // SAFETY: the pages are as many, and the stream is alive.
    unsafe { (C_API.range_commit)(range, pages.as_ptr(), pages.len() as u64, 0, stream, priority, fill) }
}

fn bytes_of(range: *mut RangeHandle) -> (u64, u64) {
    let (mut committed, mut discardable) = (0, 0);
    // SAFETY: both places are those of numbers.
    succeeded(unsafe { (C_API.range_bytes)(range, &raw mut committed, &raw mut discardable) });
    (committed, discardable)
}

unsafe extern "C" fn note(context: *mut c_void, pages: *const u32, count: u64) {
    // SAFETY: the context is the test's list, and there are so many pages.
    unsafe {
        let taken = &mut *context.cast::<Vec<u32>>();
        taken.extend_from_slice(std::slice::from_raw_parts(pages, count as usize));
    }
}

#[test]
fn pages_come_and_go_and_are_taken() {
    memory!();
    let (pool, stream) = (create(options()), stream(0));
    let raw = stream.raw().as_ptr();
    let (range, address) = reserve(pool, 2 * MEMORY);
    let mut taken: Vec<u32> = Vec::new();
    // SAFETY: the list lives as long as the range.
    succeeded(unsafe { (C_API.range_on_discard)(range, Some(note), (&raw mut taken).cast()) });
    succeeded(commit(range, &[0, 3], raw, None, 7));
    succeeded(commit(range, &[5, 6], raw, Some(-1), -1));
    assert_eq!((bytes_of(range), used(0)), ((4 * PAGE, 2 * PAGE), 4 * PAGE));
    gpupool::runtime::host::complete_all().unwrap();
    // SAFETY: the page is committed and was filled.
    assert_eq!(unsafe { address.cast::<u8>().add(3 * PAGE as usize).read() }, 7);
    let pages = [0_u32, 1, 5];
    let mut bits = [0_u8; 1];
    // SAFETY: there is room for a bit of each page.
    unsafe {
        succeeded((C_API.range_pin)(range, pages.as_ptr(), 3, 0, raw, bits.as_mut_ptr().cast()));
        assert_eq!(bits, [0b101]);
        failed((C_API.range_decommit)(range, pages.as_ptr(), 3, -1, null_mut()), INVALID_VALUE, &["page 0", "pinned"]);
        failed((C_API.range_release)(range, -1, null_mut()), INVALID_VALUE, &["page 0", "pinned"]);
    }
    let rest: Vec<_> = (8..8 + (MEMORY / PAGE) as u32 - 3).collect();
    succeeded(commit(range, &rest, raw, None, -1));
    assert_eq!((taken.as_slice(), used(0)), (&[6][..], MEMORY));
    failed(commit(range, &[7], raw, None, -1), OUT_OF_MEMORY, &["tried to allocate"]);
    let pinned = [0_u32, 5];
    // SAFETY: the pages are as many, and the range is released last.
    unsafe {
        succeeded((C_API.range_unpin)(range, pinned.as_ptr(), 2, 0, raw));
        succeeded((C_API.range_decommit)(range, rest.as_ptr(), rest.len() as u64, 0, raw));
        succeeded((C_API.range_prepare)(range, 0));
        succeeded((C_API.range_release)(range, 0, raw));
    }
    pool.release();
}

#[test]
fn wrong_values_are_refused_by_name() {
    memory!();
    let pool = create(options());
    let (range, _) = reserve(pool, 8 * PAGE);
    let (mut none, mut address) = (null_mut(), null_mut());
    let page = 1_u32;
    // SAFETY: what is wrong is not used, and all else is right.
    unsafe {
        let reserve = C_API.pool_reserve_range;
        failed(
            reserve(null(), PAGE, PAGE, &raw mut none, &raw mut address),
            INVALID_VALUE,
            &["pool is a null pointer"],
        );
        failed(reserve(pool.0, PAGE, PAGE, null_mut(), &raw mut address), INVALID_VALUE, &["range"]);
        failed(reserve(pool.0, PAGE, PAGE, &raw mut none, null_mut()), INVALID_VALUE, &["pointer"]);
        failed(reserve(pool.0, PAGE + 1, PAGE, &raw mut none, &raw mut address), INVALID_VALUE, &["2097153"]);
        let whole = create(PoolOptions { no_split: 1, ..options() });
        failed(reserve(whole.0, PAGE, PAGE, &raw mut none, &raw mut address), UNAVAILABLE, &["no_split"]);
        whole.release();
        assert!(none.is_null() && address.is_null());
        failed((C_API.range_bytes)(null(), null_mut(), null_mut()), INVALID_VALUE, &["range"]);
        failed((C_API.range_commit)(range, null(), 1, 0, null_mut(), null(), -1), INVALID_VALUE, &["pages"]);
        failed(
            (C_API.range_commit)(range, &raw const page, u64::MAX, 0, null_mut(), null(), -1),
            INVALID_VALUE,
            &["count"],
        );
        failed((C_API.range_pin)(range, &raw const page, 1, -1, null_mut(), null_mut()), INVALID_VALUE, &["bits"]);
        failed((C_API.range_on_discard)(range, None, null_mut()), INVALID_VALUE, &["callback"]);
        failed((C_API.range_prepare)(range, u64::MAX), INVALID_VALUE, &["18446744073709551615"]);
        failed((C_API.range_release)(null_mut(), -1, null_mut()), INVALID_VALUE, &["range"]);
        for device in [-2, 99] {
            let said = format!("no device {device}");
            failed((C_API.range_unpin)(range, &raw const page, 1, device, null_mut()), INVALID_VALUE, &[&said]);
        }
        for fill in [-2, 256] {
            let said = format!("fill is {fill}");
            failed(
                (C_API.range_commit)(range, &raw const page, 1, 0, null_mut(), null(), fill),
                INVALID_VALUE,
                &[&said],
            );
        }
        assert_eq!(bytes_of(range), (0, 0));
        succeeded((C_API.range_commit)(range, null(), 0, 0, null_mut(), null(), -1));
        succeeded((C_API.range_release)(range, -1, null_mut()));
    }
    pool.release();
}

#[test]
fn a_range_that_cannot_be_released_is_dropped() {
    memory!();
    let (pool, stream) = (create(options()), stream(0));
    let (range, _) = reserve(pool, 2 * MEMORY);
    succeeded(commit(range, &[0, 7], stream.raw().as_ptr(), None, -1));
    let (pages, mut bits) = ([0_u32, 7], [0_u8; 1]);
    // SAFETY: the pages are as many, there is room for a bit of each, and the range is dropped last.
    unsafe {
        succeeded((C_API.range_pin)(range, pages.as_ptr(), 2, -1, null_mut(), bits.as_mut_ptr().cast()));
        failed((C_API.range_release)(range, -1, null_mut()), INVALID_VALUE, &["pinned"]);
        succeeded((C_API.range_drop)(range));
        failed((C_API.range_drop)(null_mut()), INVALID_VALUE, &["range"]);
    }
    pool.release();
}

/// What a callback of the test below shares with it.
struct Gate {
    is_called: AtomicBool,
    may_end: AtomicBool,
    has_ended: AtomicBool,
}

unsafe extern "C" fn wait_at_gate(context: *mut c_void, _pages: *const u32, _count: u64) {
    // SAFETY: the context is the test's gate.
    let gate = unsafe { &*context.cast::<Gate>() };
    gate.is_called.store(true, Ordering::SeqCst);
    wait_until("the callback may end", || gate.may_end.load(Ordering::SeqCst));
    gate.has_ended.store(true, Ordering::SeqCst);
}

#[test]
fn the_release_of_a_range_waits_for_a_callback_that_runs() {
    memory!();
    let (pool, stream) = (create(options()), stream(0));
    let gate = Gate { is_called: false.into(), may_end: false.into(), has_ended: false.into() };
    let context = (&raw const gate).cast_mut().cast::<c_void>().expose_provenance();
    let (range, _) = reserve(pool, 2 * MEMORY);
    // SAFETY: the gate lives longer than the range.
    succeeded(unsafe {
        (C_API.range_on_discard)(range, Some(wait_at_gate), ptr::with_exposed_provenance_mut(context))
    });
    let all: Vec<_> = (0..(MEMORY / PAGE) as u32).collect();
    succeeded(commit(range, &all, stream.raw().as_ptr(), Some(0), -1));
    thread::scope(|scope| {
        let request = scope.spawn(|| gpupool::empty(PAGE, &stream).unwrap());
        wait_until("a page is taken", || gate.is_called.load(Ordering::SeqCst));
        let range = range.expose_provenance();
        let release = scope.spawn(move || {
            // SAFETY: the range is the test's, and not used after this.
            succeeded(unsafe { (C_API.range_release)(ptr::with_exposed_provenance_mut(range), -1, null_mut()) });
        });
        (0..1000).for_each(|_| thread::yield_now());
        assert!(!release.is_finished());
        gate.may_end.store(true, Ordering::SeqCst);
        release.join().unwrap();
        assert!(gate.has_ended.load(Ordering::SeqCst));
        drop(request.join().unwrap());
    });
    pool.release();
}

thread_local! {
    /// What the observer does when it is next told that a freed block has become free.
    static ACT: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

unsafe extern "C" fn acting(_: *mut c_void, event: *const Event) {
    const FREE_COMPLETED: c_int = 2;
    // SAFETY: gpupool passes an event that is alive.
    if unsafe { (*event).action } == FREE_COMPLETED
        && let Some(act) = ACT.take()
    {
        act();
    }
}

#[test]
fn an_observer_of_freed_pages_commits_those_that_wait_still() {
    memory!();
    let (used, idle, other) = (stream(0), stream(0), stream(0));
    let pool = MemPool::builder().device(device(0)).build().unwrap();
    let range = Arc::new(pool.reserve_range(4 * PAGE, PAGE).unwrap());
    // SAFETY: the function takes any context.
    succeeded(unsafe { (C_API.observe)(Some(acting), null_mut()) });
    let plain = CommitOptions::default;
    let commit_in_observer = |page: u32| {
        let (range, other) = (Arc::clone(&range), other.clone());
        ACT.set(Some(Box::new(move || range.commit(&[page], &other, plain()).unwrap())));
    };
    // Another page of the same decommit, of which a commit takes back one; then one beside a page that is done.
    range.commit(&[0, 1], &used, plain()).unwrap();
    submit(&used).unwrap();
    range.decommit(&[0, 1], None).unwrap();
    commit_in_observer(1);
    range.commit(&[0], &other, plain()).unwrap();
    range.commit(&[2], &used, plain()).unwrap();
    range.commit(&[3], &idle, plain()).unwrap();
    range.decommit(&[2], None).unwrap();
    range.decommit(&[3], None).unwrap();
    commit_in_observer(2);
    pool.trim().unwrap();
    assert!(ACT.take().is_none(), "the observer was not told");
    assert_eq!(range.committed_bytes().unwrap(), 3 * PAGE);
    // Its own page is in the hands of the call that called it.
    range.decommit(&[0], None).unwrap();
    let (again, on) = (Arc::clone(&range), other.clone());
    ACT.set(Some(Box::new(move || {
        let error = again.commit(&[0], &on, plain()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
        assert!(error.to_string().contains("once that callback has returned"), "{error}");
    })));
    complete_all().unwrap();
    pool.trim().unwrap();
    assert!(ACT.take().is_none(), "the observer was not told");
    range.commit(&[0], &other, plain()).unwrap();
    // SAFETY: no observer is none.
    succeeded(unsafe { (C_API.observe)(None, null_mut()) });
}

#[test]
fn a_pool_with_a_range_splits_its_memory_from_then_on() {
    memory!();
    let pool = create(options());
    let (mut refused, mut address) = (null_mut(), null_mut());
    // SAFETY: both places are those of pointers, and the pool is the test's.
    unsafe {
        let reserve = C_API.pool_reserve_range;
        failed(reserve(pool.0, 1 << 50, PAGE, &raw mut refused, &raw mut address), OUT_OF_MEMORY, &["addresses"]);
        succeeded((C_API.pool_set_no_split)(pool.0));
    }
    pool.release();
    let pool = create(options());
    let (range, _) = reserve(pool, 8 * PAGE);
    // SAFETY: the pool and the range are the test's.
    unsafe {
        failed((C_API.pool_set_no_split)(pool.0), INVALID_VALUE, &["no_split"]);
        succeeded((C_API.range_commit)(range, &raw const ONE, 1, 0, null_mut(), null(), -1));
        succeeded((C_API.range_release)(range, -1, null_mut()));
    }
    pool.release();
}

static ONE: u32 = 1;
