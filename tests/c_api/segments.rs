//! Callbacks of a C program's that are told of a pool's segments.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use crate::common::c_pools::{CPool, INVALID_VALUE, create, failed, free, options, succeeded};
use crate::common::memory::MIB;
use crate::common::stream;
use gpupool::c_api::{C_API, Event, Observer, PoolOptions};

const SEGMENT_ALLOC: c_int = 3;
const SEGMENT_FREE: c_int = 4;

/// Action, address and bytes of each event, by the callback's context.
static TOLD: Mutex<Vec<(usize, c_int, u64, u64)>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(context: *mut c_void, event: *const Event) {
    // SAFETY: gpupool passes an event that is alive.
    let event = unsafe { *event };
    assert_eq!((event.size, event.device, event.stack), (size_of::<Event>() as u64, 0, 0));
    assert!(event.stream.is_null() && event.unix_micros > 0);
    TOLD.lock().unwrap().push((context.addr(), event.action, event.address, event.bytes));
}

fn told() -> Vec<(usize, c_int, u64, u64)> {
    std::mem::take(&mut *TOLD.lock().unwrap())
}

fn context(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

fn add(pool: CPool, function: Option<Observer>, number: usize) -> c_int {
    // SAFETY: the function takes any context, from any thread.
    unsafe { (C_API.pool_on_segment)(pool.0, function, context(number)) }
}

fn remove(pool: CPool, function: Option<Observer>, number: usize) -> c_int {
    // SAFETY: as above.
    unsafe { (C_API.pool_remove_segment_callback)(pool.0, function, context(number)) }
}

#[test]
fn each_segment_is_told_of_until_the_callback_is_removed_or_the_pool_is_gone() {
    memory!();
    let stream = stream(0);
    let pool = create(PoolOptions { no_split: 1, ..options() });
    let first = pool.allocate(8 * MIB, &stream);
    succeeded(add(pool, Some(note), 1));
    succeeded(add(pool, Some(note), 2));
    let (start, bytes) = (first.0, 8 * MIB);
    assert_eq!(told(), [(1, SEGMENT_ALLOC, start, bytes), (2, SEGMENT_ALLOC, start, bytes)]);
    let second = pool.allocate(16 * MIB, &stream);
    let (next, more) = (second.0, 16 * MIB);
    assert_eq!(told(), [(1, SEGMENT_ALLOC, next, more), (2, SEGMENT_ALLOC, next, more)]);
    free(first);
    assert_eq!((told(), pool.trim()), (vec![], 8 * MIB));
    assert_eq!(told(), [(1, SEGMENT_FREE, start, bytes), (2, SEGMENT_FREE, start, bytes)]);
    succeeded(remove(pool, Some(note), 1));
    failed(remove(pool, Some(note), 1), INVALID_VALUE, &["no such callback"]);
    pool.release();
    assert_eq!(told(), []);
    free(second);
    assert_eq!(told(), [(2, SEGMENT_FREE, next, more)]);
}

#[test]
fn what_cannot_be_told_of_is_refused() {
    memory!();
    let (plain, whole) = (create(options()), create(PoolOptions { no_split: 1, ..options() }));
    failed(add(plain, Some(note), 1), INVALID_VALUE, &[&plain.id().to_string(), "no_split"]);
    failed(remove(whole, Some(note), 1), INVALID_VALUE, &[&whole.id().to_string(), "no such callback"]);
    failed(add(CPool(std::ptr::null_mut()), Some(note), 1), INVALID_VALUE, &["pool is a null pointer"]);
    // A callback is another pool's, though function and context are the same.
    succeeded(add(whole, Some(note), 1));
    failed(remove(plain, Some(note), 1), INVALID_VALUE, &["no such callback"]);
    plain.release();
    whole.release();
    failed(remove(whole, Some(note), 1), INVALID_VALUE, &["was released"]);
}
