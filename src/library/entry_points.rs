//! The functions of a loaded library, looked up by the names in its description.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::DeviceMemHandler;
use super::description::{Description, StatusNames};
use super::find::{self, Loaded};
use super::reset::{GetHandlerFn, LoadedReset, SetWorkspaceFn};
use super::version::VersionFunction;
use crate::error::Result;

/// `int create(void** handle)`.
pub(crate) type CreateFn = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type HandleFn = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `int set_stream(void* handle, void* stream)`.
pub(crate) type SetStreamFn = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type GetStreamFn = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
type SetMemoryFn = unsafe extern "C" fn(*mut c_void, *const DeviceMemHandler) -> c_int;
type StatusNameFn = unsafe extern "C" fn(c_int) -> *const c_char;
type LastErrorFn = unsafe extern "C" fn(*mut c_char, usize);

#[derive(Debug)]
pub(super) struct EntryPoints {
    pub(super) loaded: Loaded,
    pub(super) create: CreateFn,
    pub(super) destroy: HandleFn,
    pub(super) set_stream: Option<SetStreamFn>,
    pub(super) get_stream: Option<GetStreamFn>,
    pub(super) resets: Vec<LoadedReset>,
    pub(super) set_memory: Option<SetMemoryFn>,
    pub(super) get_memory: Option<GetHandlerFn>,
    pub(super) set_workspace: Option<SetWorkspaceFn>,
    pub(super) version: VersionFunction,
    pub(super) status_name: Option<StatusNameFn>,
    pub(super) last_error: Option<LastErrorFn>,
}

impl EntryPoints {
    /// Loads the library.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` with every place tried.
    pub(super) fn load(d: &Description) -> Result<Self> {
        let status_name = if let StatusNames::Function(name) = d.status_names { Some(name) } else { None };
        let optional = [d.set_stream, d.get_stream, status_name, d.last_error, d.version.name()];
        let wanted: Vec<&'static CStr> =
            [d.create, d.destroy].into_iter().chain(optional.into_iter().flatten()).collect();
        let loaded = find::load(d.component, &wanted)?;
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, and the library stays loaded.
        Ok(unsafe {
            Self {
                create: loaded.function(d.create)?,
                destroy: loaded.function(d.destroy)?,
                set_stream: loaded.optional_function(d.set_stream)?,
                get_stream: loaded.optional_function(d.get_stream)?,
                resets: d.resets.iter().filter_map(|reset| LoadedReset::load(&loaded, reset)).collect(),
                // Versions that lack it take memory their own way alone.
                set_memory: d.set_memory.and_then(|calls| loaded.function(calls.set).ok()),
                get_memory: d.set_memory.and_then(|calls| loaded.function(calls.get).ok()),
                // Versions that lack it keep to their own workspaces.
                set_workspace: d.workspace.as_ref().and_then(|workspace| loaded.function(workspace.set).ok()),
                version: VersionFunction::load(&loaded, &d.version)?,
                status_name: loaded.optional_function(status_name)?,
                last_error: loaded.optional_function(d.last_error)?,
                loaded,
            }
        })
    }
}
