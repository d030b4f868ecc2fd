//! The window: what one thread holds of every pool.
//!
//! A thread's handle is one array look-up away. Nothing here calls a library or a driver, and the end of the thread only
//! moves handles to their pools.

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::device_pool::{Holder, PooledHandle};
use super::events::{self, HandleAction};
use super::pool::{BUILT_IN, Pool};
use super::request::Claim;
use crate::error::{Error, Result};
use crate::ids::Device;

/// A handle that the calling thread holds until it ends, with its stream set.
///
/// It cannot leave the thread. Until the thread ends, asking again for the same device gives the same handle.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    address: NonNull<c_void>,
    this_thread: PhantomData<*mut ()>,
}

impl Handle {
    /// Makes a handle that this thread's window holds.
    #[inline]
    pub(super) fn of(pooled: &PooledHandle) -> Self {
        Self { address: pooled.handle.as_non_null(), this_thread: PhantomData }
    }

    /// Returns the handle as the library's C API takes it: a `cudnnHandle_t`, `cublasHandle_t`, ...
    #[inline]
    pub const fn as_ptr(self) -> *mut c_void {
        self.address.as_ptr()
    }
}

impl Claim for Handle {
    fn claim(pool: &'static Pool, device: Device, pooled: Arc<PooledHandle>) -> Result<Self> {
        let handle = Self::of(&pooled);
        events::note(pool.library, device, HandleAction::Take, &pooled.handle);
        if let Err((error, pooled)) = hold(pool, device, pooled) {
            pool.give_back(device, pooled);
            return Err(error);
        }
        Ok(handle)
    }
}

/// How many devices have a place in the array; most machines have no more.
const NEAR_DEVICES: usize = 8;

/// A place for a handle of one of gpupool's own pools, which are never closed: the thread keeps it to its end.
type NearSlot = OnceCell<Arc<PooledHandle>>;

/// The places for a pool of gpupool's own.
struct NearPool {
    /// The pool; none before the first handle.
    pool: Cell<Option<&'static Pool>>,
    slots: [NearSlot; NEAR_DEVICES],
}

/// A place for any other handle. Closing a user's pool takes the handle out again.
struct FarSlot {
    pool: &'static Pool,
    device: Device,
    pooled: RefCell<Option<Arc<PooledHandle>>>,
}

/// Without a heap allocation until a far handle is held: a thread may live for no more than two handles.
struct Window {
    near: [NearPool; BUILT_IN],
    far: RefCell<Vec<Rc<FarSlot>>>,
}

thread_local! {
    static WINDOW: Window = const {
        Window {
            near: [const { NearPool { pool: Cell::new(None), slots: [const { NearSlot::new() }; NEAR_DEVICES] } }; BUILT_IN],
            far: RefCell::new(Vec::new()),
        }
    };
}

impl Window {
    #[inline]
    fn near_slot(&self, pool: &Pool, device: Device) -> Option<&NearSlot> {
        self.near.get(pool.id())?.slots.get(device.ordinal())
    }

    /// Returns the place of a far handle. Shared, so that the list is free while the place is used.
    fn far_slot(&self, pool: &Pool, device: Device) -> Option<Rc<FarSlot>> {
        let far = self.far.try_borrow().ok()?;
        far.iter().find(|slot| slot.pool.id() == pool.id() && slot.device == device).map(Rc::clone)
    }

    fn far_slot_or_new(&self, pool: &'static Pool, device: Device) -> Option<Rc<FarSlot>> {
        self.far_slot(pool, device).or_else(|| {
            let slot = Rc::new(FarSlot { pool, device, pooled: RefCell::new(None) });
            self.far.try_borrow_mut().ok()?.push(Rc::clone(&slot));
            Some(slot)
        })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        for near in &mut self.near {
            let Some(pool) = near.pool.get() else { continue };
            for (ordinal, slot) in (0..).zip(&mut near.slots) {
                if let Some(pooled) = slot.take() {
                    pool.give_back(Device::from_ordinal(ordinal), pooled);
                }
            }
        }
        for slot in self.far.get_mut() {
            let pooled = slot.pooled.try_borrow_mut().ok().and_then(|mut pooled| pooled.take());
            if let Some(pooled) = pooled {
                slot.pool.give_back(slot.device, pooled);
            }
        }
    }
}

/// Runs `f` on this thread's handle of the pool, if it holds one. Meanwhile the handle cannot go away, though `f` may ask
/// for others.
#[inline]
pub(super) fn with_held<R>(pool: &Pool, device: Device, f: impl FnOnce(&PooledHandle) -> R) -> Option<R> {
    let held = WINDOW.try_with(|window| match window.near_slot(pool, device) {
        Some(slot) => slot.get().map(|pooled| f(pooled)),
        None => window.far_slot(pool, device)?.pooled.try_borrow().ok()?.as_deref().map(f),
    });
    held.ok().flatten()
}

/// Puts a handle into this thread's empty slot.
///
/// # Errors
/// The handle comes back with the error if the window is gone, which happens while the thread's locals are destroyed.
fn hold(pool: &'static Pool, device: Device, pooled: Arc<PooledHandle>) -> Result<(), (Error, Arc<PooledHandle>)> {
    pooled.hold(Holder::window());
    let mut pooled = Some(pooled);
    let held = WINDOW.try_with(|window| {
        if let Some(slot) = window.near_slot(pool, device) {
            if let Some(pooled) = pooled.take_if(|_| slot.get().is_none()) {
                window.near[pool.id()].pool.set(Some(pool));
                // It is empty, so this cannot fail.
                let _ = slot.set(pooled);
            }
        } else {
            let slot = window.far_slot_or_new(pool, device)?;
            let mut place = slot.pooled.try_borrow_mut().ok()?;
            if place.is_none() {
                *place = pooled.take();
            }
        }
        Some(())
    });
    match (held, pooled) {
        (_, None) => Ok(()),
        (Err(_), Some(pooled)) => {
            let gone = "this thread is ending and its handles have gone back to their pools; \
                        ask for handles before its thread-locals are destroyed";
            Err((Error::invalid_value(gone), pooled))
        }
        (Ok(_), Some(pooled)) => {
            let reentered = "a create or set_stream callback asked its own pool for a handle; it must not";
            Err((Error::invalid_value(reentered), pooled))
        }
    }
}

/// Takes this thread's handle of a user's pool out of its slot, if it holds one and is not just using it.
pub(super) fn release(pool: &Pool, device: Device) -> Option<Arc<PooledHandle>> {
    WINDOW.try_with(|window| window.far_slot(pool, device)?.pooled.try_borrow_mut().ok()?.take()).ok().flatten()
}
