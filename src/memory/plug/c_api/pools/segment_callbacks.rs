//! Callbacks of C's that are told of a pool's segments.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, Weak};

use super::handle::PoolHandle;
use super::{ordinal, pool_of};
use crate::error::Error;
use crate::memory::cache::MemoryAction;
use crate::memory::plug::c_api::call::{null, run};
use crate::memory::plug::c_api::event::{Event, Observer};
use crate::memory::pool::{Pool, SegmentEvent, SegmentEventKind};
use crate::memory::serve::{SegmentGuard, on_segment};
use crate::observe::recording;
use crate::sync::lock;

/// A function and what it is called with, by which it is known.
#[derive(Clone, Copy, Debug)]
struct Callback {
    function: Observer,
    context: *mut c_void,
}

// SAFETY: the program that gives the two promises that the function may be called so from any thread.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Callback {
    fn is(&self, function: Observer, context: *mut c_void) -> bool {
        std::ptr::fn_addr_eq(self.function, function) && self.context == context
    }

    fn call(&self, event: &SegmentEvent) {
        let action = match event.kind {
            SegmentEventKind::Added => MemoryAction::SegmentAlloc,
            SegmentEventKind::Removed => MemoryAction::SegmentFree,
        };
        let event = Event {
            size: size_of::<Event>() as u64,
            action: action as c_int,
            device: ordinal(event.device),
            address: event.address,
            bytes: event.nbytes,
            stream: std::ptr::null_mut(),
            pool: event.pool,
            unix_micros: recording::unix_micros(recording::now()),
            stack: 0,
        };
        // SAFETY: the program that gave the function promises that it may be called so until it is removed.
        unsafe { (self.function)(self.context, &raw const event) };
    }
}

/// A callback that is registered, and the pool that it is told of.
struct Registered {
    pool: Weak<Pool>,
    callback: Callback,
    guard: SegmentGuard,
}

static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// Tells the function of the pool's segments from now on, and of those that are there.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn pool_add_segment_callback(
    pool: *mut PoolHandle,
    function: Option<Observer>,
    context: *mut c_void,
) -> c_int {
    run(|| {
        let pool = pool_of(pool)?;
        let callback = Callback { function: function.ok_or_else(|| null("callback"))?, context };
        let guard = on_segment(&pool, Box::new(move |event| callback.call(event)))?;
        let added = Registered { pool: Arc::downgrade(&pool), callback, guard };
        let gone: Vec<_> = {
            let mut registered = lock(&REGISTERED);
            registered.push(added);
            registered.extract_if(.., |other| other.pool.strong_count() == 0).collect()
        };
        // Outside the lock.
        drop(gone);
        Ok(())
    })
}

/// Tells the function no more, with this context.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn pool_remove_segment_callback(
    pool: *mut PoolHandle,
    function: Option<Observer>,
    context: *mut c_void,
) -> c_int {
    run(|| {
        let pool = pool_of(pool)?;
        let function = function.ok_or_else(|| null("callback"))?;
        let removed = {
            let mut registered = lock(&REGISTERED);
            let is_meant = |other: &Registered| {
                other.callback.is(function, context) && std::ptr::eq(other.pool.as_ptr(), Arc::as_ptr(&pool))
            };
            let place = registered.iter().rposition(is_meant);
            place.map(|place| registered.remove(place))
        };
        // Its guard ends outside the lock.
        removed.map(|removed| drop(removed.guard)).ok_or_else(|| {
            Error::invalid_value(format!(
                "no such callback is told of the segments of pool {}; give the function and the context that were added",
                pool.label()
            ))
        })
    })
}
