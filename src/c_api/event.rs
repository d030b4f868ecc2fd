//! Events: what the allocator did, as a struct of C's, and the observer that is called for each.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::callback::Callback;
use super::header::c_struct;
use super::recording::number_of;
use crate::memory::cache::{MemoryAction, MemoryEvent};
use crate::memory::plug::call::{pointer, run};
use crate::memory::pool::{PoolId, SegmentEvent, SegmentEventKind};
use crate::memory::report;
use crate::observe::recording;

c_struct! {
    /// `gpupool_event`: one thing that the allocator did.
    pub struct Event as "gpupool_event" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// A `gpupool_action`.
        pub action: c_int,
        /// The device.
        pub device: c_int,
        /// The start address of the block or the pages; for an OOM the bytes that the driver still had.
        pub address: u64,
        /// Their size in bytes.
        pub bytes: u64,
        /// The stream whose requests the memory serves.
        pub stream: *mut c_void,
        /// The pool.
        pub pool: PoolId,
        /// Microseconds since 1970.
        pub unix_micros: u64,
        /// The stack; 0 for none.
        pub stack: u32,
    }
}

/// Called for an event.
pub type Observer = unsafe extern "C" fn(*mut c_void, *const Event);

impl From<&MemoryEvent> for Event {
    fn from(event: &MemoryEvent) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            action: event.action as c_int,
            device: event.location.number() as c_int,
            address: event.address,
            bytes: event.nbytes,
            stream: pointer(event.stream as u64),
            pool: event.pool,
            unix_micros: event.unix_micros(),
            stack: number_of(event.stack),
        }
    }
}

impl From<&SegmentEvent> for Event {
    fn from(event: &SegmentEvent) -> Self {
        let action = match event.kind {
            SegmentEventKind::Added => MemoryAction::SegmentAlloc,
            SegmentEventKind::Removed => MemoryAction::SegmentFree,
        };
        Self {
            size: size_of::<Self>() as u64,
            action: action as c_int,
            device: event.device.number(),
            address: event.address,
            bytes: event.nbytes,
            stream: ptr::null_mut(),
            pool: event.pool,
            unix_micros: recording::unix_micros(recording::now()),
            stack: 0,
        }
    }
}

impl Callback<Observer> {
    pub(super) fn call(&self, event: &Event) {
        // SAFETY: the program that registered the function promises that it may be called so until it is removed.
        unsafe { (self.function)(self.context, event) };
    }
}

pub(super) unsafe extern "C" fn observe(observer: Option<Observer>, context: *mut c_void) -> c_int {
    run(|| {
        let _changes = recording::lock_changes();
        match observer.map(|function| Callback { function, context }) {
            Some(observer) => report::begin_observing(Arc::new(move |event| {
                if event.location.device().is_some() {
                    observer.call(&event.into());
                }
            })),
            None => report::end_observing(),
        }
        Ok(())
    })
}
