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

/// One thread's handle of one pool on one device.
type Slot = RefCell<Option<Arc<Record>>>;

/// One thread's handles of one pool, by device.
struct Row {
    pool: &'static Shared,
    slots: Box<[Slot]>,
}

/// A place for a row, empty until the thread holds a handle of that pool.
type Place = OnceCell<Row>;

/// Small, since every thread that takes a handle touches all of it: users' own pools get their places when first used.
struct Window {
    built_in: [Place; built_in::COUNT],
    own: OnceCell<Box<[Place]>>,
}

thread_local! {
    static WINDOW: Window =
        const { Window { built_in: [const { Place::new() }; built_in::COUNT], own: OnceCell::new() } };
}

impl Window {
    #[inline]
    fn row(&self, pool: &Shared) -> Option<&Row> {
        match self.built_in.get(pool.id()) {
            Some(place) => place.get(),
            None => self.own.get()?.get(pool.id() - built_in::COUNT)?.get(),
        }
    }

    fn place(&self, pool: &Shared) -> Option<&Place> {
        let own = || (built_in::COUNT..MAX_POOLS).map(|_| Place::new()).collect();
        match self.built_in.get(pool.id()) {
            Some(place) => Some(place),
            None => self.own.get_or_init(own).get(pool.id() - built_in::COUNT),
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let own = self.own.take().unwrap_or_default();
        let built_in = self.built_in.iter_mut().filter_map(Place::take);
        for row in built_in.chain(own.into_iter().filter_map(Place::into_inner)) {
            for (ordinal, slot) in (0..).zip(row.slots) {
                if let Some(record) = slot.into_inner() {
                    row.pool.give_back(Device::from_ordinal(ordinal), record);
                }
            }
        }
    }
}

/// Runs `f` on this thread's handle of the pool, if it holds one.
///
/// The slot stays borrowed meanwhile: `f` may ask for handles of its own, but cannot make this one go away.
#[inline]
pub(super) fn with_held<R>(pool: &Shared, device: Device, f: impl FnOnce(&Record) -> R) -> Option<R> {
    WINDOW
        .try_with(|window| {
            let slot = window.row(pool)?.slots.get(device.ordinal())?.try_borrow().ok()?;
            slot.as_deref().map(f)
        })
        .ok()
        .flatten()
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
        let new_row = || Row { pool, slots: (0..devices).map(|_| Slot::default()).collect() };
        let row = window.place(pool)?.get_or_init(new_row);
        let mut slot = row.slots.get(device.ordinal())?.try_borrow_mut().ok()?;
        if slot.is_none() {
            *slot = record.take();
        }
        Some(())
    });
    match (held, record) {
        (_, None) => Ok(()),
        (Err(_), Some(record)) => {
            let gone = "this thread is ending and its handles have gone back to their pools; ask for handles before its \
                        thread-locals are destroyed";
            Err((Error::invalid_value(gone.to_owned()), record))
        }
        (Ok(_), Some(record)) => {
            let reentered = "a create or set_stream callback asked its own pool for a handle; it must not";
            Err((Error::invalid_value(reentered.to_owned()), record))
        }
    }
}

/// Takes this thread's handle out of its slot, if it holds one and is not just using it.
pub(super) fn release(pool: &Shared, device: Device) -> Option<Arc<Record>> {
    let taken = WINDOW.try_with(|window| window.row(pool)?.slots.get(device.ordinal())?.try_borrow_mut().ok()?.take());
    taken.ok().flatten()
}
