//! Setting a handle back to a new one's values: the functions of a loaded library that do it.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::RawHandle;
use super::description::{Reset, ResetKind};
use super::device_mem_handler::ReturnedHandler;
use super::find::Loaded;

type SetValueFn = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type GetValueFn = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
type SetPointerFn = unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
type SetThreeFn = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, *const c_void) -> c_int;
pub(super) type SetWorkspaceFn = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;
/// In C it returns a bool, which is a byte.
type IsOwnFn = unsafe extern "C" fn(*mut c_void) -> u8;
pub(super) type GetHandlerFn = unsafe extern "C" fn(*mut c_void, *mut ReturnedHandler) -> c_int;

#[derive(Debug)]
enum ResetCall {
    Value(SetValueFn, c_int),
    ValueIfOther(SetValueFn, c_int, GetValueFn),
    Null(SetPointerFn),
    ThreeNulls(SetThreeFn),
    /// The value is known once a handle was made.
    AsNew(SetValueFn, GetValueFn, OnceLock<c_int>),
    OwnWorkspace(SetWorkspaceFn, Vec<IsOwnFn>),
}

/// A [`Reset`] of a loaded library.
#[derive(Debug)]
pub(super) struct LoadedReset {
    pub(super) function: &'static CStr,
    call: ResetCall,
    get_handler: Option<GetHandlerFn>,
}

impl LoadedReset {
    /// Returns the reset's functions; none in a version that lacks them.
    pub(super) fn load(loaded: &Loaded, reset: &Reset) -> Option<Self> {
        let mut get_handler = None;
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, where a pointer to anything is one to
        // void, and the library stays loaded.
        let call = unsafe {
            match reset.kind {
                ResetKind::Value(value) => ResetCall::Value(loaded.function(reset.function).ok()?, value),
                ResetKind::ValueIfOther(value, get) => {
                    let set = loaded.function(reset.function).ok()?;
                    match loaded.function(get) {
                        Ok(get) => ResetCall::ValueIfOther(set, value, get),
                        Err(_) => ResetCall::Value(set, value),
                    }
                }
                ResetKind::Null => ResetCall::Null(loaded.function(reset.function).ok()?),
                ResetKind::ThreeNulls => ResetCall::ThreeNulls(loaded.function(reset.function).ok()?),
                ResetKind::Handler { get } => {
                    get_handler = loaded.function(get).ok();
                    ResetCall::Null(loaded.function(reset.function).ok()?)
                }
                ResetKind::AsNew(get) => {
                    ResetCall::AsNew(loaded.function(reset.function).ok()?, loaded.function(get).ok()?, OnceLock::new())
                }
                ResetKind::OwnWorkspace(is_own) => {
                    let is_own: Vec<_> = is_own.iter().filter_map(|&name| loaded.function(name).ok()).collect();
                    // Without any of them, each change of owner would free the library's own.
                    ResetCall::OwnWorkspace(
                        loaded.function(reset.function).ok().filter(|_| !is_own.is_empty())?,
                        is_own,
                    )
                }
            }
        };
        Some(Self { function: reset.function, call, get_handler })
    }

    /// Reads the value that a new handle has, from one that was just made.
    pub(super) fn read_new(&self, new: &RawHandle) {
        if let ResetCall::AsNew(_, get, value) = &self.call
            && value.get().is_none()
        {
            let mut found = 0;
            // SAFETY: the handle is live, only this call knows it, and `found` is a valid place for an int.
            if unsafe { get(new.as_ptr(), &mut found) } == 0 {
                value.get_or_init(|| found);
            }
        }
    }

    /// Sets the setting back, and returns the library's status.
    ///
    /// # Safety
    /// The handle is live, of this library, and only its holder uses it.
    #[inline]
    pub(super) unsafe fn call(&self, handle: &RawHandle) -> c_int {
        let handle = handle.as_ptr();
        match &self.call {
            // SAFETY: the caller vouches for the handle.
            &ResetCall::Value(set, value) => unsafe { set(handle, value) },
            &ResetCall::ValueIfOther(set, value, get) => {
                let mut current = !value;
                // SAFETY: the caller vouches for the handle, and `current` is a valid place for an int.
                match unsafe { get(handle, &mut current) } {
                    0 if current == value => 0,
                    // SAFETY: the caller vouches for the handle.
                    _ => unsafe { set(handle, value) },
                }
            }
            // SAFETY: the caller vouches for the handle, and null is what a new one has.
            ResetCall::Null(set) => unsafe { set(handle, ptr::null()) },
            // SAFETY: the caller vouches for the handle, and nulls are what a new one has.
            ResetCall::ThreeNulls(set) => unsafe { set(handle, ptr::null(), ptr::null(), ptr::null()) },
            // SAFETY: the caller vouches for the handle.
            ResetCall::AsNew(set, _, value) => value.get().map_or(0, |&value| unsafe { set(handle, value) }),
            // SAFETY: the caller vouches for the handle.
            ResetCall::OwnWorkspace(_, is_own) if is_own.iter().any(|is_own| unsafe { is_own(handle) } != 0) => 0,
            // SAFETY: the caller vouches for the handle, and null is the library's own workspace.
            ResetCall::OwnWorkspace(set, _) => unsafe { set(handle, ptr::null_mut(), 0) },
        }
    }

    /// Returns whether this is about a handler of memory, and the handle has one.
    ///
    /// # Safety
    /// As [`LoadedReset::call`].
    pub(super) unsafe fn has_handler(&self, handle: &RawHandle) -> bool {
        // SAFETY: the caller vouches for the handle.
        self.get_handler.is_some_and(|get| unsafe { handler_of(get, handle) }.is_some())
    }
}

/// Returns the handle's handler of memory, if it has one.
///
/// # Safety
/// The handle is live, of the function's library, and only its holder uses it.
pub(super) unsafe fn handler_of(get: GetHandlerFn, handle: &RawHandle) -> Option<ReturnedHandler> {
    let mut handler = ReturnedHandler::empty();
    // SAFETY: the caller vouches for the handle, and `handler` is a valid place for a handler of any memory.
    let status = unsafe { get(handle.as_ptr(), &mut handler) };
    (status == 0).then_some(handler)
}
