//! Scopes from C: what they route into a pool, and how long.

use std::ffi::c_int;
use std::thread;

use crate::common::c_pools::{CPool, INVALID_VALUE, create, failed, options, succeeded};
use crate::common::memory::MIB;
use crate::common::stream;
use gpupool::c_api::C_API;
use gpupool::memory::pool_use_count;
use gpupool::{PoolId, Stream, device, empty};

fn enter(pool: CPool) -> u64 {
    let mut scope = 0;
    // SAFETY: the place is one for a number.
    succeeded(unsafe { (C_API.pool_enter)(pool.0, &raw mut scope) });
    assert_ne!(scope, 0);
    scope
}

fn leave(scope: u64) -> c_int {
    // SAFETY: it takes any number.
    unsafe { (C_API.scope_leave)(scope) }
}

fn pool_of_a_request(stream: &Stream) -> PoolId {
    empty(MIB, stream).unwrap().pool_id()
}

#[test]
fn the_innermost_scope_of_the_thread_says_where_requests_go() {
    memory!();
    let (stream, elsewhere) = (stream(0), stream(1));
    let (outer, inner) = (create(options()), create(options()));
    let first = enter(outer);
    assert_eq!(pool_of_a_request(&stream), outer.id());
    let second = enter(inner);
    let third = enter(outer);
    assert_eq!(pool_of_a_request(&stream), outer.id());
    succeeded(leave(third));
    assert_eq!(pool_of_a_request(&stream), inner.id());
    assert_eq!(pool_of_a_request(&elsewhere), PoolId::NONE, "a pool's memory is of its device");
    thread::scope(|threads| {
        threads.spawn(|| assert_eq!(pool_of_a_request(&stream), PoolId::NONE));
    });
    // Wherever it stands among the others.
    succeeded(leave(first));
    assert_eq!(pool_of_a_request(&stream), inner.id());
    succeeded(leave(second));
    assert_eq!(pool_of_a_request(&stream), PoolId::NONE);
    outer.release();
    inner.release();
}

#[test]
fn a_scope_keeps_its_pool_and_ends_with_its_thread() {
    memory!();
    let stream = stream(0);
    let pool = create(options());
    let id = pool.id();
    let uses = || pool_use_count(device(0).unwrap(), id).ok().flatten();
    thread::scope(|threads| {
        let thread = threads.spawn(|| {
            enter(pool);
            pool.release();
            assert_eq!((pool_of_a_request(&stream), uses()), (id, Some(1)));
        });
        // The end of the block would not wait for what ends with the thread.
        thread.join().expect("the thread does not panic");
    });
    assert_eq!(uses(), None);
}

#[test]
fn what_is_no_scope_or_no_pool_is_refused() {
    memory!();
    let pool = create(options());
    let scope = enter(pool);
    thread::scope(|threads| {
        threads.spawn(|| failed(leave(scope), INVALID_VALUE, &[&scope.to_string(), "on the thread that entered it"]));
    });
    succeeded(leave(scope));
    failed(leave(scope), INVALID_VALUE, &["leave each scope once"]);
    pool.release();
    let mut scope = 7;
    // SAFETY: a pool that was released is refused.
    failed(unsafe { (C_API.pool_enter)(pool.0, &raw mut scope) }, INVALID_VALUE, &["released"]);
    assert_eq!(scope, 0);
}
