//! Setting a handle back to a new one's values: the functions of a loaded library that do it.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::RawHandle;
use super::description::Reset;
use super::device_mem_handler::{DeviceMemHandler, ReturnedHandler};
use super::find::Loaded;

type SetValueFn = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type GetValueFn = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
type SetPointerFn = unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
type SetThreeFn = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, *const c_void) -> c_int;
pub(super) type SetWorkspaceFn = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;
/// In C it returns a bool, which is a byte.
type IsOwnFn = unsafe extern "C" fn(*mut c_void) -> u8;
type GetHandlerFn = unsafe extern "C" fn(*mut c_void, *mut ReturnedHandler) -> c_int;

#[derive(Debug)]
enum ResetCall {
    /// Not where `get` returns the value already. One that is read from a new handle is known once a handle was made.
    Value {
        set: SetValueFn,
        get: Option<GetValueFn>,
        value: OnceLock<c_int>,
    },
    Null(SetPointerFn),
    ThreeNulls(SetThreeFn),
    OwnWorkspace(SetWorkspaceFn, Vec<IsOwnFn>),
}

/// A [`Reset`] of a loaded library.
#[derive(Debug)]
pub(super) struct LoadedReset {
    pub(super) name: &'static CStr,
    call: ResetCall,
}

impl LoadedReset {
    /// Returns the reset's functions; none in a version that lacks them, or for a handler, which [`LoadedHandler`] has.
    pub(super) fn load(loaded: &Loaded, reset: &Reset) -> Option<Self> {
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, where a pointer to anything is one to
        // void, and the library stays loaded.
        let (name, call) = unsafe {
            match *reset {
                Reset::Value(name, value) => {
                    (name, ResetCall::Value { set: loaded.function(name)?, get: None, value: value.into() })
                }
                Reset::IfOther(name, value) => {
                    let (set, get) = (loaded.function(name)?, loaded.getter(name));
                    (name, ResetCall::Value { set, get, value: value.into() })
                }
                Reset::AsNew(name) => {
                    let (set, get) = (loaded.function(name)?, loaded.getter(name)?);
                    (name, ResetCall::Value { set, get: Some(get), value: OnceLock::new() })
                }
                Reset::Null(name) => (name, ResetCall::Null(loaded.function(name)?)),
                Reset::ThreeNulls(name) => (name, ResetCall::ThreeNulls(loaded.function(name)?)),
                Reset::OwnWorkspace(name, is_own) => {
                    let is_own: Vec<_> = is_own.iter().filter_map(|&name| loaded.function(name)).collect();
                    // Without any of them, each change of owner would free the library's own.
                    let set = loaded.function(name).filter(|_| !is_own.is_empty())?;
                    (name, ResetCall::OwnWorkspace(set, is_own))
                }
                Reset::Handler(_) => return None,
            }
        };
        Some(Self { name, call })
    }

    /// Reads the value that a new handle has, from one that was just made.
    pub(super) fn read_new(&self, new: &RawHandle) {
        if let ResetCall::Value { get: Some(get), value, .. } = &self.call
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
            ResetCall::Value { set, get, value } => {
                let Some(&value) = value.get() else { return 0 };
                let mut current = !value;
                // SAFETY: the caller vouches for the handle, and `current` is a valid place for an int.
                let is_known = get.is_some_and(|get| unsafe { get(handle, &mut current) } == 0);
                // SAFETY: the caller vouches for the handle.
                if is_known && current == value { 0 } else { unsafe { set(handle, value) } }
            }
            // SAFETY: the caller vouches for the handle, and null is what a new one has.
            ResetCall::Null(set) => unsafe { set(handle, ptr::null()) },
            // SAFETY: the caller vouches for the handle, and nulls are what a new one has.
            ResetCall::ThreeNulls(set) => unsafe { set(handle, ptr::null(), ptr::null(), ptr::null()) },
            // SAFETY: the caller vouches for the handle.
            ResetCall::OwnWorkspace(_, is_own) if is_own.iter().any(|is_own| unsafe { is_own(handle) } != 0) => 0,
            // SAFETY: the caller vouches for the handle, and null is the library's own workspace.
            ResetCall::OwnWorkspace(set, _) => unsafe { set(handle, ptr::null_mut(), 0) },
        }
    }
}

/// The functions that set and get a handle's handler of memory.
#[derive(Debug)]
pub(super) struct LoadedHandler {
    pub(super) name: &'static CStr,
    set: SetPointerFn,
    get: Option<GetHandlerFn>,
}

impl LoadedHandler {
    /// Returns the functions; none in a version that lacks them.
    pub(super) fn load(loaded: &Loaded, name: &'static CStr) -> Option<Self> {
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, where a pointer to anything is one to
        // void, and the library stays loaded.
        unsafe { Some(Self { name, set: loaded.function(name)?, get: loaded.getter(name) }) }
    }

    /// Returns the handle's handler, if it is known to have one.
    ///
    /// # Safety
    /// The handle is live, of this library, and only its holder uses it.
    pub(super) unsafe fn of(&self, handle: &RawHandle) -> Option<ReturnedHandler> {
        let mut handler = ReturnedHandler::empty();
        // SAFETY: the caller vouches for the handle, and `handler` is a valid place for a handler of any memory.
        let status = unsafe { (self.get?)(handle.as_ptr(), &mut handler) };
        (status == 0).then_some(handler)
    }

    /// Sets a handler, and returns the library's status.
    ///
    /// # Safety
    /// As [`LoadedHandler::of`].
    pub(super) unsafe fn set(&self, handle: &RawHandle, handler: &DeviceMemHandler) -> c_int {
        // SAFETY: the caller vouches for the handle, and the library copies the handler.
        unsafe { (self.set)(handle.as_ptr(), ptr::from_ref(handler).cast()) }
    }

    /// Takes the handler off a handle, and returns the library's status. Not every library documents what it does when there
    /// is none to take off.
    ///
    /// # Safety
    /// As [`LoadedHandler::of`].
    pub(super) unsafe fn take_off(&self, handle: &RawHandle) -> c_int {
        // SAFETY: the caller vouches for the handle.
        if self.get.is_some() && unsafe { self.of(handle) }.is_none() {
            return 0;
        }
        // SAFETY: the caller vouches for the handle, and null is the library's own.
        unsafe { (self.set)(handle.as_ptr(), ptr::null()) }
    }
}
