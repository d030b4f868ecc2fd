//! The window: what one thread holds of every pool.
//!
//! A thread's handle is two array look-ups away. Nothing here calls a library or a driver, and the end of the thread
//! only moves handles to their pools.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use super::built_in;
use super::pool::Shared;
use super::record::Record;
use crate::error::{Error, Result};
use crate::stream::Device;

/// How many pools a process can have: as many as a byte tells apart. Pools are never dropped, so a window indexes them
/// directly.
pub(super) const MAX_POOLS: usize = 1 << u8::BITS;

/// One thread's handles of one pool, by device.
struct Row<S> {
    pool: &'static Shared,
    slots: Box<[S]>,
}

impl<S: Default> Row<S> {
    fn new(pool: &'static Shared, devices: usize) -> Self {
        Self { pool, slots: (0..devices).map(|_| S::default()).collect() }
    }

    fn give_back(self, into_record: impl Fn(S) -> Option<Arc<Record>>) {
        for (ordinal, slot) in (0..).zip(self.slots) {
            if let Some(record) = into_record(slot) {
                self.pool.give_back(Device::from_ordinal(ordinal), record);
            }
        }
    }
}

/// gpupool's own pools are never closed, so a thread keeps their handles to its end.
type BuiltInSlot = OnceCell<Arc<Record>>;

/// A user's pool may be closed, which takes the handle out again.
type OwnSlot = RefCell<Option<Arc<Record>>>;

/// Small, since every thread that takes a handle touches all of it: users' own pools get their places when first used.
struct Window {
    built_in: [OnceCell<Row<BuiltInSlot>>; built_in::COUNT],
    own: OnceCell<Box<[OnceCell<Row<OwnSlot>>]>>,
}

thread_local! {
    static WINDOW: Window =
        const { Window { built_in: [const { OnceCell::new() }; built_in::COUNT], own: OnceCell::new() } };
}

impl Window {
    fn own_slot(&self, pool: &Shared, device: Device) -> Option<&OwnSlot> {
        self.own.get()?.get(pool.id() - built_in::COUNT)?.get()?.slots.get(device.ordinal())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        for row in self.built_in.iter_mut().filter_map(OnceCell::take) {
            row.give_back(OnceCell::into_inner);
        }
        for row in self.own.take().into_iter().flatten().filter_map(OnceCell::into_inner) {
            row.give_back(RefCell::into_inner);
        }
    }
}

/// Runs `f` on this thread's handle of the pool, if it holds one. Meanwhile the handle cannot go away, though `f` may ask
/// for others.
#[inline]
pub(super) fn with_held<R>(pool: &Shared, device: Device, f: impl FnOnce(&Record) -> R) -> Option<R> {
    let held = WINDOW.try_with(|window| match window.built_in.get(pool.id()) {
        Some(row) => row.get()?.slots.get(device.ordinal())?.get().map(|record| f(record)),
        None => window.own_slot(pool, device)?.try_borrow().ok()?.as_deref().map(f),
    });
    held.ok().flatten()
}

/// Puts a handle into this thread's empty slot.
///
/// # Errors
/// The record comes back with the error if the window is gone, which happens while the thread's locals are destroyed.
pub(super) fn hold(
    pool: &'static Shared,
    device: Device,
    devices: usize,
    record: Arc<Record>,
) -> Result<(), (Error, Arc<Record>)> {
    let mut record = Some(record);
    let held = WINDOW.try_with(|window| {
        if let Some(row) = window.built_in.get(pool.id()) {
            let slot = row.get_or_init(|| Row::new(pool, devices)).slots.get(device.ordinal())?;
            if slot.get().is_none()
                && let Some(record) = record.take()
            {
                // It was empty, and nothing can have filled it since.
                let _ = slot.set(record);
            }
        } else {
            let rows = window.own.get_or_init(|| (built_in::COUNT..MAX_POOLS).map(|_| OnceCell::new()).collect());
            let row = rows.get(pool.id() - built_in::COUNT)?.get_or_init(|| Row::new(pool, devices));
            let mut slot = row.slots.get(device.ordinal())?.try_borrow_mut().ok()?;
            if slot.is_none() {
                *slot = record.take();
            }
        }
        Some(())
    });
    match (held, record) {
        (_, None) => Ok(()),
        (Err(_), Some(record)) => {
            let gone = "this thread is ending and its handles have gone back to their pools; \
                        ask for handles before its thread-locals are destroyed";
            Err((Error::invalid_value(gone), record))
        }
        (Ok(_), Some(record)) => {
            let reentered = "a create or set_stream callback asked its own pool for a handle; it must not";
            Err((Error::invalid_value(reentered), record))
        }
    }
}

/// Takes this thread's handle of a user's pool out of its slot, if it holds one and is not just using it.
pub(super) fn release(pool: &Shared, device: Device) -> Option<Arc<Record>> {
    WINDOW.try_with(|window| window.own_slot(pool, device)?.try_borrow_mut().ok()?.take()).ok().flatten()
}
