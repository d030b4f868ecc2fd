//! The window: what one thread holds of every pool until it ends. Nothing here calls a library or a driver, and the end of the
//! thread only moves handles to their pools. If a library keeps scratch memory in its handles, a thread has one for each stream.

use std::cell::RefCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::device_pool::DevicePool;
use super::pooled_handle::{HoldKind, PooledHandle};
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
        self.0.home.give_back(Arc::clone(&self.0));
    }
}

/// A thread's handles by the number of their pool on the device, those of each with the longest-held stream first.
struct Window(RefCell<Vec<Vec<Rc<HeldHandle>>>>);

thread_local! {
    static WINDOW: Window = const { Window(RefCell::new(Vec::new())) };
}

/// Returns this thread's handle for the stream, if it holds one. It cannot go away meanwhile, though the window is free for
/// requests for others.
#[inline]
pub(super) fn held(on: &DevicePool, stream: &Stream) -> Option<Rc<HeldHandle>> {
    let find = |window: &Window| {
        let window = window.0.try_borrow().ok()?;
        let mut own = window.get(on.number)?.iter();
        if on.has_handle_for_each_stream { own.find(|held| held.0.is_ready_for(stream)) } else { own.next() }.cloned()
    };
    WINDOW.try_with(find).ok().flatten()
}

/// Returns a handle that the thread holds for another stream, if it may hold no more. It holds it until a request has it.
pub(super) fn to_reuse(on: &DevicePool) -> Option<Arc<PooledHandle>> {
    let find = |window: &Window| {
        let window = window.0.try_borrow().ok()?;
        let own = window.get(on.number).filter(|_| on.has_handle_for_each_stream)?;
        // If others hold the rest of the limit, waiting for them might be waiting for this thread.
        let is_last = || on.idle.is_full() && on.idle.idle_count() == 0;
        own.first().filter(|_| own.len() >= STREAMS || is_last()).map(|held| Arc::clone(&held.0))
    };
    WINDOW.try_with(find).ok().flatten()
}

/// Holds a handle, as its pool's newest of this thread's.
///
/// # Errors
/// `ErrorKind::InvalidValue`, and the handle goes back, if the window is gone, which happens while the thread's locals are
/// destroyed, or if the pool was asked for a handle in the midst of another request.
pub(super) fn hold(pooled: &Arc<PooledHandle>) -> Result<()> {
    pooled.hold(HoldKind::Window);
    let on = pooled.home;
    let kept = WINDOW.try_with(|window| {
        let mut window = window.0.try_borrow_mut().ok()?;
        let missing = (on.number + 1).saturating_sub(window.len());
        window.extend(std::iter::repeat_n(Vec::new(), missing));
        let own = window.get_mut(on.number)?;
        let place = own.iter().position(|held| Arc::ptr_eq(&held.0, pooled));
        if place.is_none() && !own.is_empty() && !on.has_handle_for_each_stream {
            return None;
        }
        let held = place.map_or_else(|| Rc::new(HeldHandle(Arc::clone(pooled))), |place| own.remove(place));
        own.push(held);
        let oldest = (own.len() > STREAMS).then(|| own.remove(0));
        Some(oldest)
    });
    let error = match kept {
        // Another one may have gone back for it, now that the window is free.
        Ok(Some(_oldest)) => return Ok(()),
        Ok(None) => "a create or set_stream callback asked its own pool for a handle; it must not",
        Err(_) => {
            "this thread is ending and its handles have gone back to their pools; \
             ask for handles before its thread-locals are destroyed"
        }
    };
    on.give_back(Arc::clone(pooled));
    Err(Error::invalid_value(error))
}

/// Takes this thread's handles of a pool out of its window. One in use goes back after that.
pub(super) fn release(on: &DevicePool) {
    let own = WINDOW.try_with(|window| {
        let mut window = window.0.try_borrow_mut().ok()?;
        window.get_mut(on.number).map(std::mem::take)
    });
    drop(own);
}
