//! A loaded library: the functions that requests call, and those that are looked up where they are needed, by the names
//! in its description: for its version, and for the error of a call that it refused.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::description::{Description, Reset, StatusNames, VersionCall};
use super::device_mem_handler::{DeviceMemHandler, ReturnedHandler};
use super::find::{self, Loaded};
use super::{RawHandle, Version};
use crate::error::{Error, Result, StatusKind, UNKNOWN_STATUS};
use crate::runtime::{self, DeviceCalls};

/// `int create(void** handle)`.
pub(crate) type CreateFn = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
/// `int destroy(void* handle)`.
pub(crate) type DestroyFn = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `int set_stream(void* handle, void* stream)`.
pub(crate) type SetStreamFn = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type GetStreamFn = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
type StatusNameFn = unsafe extern "C" fn(c_int) -> *const c_char;
type LastErrorFn = unsafe extern "C" fn(*mut c_char, usize);
type PropertyFn = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type NumberFn = unsafe extern "C" fn() -> usize;
type ThreeFn = unsafe extern "C" fn(*mut usize, *mut usize, *mut usize) -> c_int;
type GetNumberFn = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
type SetNumberFn = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type SetPointerFn = unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
type SetThreeFn = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, *const c_void) -> c_int;
type SetWorkspaceFn = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;
/// In C it returns a bool, which is a byte.
type IsOwnFn = unsafe extern "C" fn(*mut c_void) -> u8;
type GetHandlerFn = unsafe extern "C" fn(*mut c_void, *mut ReturnedHandler) -> c_int;

#[derive(Debug)]
pub(super) struct VendorApi {
    pub(super) loaded: Loaded,
    pub(super) create: CreateFn,
    pub(super) destroy: DestroyFn,
    pub(super) set_stream: Option<SetStreamFn>,
    pub(super) get_stream: Option<GetStreamFn>,
    pub(super) resets: Vec<LoadedReset>,
    /// The handlers of memory other than the device's, which are taken off.
    pub(super) handlers: Vec<LoadedHandler>,
    pub(super) memory: Option<LoadedHandler>,
    /// None in versions that keep to their own workspaces.
    pub(super) set_workspace: Option<SetWorkspaceFn>,
}

impl VendorApi {
    /// Loads the library.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` with every place tried.
    pub(super) fn load(d: &Description) -> Result<Self> {
        let status_name = if let StatusNames::Function(name) = d.status_names { Some(name) } else { None };
        let get_stream = d.set_stream.filter(|_| d.asks_for_stream).and_then(find::getter);
        let optional = [d.set_stream, get_stream.as_deref(), status_name, d.last_error, d.version.name()];
        let wanted: Vec<&CStr> = [d.create, d.destroy].into_iter().chain(optional.into_iter().flatten()).collect();
        let loaded = find::load(d.component, &wanted)?;
        let lacks = |name: &CStr| Error::internal(format!("{} was taken without {name:?}", loaded.path.display()));
        let handler =
            |reset: &Reset| if let Reset::Handler(name) = reset { LoadedHandler::load(&loaded, name) } else { None };
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, and the library stays loaded.
        Ok(unsafe {
            Self {
                create: loaded.function(d.create).ok_or_else(|| lacks(d.create))?,
                destroy: loaded.function(d.destroy).ok_or_else(|| lacks(d.destroy))?,
                set_stream: d.set_stream.and_then(|name| loaded.function(name)),
                get_stream: get_stream.and_then(|name| loaded.function(&name)),
                resets: d.resets.iter().filter_map(|reset| LoadedReset::load(&loaded, reset)).collect(),
                handlers: d.resets.iter().filter_map(handler).collect(),
                memory: d.set_memory.and_then(|name| LoadedHandler::load(&loaded, name)),
                set_workspace: d.workspace.as_ref().and_then(|workspace| loaded.function(workspace.set)),
                loaded,
            }
        })
    }

    /// Returns the error of a call that the library refused: the status by its name, and what it means.
    #[cold]
    pub(super) fn refused(&self, d: &Description, function: &CStr, code: c_int) -> Error {
        let kind = match code {
            code if d.out_of_memory.contains(&code) => StatusKind::OutOfMemory,
            code if d.not_initialized.contains(&code) => StatusKind::NotInitialized,
            _ => StatusKind::Other,
        };
        let status = self.status_name(d, code).unwrap_or_else(|| UNKNOWN_STATUS.to_owned());
        Error::refused(d.component.name, &function.to_string_lossy(), status, code, kind).map_library(|refused| {
            refused.path = Some(self.loaded.path.clone());
            refused.advice = self.advice(d, kind);
        })
    }

    fn status_name(&self, d: &Description, code: c_int) -> Option<String> {
        match d.status_names {
            StatusNames::Function(function) => {
                // SAFETY: it is the prototype of that symbol in the vendor's headers, and the library stays loaded.
                let function: StatusNameFn = unsafe { self.loaded.function(function) }?;
                // SAFETY: the function takes any status and returns null or a string that lives as long as the library.
                let name = unsafe { function(code) };
                // SAFETY: a name that is not null is a string that lives as long as the library.
                (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
            }
            StatusNames::List(prefix, names) => {
                let place = usize::try_from(code).ok()?.checked_sub(1)?;
                names.split_whitespace().nth(place).map(|name| format!("{prefix}{name}"))
            }
        }
    }

    /// Returns the library's message about its last error, and what to do if the driver is older than the library or
    /// not in use.
    fn advice(&self, d: &Description, kind: StatusKind) -> Option<String> {
        let mut advice = Vec::new();
        // SAFETY: it is the prototype of that symbol in the vendor's headers, and the library stays loaded.
        if let Some(last_error) = d.last_error.and_then(|name| unsafe { self.loaded.function::<LastErrorFn>(name) }) {
            let mut message: [c_char; 512] = [0; 512];
            // SAFETY: the function writes at most the given length, with a final zero.
            unsafe { last_error(message.as_mut_ptr(), message.len() - 1) };
            // SAFETY: the last element is still zero.
            let message = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
            if !message.is_empty() {
                advice.push(format!("The library says: {message}"));
            }
        }
        let platform = d.component.platform();
        let runtime = runtime::get().ok().filter(|runtime| runtime.kind() == platform);
        match (runtime.and_then(DeviceCalls::driver_version), self.loaded.cuda) {
            (Some((major, minor)), Some(built_for)) if built_for > major => advice.push(format!(
                "The library is built for CUDA {built_for}, and this driver supports CUDA {major}.{minor}: update the driver, or install {}",
                find::package(d.component, major)
            )),
            (None, _) if kind == StatusKind::NotInitialized => {
                advice.push(format!("This process does not use the {platform} runtime, so no handle can be made"));
            }
            _ => {}
        }
        if advice.is_empty() { None } else { Some(advice.join(". ")) }
    }

    /// Returns the version; none if no function reports it without a handle.
    ///
    /// # Errors
    /// The library's status.
    pub(super) fn version(&self, call: &VersionCall) -> Result<Option<Version>, c_int> {
        let (mut version, status) = ([0; 3], |status| if status == 0 { Ok(()) } else { Err(status) });
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, and the library stays loaded.
        unsafe {
            match *call {
                VersionCall::Property(name) => {
                    let Some(property) = self.loaded.function::<PropertyFn>(name) else { return Ok(None) };
                    for (kind, place) in (0..).zip(&mut version) {
                        status(property(kind, place))?;
                    }
                }
                VersionCall::Number(name) => {
                    let Some(number) = self.loaded.function::<NumberFn>(name) else { return Ok(None) };
                    let number = number() as c_int;
                    version = [number / 10_000, number % 10_000 / 100, number % 100];
                }
                VersionCall::Three(name) => {
                    let Some(three) = self.loaded.function::<ThreeFn>(name) else { return Ok(None) };
                    let [mut major, mut minor, mut patch] = [0; 3];
                    status(three(&mut major, &mut minor, &mut patch))?;
                    version = [major as c_int, minor as c_int, patch as c_int];
                }
                VersionCall::OfHandle(_) | VersionCall::None => return Ok(None),
            }
        }
        Ok(Some(version.map(c_int::cast_unsigned).into()))
    }

    /// Returns the version that a handle reports, which was just made; none if handles report none.
    pub(super) fn version_of(&self, call: &VersionCall, new: &RawHandle) -> Option<Version> {
        let VersionCall::OfHandle(name) = *call else { return None };
        let mut number = 0;
        // SAFETY: it is the prototype of that symbol in the vendor's headers, the handle is live, only the caller knows
        // it, and `number` is a valid place for an int.
        let status = unsafe { self.loaded.function::<GetNumberFn>(name)?(new.as_ptr(), &mut number) };
        let number = number.unsigned_abs();
        (status == 0).then_some((number / 100_000, number % 100_000 / 100, number % 100))
    }
}

#[derive(Debug)]
enum ResetCall {
    /// Not where `get` returns the value already. One that is read from a new handle is known once a handle was made.
    Value {
        set: SetNumberFn,
        get: Option<GetNumberFn>,
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
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, where a pointer to anything is
        // one to void, and the library stays loaded.
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
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, where a pointer to anything is
        // one to void, and the library stays loaded.
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

    /// Takes the handler off a handle, and returns the library's status. Not every library documents what it does when
    /// there is none to take off.
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
