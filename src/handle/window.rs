//! The window: what one thread holds of every pool until it ends. Nothing here calls a library or a driver, and the end
//! of the thread only moves handles to their pools. If a library keeps scratch memory in its handles, a thread has one
//! for each stream.

use std::cell::RefCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::device_pool::DevicePool;
use super::handle_queue::HoldKind;
use super::pooled_handle::PooledHandle;
use crate::error::{Error, Result};
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

/// How many handles a thread gets on a device if it has one for each stream: as many as a handle of cuBLAS has
/// workspaces. After that the one with the longest-held stream goes to the next stream, since no driver reports when a
/// stream is gone. A choice, which rests on no measurement.
const STREAMS: usize = 8;

/// A handle in a window. It goes back to its pool when it is out of the window and no call uses it any more.
pub(super) struct HeldHandle(pub(super) Arc<PooledHandle>);

impl Drop for HeldHandle {
    fn drop(&mut self) {
        self.0.home.give_back(&self.0);
    }
}

/// What a thread has of a pool on a device.
#[derive(Default)]
struct ThreadSlot {
    /// The handles that it holds, that with the longest-held stream first.
    held: Vec<Rc<HeldHandle>>,
    /// The one that it gave back last, for a lease. Anybody may have it by now.
    given_back: Weak<PooledHandle>,
}

/// By the number of the pool on the device.
struct Window(RefCell<Vec<ThreadSlot>>);

thread_local! {
    static WINDOW: Window = const { Window(RefCell::new(Vec::new())) };
}

impl Window {
    /// Runs `change` on the slot of a pool; none in a thread that is ending, or in the midst of another change.
    fn change<R>(on: &DevicePool, change: impl FnOnce(&mut ThreadSlot) -> R) -> Option<R> {
        let changed = WINDOW.try_with(|window| {
            let mut slots = window.0.try_borrow_mut().ok()?;
            if slots.len() <= on.number {
                slots.resize_with(on.number + 1, ThreadSlot::default);
            }
            slots.get_mut(on.number).map(change)
        });
        changed.ok().flatten()
    }
}

/// Returns this thread's handle for the stream, if it holds one. It cannot go away meanwhile, though the window is free
/// for requests for others.
#[inline]
pub(super) fn held(on: &DevicePool, stream: &Stream) -> Option<Rc<HeldHandle>> {
    let find = |window: &Window| {
        let slots = window.0.try_borrow().ok()?;
        let mut held = slots.get(on.number)?.held.iter();
        if on.has_handle_for_each_stream { held.find(|held| held.0.is_ready_for(stream)) } else { held.next() }.cloned()
    };
    WINDOW.try_with(find).ok().flatten()
}

/// Takes the handle that this thread gave back last, if it is idle still, last ran on this stream, and no request
/// waits.
#[inline]
pub(super) fn take_given_back(on: &DevicePool, stream: &Stream) -> Option<Arc<PooledHandle>> {
    let find = |window: &Window| window.0.try_borrow().ok()?.get(on.number)?.given_back.upgrade();
    let pooled = WINDOW.try_with(find).ok().flatten()?;
    if !on.queue.take_again(&pooled) {
        return None;
    }
    if pooled.is_ready_for(stream) {
        return Some(pooled);
    }
    on.put_idle(&pooled);
    None
}

/// Notes a handle that this thread is about to give back.
#[inline]
pub(super) fn note_given_back(pooled: &Arc<PooledHandle>) {
    Window::change(pooled.home, |slot| {
        if !std::ptr::eq(slot.given_back.as_ptr(), Arc::as_ptr(pooled)) {
            slot.given_back = Arc::downgrade(pooled);
        }
    });
}

/// Returns a handle that the thread holds for another stream, if it may hold no more. It holds it until a request has
/// it.
pub(super) fn to_reuse(on: &DevicePool) -> Option<Arc<PooledHandle>> {
    if !on.has_handle_for_each_stream {
        return None;
    }
    // If others hold the rest of the limit, waiting for them might be waiting for this thread.
    let is_last = || on.queue.is_full() && on.queue.idle_count() == 0;
    let first = |slot: &mut ThreadSlot| {
        let first = slot.held.first().filter(|_| slot.held.len() >= STREAMS || is_last());
        first.map(|held| Arc::clone(&held.0))
    };
    Window::change(on, first).flatten()
}

/// Holds a handle, as its pool's newest of this thread's.
///
/// # Errors
/// `ErrorKind::InvalidValue`, and the handle goes back, if the window is gone, which happens while the thread's locals
/// are destroyed, or if the pool was asked for a handle in the midst of another request.
pub(super) fn hold(pooled: &Arc<PooledHandle>) -> Result<()> {
    pooled.state.hold(HoldKind::Window);
    let on = pooled.home;
    let kept = Window::change(on, |slot| {
        let held = &mut slot.held;
        let place = held.iter().position(|held| Arc::ptr_eq(&held.0, pooled));
        if place.is_none() && !held.is_empty() && !on.has_handle_for_each_stream {
            return Err("a create or set_stream callback asked its own pool for a handle; it must not");
        }
        let newest = place.map_or_else(|| Rc::new(HeldHandle(Arc::clone(pooled))), |place| held.remove(place));
        held.push(newest);
        Ok((held.len() > STREAMS).then(|| held.remove(0)))
    });
    let is_gone = "this thread is ending and its handles have gone back to their pools; \
                   ask for handles before its thread-locals are destroyed";
    match kept.unwrap_or(Err(is_gone)) {
        // The oldest one may go back for it, now that the window is free.
        Ok(_oldest) => Ok(()),
        Err(why) => {
            on.give_back(pooled);
            Err(Error::invalid_value(why))
        }
    }
}

/// Takes this thread's handles of a pool out of its window. One in use goes back after that.
pub(super) fn release(on: &DevicePool) {
    drop(Window::change(on, |slot| std::mem::take(&mut slot.held)));
}
