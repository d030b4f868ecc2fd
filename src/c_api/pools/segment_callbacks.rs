//! Callbacks of C's that are called for a pool's segments.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, Weak};

use super::super::callback::Callback;
use super::super::event::{Event, Observer};
use super::handle::PoolHandle;
use super::pool_of;
use crate::error::Error;
use crate::memory::SegmentGuard;
use crate::memory::plug::call::run;
use crate::memory::pool::Pool;
use crate::memory::serve::on_segment;
use crate::sync::{lock, take_last};

/// The pool, the callback that is called for its segments, and the guard that keeps it registered.
type PoolCallback = (Weak<Pool>, Callback<Observer>, SegmentGuard);

static REGISTERED: Mutex<Vec<PoolCallback>> = Mutex::new(Vec::new());

pub(in super::super) unsafe extern "C" fn pool_add_segment_callback(
    pool: *mut PoolHandle,
    function: Option<Observer>,
    context: *mut c_void,
) -> c_int {
    run(|| {
        let pool = pool_of(pool)?;
        let callback = Callback::new(function, context)?;
        let guard = on_segment(&pool, Box::new(move |event| callback.call(&Event::from(event))))?;
        let added = (Arc::downgrade(&pool), callback, guard);
        let gone: Vec<_> = {
            let mut registered = lock(&REGISTERED);
            registered.push(added);
            registered.extract_if(.., |(pool, ..)| pool.strong_count() == 0).collect()
        };
        // Outside the lock.
        drop(gone);
        Ok(())
    })
}

pub(in super::super) unsafe extern "C" fn pool_remove_segment_callback(
    pool: *mut PoolHandle,
    function: Option<Observer>,
    context: *mut c_void,
) -> c_int {
    run(|| {
        let pool = pool_of(pool)?;
        let meant = Callback::new(function, context)?;
        // The guard is dropped outside the lock.
        let removed = take_last(&mut lock(&REGISTERED), |(of, callback, _)| {
            *callback == meant && of.as_ptr() == Arc::as_ptr(&pool)
        });
        removed.map(drop).ok_or_else(|| {
            Error::invalid_value(format!(
                "no such callback is registered for pool {}; give the function and the context that were added",
                pool.label()
            ))
        })
    })
}
