//! Setting handles back: what an owner may have changed, as the functions of a loaded library.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::RawHandle;
use super::description::{Reset, ResetKind};
use super::find::Loaded;

type SetValueFn = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type GetValueFn = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
type SetWorkspaceFn = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;
type IsOwnFn = unsafe extern "C" fn(*mut c_void) -> bool;

/// A call that sets something of a handle back.
#[derive(Debug)]
pub(super) struct LoadedReset {
    pub(super) function: &'static CStr,
    call: Call,
}

#[derive(Debug)]
enum Call {
    Value(SetValueFn, c_int),
    /// The value is known once a handle was made.
    AsNew(SetValueFn, GetValueFn, OnceLock<c_int>),
    OwnWorkspace(SetWorkspaceFn, Vec<IsOwnFn>),
}

impl LoadedReset {
    /// Returns the call, or none where the library's version lacks it and so has nothing to set back.
    pub(super) fn load(loaded: &Loaded, reset: &Reset) -> Option<Self> {
        let function = reset.function;
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, and the library stays loaded.
        let call = unsafe {
            match reset.kind {
                ResetKind::Value(value) => Call::Value(loaded.function(function).ok()?, value),
                ResetKind::AsNew(get) => {
                    Call::AsNew(loaded.function(function).ok()?, loaded.function(get).ok()?, OnceLock::new())
                }
                ResetKind::OwnWorkspace(is_own) => {
                    let is_own: Vec<_> = is_own.iter().filter_map(|&name| loaded.function(name).ok()).collect();
                    // Without any of them, each hand-over would free the library's own.
                    Call::OwnWorkspace(loaded.function(function).ok().filter(|_| !is_own.is_empty())?, is_own)
                }
            }
        };
        Some(Self { function, call })
    }

    /// Learns from a handle that was just made what a new one has.
    pub(super) fn learn(&self, new: &RawHandle) {
        if let Call::AsNew(_, get, value) = &self.call
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
            Call::Value(set, value) => unsafe { set(handle, *value) },
            // SAFETY: the caller vouches for the handle.
            Call::AsNew(set, _, value) => value.get().map_or(0, |&value| unsafe { set(handle, value) }),
            // SAFETY: the caller vouches for the handle.
            Call::OwnWorkspace(_, is_own) if is_own.iter().any(|is_own| unsafe { is_own(handle) }) => 0,
            // SAFETY: the caller vouches for the handle, and null is the library's own workspace.
            Call::OwnWorkspace(set, _) => unsafe { set(handle, ptr::null_mut(), 0) },
        }
    }
}
