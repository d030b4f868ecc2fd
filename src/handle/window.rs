//! The window: what one thread holds of every pool.
//!
//! A thread's handle is one array look-up away. Nothing here calls a library or a driver, and the end of the thread only
//! moves handles to their pools.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::built_in;
use super::holder::Holder;
use super::record::Record;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::ids::Device;

/// How many devices have a place in the array; most machines have no more.
const NEAR_DEVICES: usize = 8;

/// A place for a handle of gpupool's own pools, which are never closed: the thread keeps it to its end.
type NearSlot = OnceCell<Arc<Record>>;

/// A place for any other handle. Closing a user's pool takes the handle out again.
struct FarSlot {
    pool: &'static Shared,
    device: Device,
    record: RefCell<Option<Arc<Record>>>,
}

/// Without a heap allocation until a far handle is held: a thread may live for no more than two handles.
struct Window {
    near: [[NearSlot; NEAR_DEVICES]; built_in::COUNT],
    far: RefCell<Vec<Rc<FarSlot>>>,
}

thread_local! {
    static WINDOW: Window = const {
        Window {
            near: [const { [const { NearSlot::new() }; NEAR_DEVICES] }; built_in::COUNT],
            far: RefCell::new(Vec::new()),
        }
    };
}

impl Window {
    #[inline]
    fn near_slot(&self, pool: &Shared, device: Device) -> Option<&NearSlot> {
        self.near.get(pool.id())?.get(device.ordinal())
    }

    /// Shared, so that the list is free while the slot is used.
    fn far_slot(&self, pool: &Shared, device: Device) -> Option<Rc<FarSlot>> {
        let far = self.far.try_borrow().ok()?;
        far.iter().find(|slot| slot.pool.id() == pool.id() && slot.device == device).map(Rc::clone)
    }

    fn far_slot_or_new(&self, pool: &'static Shared, device: Device) -> Option<Rc<FarSlot>> {
        self.far_slot(pool, device).or_else(|| {
            let slot = Rc::new(FarSlot { pool, device, record: RefCell::new(None) });
            self.far.try_borrow_mut().ok()?.push(Rc::clone(&slot));
            Some(slot)
        })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        for (slots, pool) in self.near.iter_mut().zip(built_in::ALL) {
            for (ordinal, slot) in (0..).zip(slots) {
                if let Some(record) = slot.take() {
                    pool.give_back(Device::from_ordinal(ordinal), record);
                }
            }
        }
        for slot in self.far.get_mut() {
            let record = slot.record.try_borrow_mut().ok().and_then(|mut record| record.take());
            if let Some(record) = record {
                slot.pool.give_back(slot.device, record);
            }
        }
    }
}

/// Runs `f` on this thread's handle of the pool, if it holds one. Meanwhile the handle cannot go away, though `f` may ask
/// for others.
#[inline]
pub(super) fn with_held<R>(pool: &Shared, device: Device, f: impl FnOnce(&Record) -> R) -> Option<R> {
    let held = WINDOW.try_with(|window| match window.near_slot(pool, device) {
        Some(slot) => slot.get().map(|record| f(record)),
        None => window.far_slot(pool, device)?.record.try_borrow().ok()?.as_deref().map(f),
    });
    held.ok().flatten()
}

/// Puts a handle into this thread's empty slot.
///
/// # Errors
/// The record comes back with the error if the window is gone, which happens while the thread's locals are destroyed.
pub(super) fn hold(pool: &'static Shared, device: Device, record: Arc<Record>) -> Result<(), (Error, Arc<Record>)> {
    record.hold(Holder::window());
    let mut record = Some(record);
    let held = WINDOW.try_with(|window| {
        if let Some(slot) = window.near_slot(pool, device) {
            if let Some(record) = record.take_if(|_| slot.get().is_none()) {
                // It is empty, so this cannot fail.
                let _ = slot.set(record);
            }
        } else {
            let slot = window.far_slot_or_new(pool, device)?;
            let mut place = slot.record.try_borrow_mut().ok()?;
            if place.is_none() {
                *place = record.take();
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
    WINDOW.try_with(|window| window.far_slot(pool, device)?.record.try_borrow_mut().ok()?.take()).ok().flatten()
}
