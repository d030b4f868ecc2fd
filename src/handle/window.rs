//! The window: what one thread holds of every pool. A thread's handle is one array look-up away. Nothing here calls a
//! library or a driver, and the end of the thread only moves handles to their pools. If a library keeps scratch memory
//! in its handles, a thread has one for each stream.

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::device_pool::{Holder, PooledHandle};
use super::events::{self, HandleAction};
use super::pool::{LibraryPool, NEAR};
use super::request::Claim;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::runtime::Stream;

/// A handle that the calling thread holds until it ends, with its stream set.
///
/// It cannot leave the thread. Until the thread ends, every request for the same device returns the same handle; if the
/// library's handles cannot be shared by streams, every request for the same stream.
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
    fn claim(pool: &'static LibraryPool, stream: &Stream, pooled: Arc<PooledHandle>) -> Result<Self> {
        let (handle, device) = (Self::of(&pooled), stream.device());
        let own = far_slots(pool, device);
        let place = own.iter().find(|slot| slot.has(&pooled));
        if place.is_some_and(|of_another_stream| of_another_stream.take().is_some()) {
            events::note(pool.library, device, HandleAction::GiveBack, &pooled.handle);
        }
        events::note(pool.library, device, HandleAction::Take, &pooled.handle);
        if let Err((error, pooled)) = hold(pool, stream, pooled) {
            pool.give_back(device, pooled);
            return Err(error);
        }
        let is_one_too_many = place.is_none() && own.len() >= STREAMS;
        if let Some(oldest) = own.first().filter(|_| is_one_too_many).and_then(|oldest| oldest.take()) {
            pool.give_back(device, oldest);
        }
        Ok(handle)
    }

    fn own(pool: &'static LibraryPool, device: Device) -> Option<Arc<PooledHandle>> {
        if !pool.library.keeps_scratch() {
            return None;
        }
        let (own, on_device) = (far_slots(pool, device), pool.on(device).ok()?);
        // If others hold the rest of the limit, waiting for them might be waiting for this thread.
        let is_last = || on_device.is_full() && on_device.idle_count() == 0;
        own.first().filter(|_| own.len() >= STREAMS || is_last())?.unused()
    }
}

/// How many handles a thread gets on a device if it has one for each stream: as many as a handle of cuBLAS has
/// workspaces. After that the one with the longest-held stream goes to the next stream, since no driver reports when a
/// stream is gone. A choice, which rests on no measurement.
const STREAMS: usize = 8;

/// How many devices have a place in the array; most machines have no more.
const NEAR_DEVICES: usize = 8;

/// A place for a handle of one of gpupool's own pools, which are never closed: the thread keeps it to its end.
type NearSlot = OnceCell<Arc<PooledHandle>>;

struct NearPool {
    /// The pool; none before the first handle.
    pool: Cell<Option<&'static LibraryPool>>,
    slots: [NearSlot; NEAR_DEVICES],
}

/// A place for any other handle. Closing a user's pool takes the handle out again, as does another stream.
struct FarSlot {
    pool: &'static LibraryPool,
    device: Device,
    pooled: RefCell<Option<Arc<PooledHandle>>>,
}

impl FarSlot {
    fn is_of(&self, pool: &LibraryPool, device: Device) -> bool {
        self.pool.id() == pool.id() && self.device == device
    }

    fn is_empty(&self) -> bool {
        self.pooled.try_borrow().is_ok_and(|pooled| pooled.is_none())
    }

    /// Returns the handle, unless it is in use.
    fn unused(&self) -> Option<Arc<PooledHandle>> {
        self.pooled.try_borrow_mut().ok()?.clone()
    }

    fn has(&self, pooled: &Arc<PooledHandle>) -> bool {
        self.unused().is_some_and(|own| Arc::ptr_eq(&own, pooled))
    }

    /// Takes the handle out, unless it is in use.
    fn take(&self) -> Option<Arc<PooledHandle>> {
        self.pooled.try_borrow_mut().ok()?.take()
    }

    /// Returns whether a request for the stream uses this place. `by_stream`: the library has a handle for each stream.
    fn is_for(&self, stream: &Stream, by_stream: bool) -> bool {
        let is_ready = |pooled: &PooledHandle| pooled.is_ready_for(stream);
        !by_stream || self.pooled.try_borrow().is_ok_and(|pooled| pooled.as_deref().is_some_and(is_ready))
    }
}

/// Without a heap allocation until a far handle is held: a thread may live for no more than two handles.
struct Window {
    near: [NearPool; NEAR],
    far: RefCell<Vec<Rc<FarSlot>>>,
}

thread_local! {
    static WINDOW: Window = const {
        Window {
            near: [const { NearPool { pool: Cell::new(None), slots: [const { NearSlot::new() }; NEAR_DEVICES] } }; NEAR],
            far: RefCell::new(Vec::new()),
        }
    };
}

impl Window {
    #[inline]
    fn near_slot(&self, pool: &LibraryPool, device: Device) -> Option<&NearSlot> {
        self.near.get(pool.id())?.slots.get(device.ordinal())
    }

    /// Returns the place of a far handle. Shared, so that the list is free while the place is used.
    fn far_slot(&self, pool: &LibraryPool, stream: &Stream) -> Option<Rc<FarSlot>> {
        let by_stream = pool.library.keeps_scratch();
        let is_wanted = |slot: &&Rc<FarSlot>| slot.is_of(pool, stream.device()) && slot.is_for(stream, by_stream);
        self.far.try_borrow().ok()?.iter().find(is_wanted).map(Rc::clone)
    }

    fn far_slot_or_new(&self, pool: &'static LibraryPool, stream: &Stream) -> Option<Rc<FarSlot>> {
        self.far_slot(pool, stream).or_else(|| {
            let slot = Rc::new(FarSlot { pool, device: stream.device(), pooled: RefCell::new(None) });
            let mut far = self.far.try_borrow_mut().ok()?;
            // Drops places whose handles went over to other streams.
            far.retain(|slot| !slot.is_of(pool, stream.device()) || !slot.is_empty());
            far.push(Rc::clone(&slot));
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

/// Runs `f` on this thread's handle for the stream, if it holds one. Meanwhile the handle cannot go away, though `f`
/// may request others.
#[inline]
pub(super) fn with_held<R>(pool: &LibraryPool, stream: &Stream, f: impl FnOnce(&PooledHandle) -> R) -> Option<R> {
    let held = WINDOW.try_with(|window| match window.near_slot(pool, stream.device()) {
        Some(slot) => slot.get().map(|pooled| f(pooled)),
        None => window.far_slot(pool, stream)?.pooled.try_borrow().ok()?.as_deref().map(f),
    });
    held.ok().flatten()
}

/// # Errors
/// The handle comes back with the error if the window is gone, which happens while the thread's locals are destroyed.
fn hold(
    pool: &'static LibraryPool,
    stream: &Stream,
    pooled: Arc<PooledHandle>,
) -> Result<(), (Error, Arc<PooledHandle>)> {
    pooled.hold(Holder::window());
    let mut pooled = Some(pooled);
    let held = WINDOW.try_with(|window| {
        if let Some(slot) = window.near_slot(pool, stream.device()) {
            if let Some(pooled) = pooled.take_if(|_| slot.get().is_none()) {
                window.near[pool.id()].pool.set(Some(pool));
                // It is empty, so this cannot fail.
                let _ = slot.set(pooled);
            }
        } else {
            let slot = window.far_slot_or_new(pool, stream)?;
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

/// Returns the places of this thread's far handles of a pool on a device, oldest first.
fn far_slots(pool: &LibraryPool, device: Device) -> Vec<Rc<FarSlot>> {
    let slots = WINDOW.try_with(|window| {
        let is_own = |slot: &&Rc<FarSlot>| slot.is_of(pool, device) && !slot.is_empty();
        window.far.try_borrow().map(|far| far.iter().filter(is_own).map(Rc::clone).collect())
    });
    slots.ok().and_then(Result::ok).unwrap_or_default()
}

/// Takes this thread's handles of a user's pool out of their slots, except those in use.
pub(super) fn release(pool: &LibraryPool, device: Device) -> Vec<Arc<PooledHandle>> {
    far_slots(pool, device).iter().filter_map(|slot| slot.take()).collect()
}
