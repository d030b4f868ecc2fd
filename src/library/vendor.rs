//! NVIDIA's and AMD's libraries: `create(void**)`, `destroy(void*)`, `set_stream(void*, void*)`, each returning a status
//! where 0 is success. One table of names a library, one implementation for all.

#[cfg(feature = "python")]
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use log::info;

use super::description::{Description, HandlerCalls, StatusNames, VersionCall};
use super::find::{self, Loaded};
use super::reset::{GetHandlerFn, LoadedReset, SetWorkspaceFn, handler_of};
use super::workspace::{HandleWorkspaces, Workspace};
use super::{DeviceMemHandler, Library, Named, Origin, RawHandle, Version};
use crate::error::{Error, Result, StatusKind, UNKNOWN_STATUS};
use crate::ids::{Device, RawStream};
use crate::observe::{Activity, target::LIBRARY};
use crate::runtime::{self, BoundDevice, Kind, Stream, WholeDevice};

/// `int create(void** handle)`.
pub(crate) type CreateFn = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type HandleFn = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `int set_stream(void* handle, void* stream)`.
pub(crate) type SetStreamFn = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type GetStreamFn = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
type GetIntFn = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
type SetMemoryFn = unsafe extern "C" fn(*mut c_void, *const DeviceMemHandler) -> c_int;
type PropertyFn = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type NumberFn = unsafe extern "C" fn() -> usize;
type ThreeFn = unsafe extern "C" fn(*mut usize, *mut usize, *mut usize) -> c_int;
type StatusNameFn = unsafe extern "C" fn(c_int) -> *const c_char;
type LastErrorFn = unsafe extern "C" fn(*mut c_char, usize);

/// What mends the refusal to take a handler of device memory off.
const OTHER_HANDLER: &str =
    "Another handler of device memory was set for this handle: destroy the objects that have memory from it first";

/// The functions of a loaded library.
#[derive(Debug)]
struct LibraryFunctions {
    loaded: Loaded,
    create: CreateFn,
    destroy: HandleFn,
    set_stream: Option<SetStreamFn>,
    get_stream: Option<GetStreamFn>,
    resets: Vec<LoadedReset>,
    set_memory: Option<SetMemoryFn>,
    get_memory: Option<GetHandlerFn>,
    set_workspace: Option<SetWorkspaceFn>,
    property: Option<PropertyFn>,
    number: Option<NumberFn>,
    three: Option<ThreeFn>,
    of_handle: Option<GetIntFn>,
    status_name: Option<StatusNameFn>,
    last_error: Option<LastErrorFn>,
}

/// One of NVIDIA's or AMD's libraries, loaded when first needed.
#[derive(Debug)]
pub struct Vendor {
    description: Description,
    /// Only success is kept, so that a library installed later is found.
    api: OnceLock<LibraryFunctions>,
    /// What the first handle told, of a library that tells its version by a handle.
    version_of_handle: OnceLock<Version>,
}

impl Vendor {
    pub(super) const fn new(description: Description) -> Self {
        Self { description, api: OnceLock::new(), version_of_handle: OnceLock::new() }
    }

    #[inline]
    fn api(&self) -> Result<&LibraryFunctions> {
        match self.api.get() {
            Some(api) => Ok(api),
            None => self.load(),
        }
    }

    /// Loads outside any lock: two threads may both do it, and the loader gives both the same copy.
    #[cold]
    fn load(&self) -> Result<&LibraryFunctions> {
        let d = &self.description;
        let activity = Activity::begin(format_args!("load {}", self.name()));
        let (property, number, three, of_handle) = match d.version {
            VersionCall::Property(name) => (Some(name), None, None, None),
            VersionCall::Number(name) => (None, Some(name), None, None),
            VersionCall::Three(name) => (None, None, Some(name), None),
            VersionCall::OfHandle(name) => (None, None, None, Some(name)),
            VersionCall::None => (None, None, None, None),
        };
        let status_name = if let StatusNames::Function(name) = d.status_names { Some(name) } else { None };
        let wanted: Vec<&'static CStr> =
            [Some(d.create), Some(d.destroy), d.set_stream, d.get_stream, status_name, d.last_error]
                .into_iter()
                .chain([property, number, three, of_handle])
                .flatten()
                .collect();
        let loaded = find::load(d.component, &wanted)?;
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, and the library stays loaded.
        let api = unsafe {
            LibraryFunctions {
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
                property: loaded.optional_function(property)?,
                number: loaded.optional_function(number)?,
                three: loaded.optional_function(three)?,
                of_handle: loaded.optional_function(of_handle)?,
                status_name: loaded.optional_function(status_name)?,
                last_error: loaded.optional_function(d.last_error)?,
                loaded,
            }
        };
        let mut is_first = false;
        let api = self.api.get_or_init(|| {
            is_first = true;
            api
        });
        if is_first {
            let how = if api.loaded.origin() == Origin::Process { "already loaded" } else { "loaded" };
            let (path, took) = (api.loaded.path().display(), activity.took());
            info!(target: LIBRARY, "{}: {how} from {path} in {took}", Named(self));
        }
        Ok(api)
    }

    /// Returns the stream as the library's platform knows it.
    #[inline]
    fn raw(&self, stream: &Stream) -> RawStream {
        let raw = stream.raw();
        // The address first, for it is at hand.
        if raw.is_default() && self.description.component.platform == Kind::Hip { raw.as_hip_knows_it() } else { raw }
    }

    #[inline]
    fn call_set_stream(
        &self,
        api: &LibraryFunctions,
        set_stream: SetStreamFn,
        handle: &RawHandle,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: the handle is live, and the stream is alive by the contract of `Stream::from_raw`.
        match unsafe { set_stream(handle.as_ptr(), self.raw(stream).as_ptr()) } {
            0 => Ok(()),
            status => Err(self.refused(api, self.description.set_stream.unwrap_or_default(), status)),
        }
    }

    /// The same with the context of the stream's device current. Apart, to keep the guard out of the hit path.
    #[cold]
    fn call_set_stream_bound(
        &self,
        api: &LibraryFunctions,
        set_stream: SetStreamFn,
        handle: &RawHandle,
        stream: &Stream,
    ) -> Result<()> {
        let _bound = BoundDevice::of(runtime::get()?, stream.device())?;
        self.call_set_stream(api, set_stream, handle, stream)
    }

    /// Sets the stream, if asking does not show that it is set, and returns whether it had to.
    #[inline]
    fn set_stream_if_other(
        &self,
        api: &LibraryFunctions,
        set_stream: SetStreamFn,
        handle: &RawHandle,
        stream: &Stream,
    ) -> Result<bool> {
        if let Some(get_stream) = api.get_stream {
            let mut current = ptr::null_mut();
            // SAFETY: the handle is live and `current` is a valid place for a stream.
            if unsafe { get_stream(handle.as_ptr(), &mut current) } == 0 && current.addr() == self.raw(stream).address()
            {
                return Ok(false);
            }
        }
        if self.description.set_stream_uses_context {
            return self.call_set_stream_bound(api, set_stream, handle, stream).map(|()| true);
        }
        self.call_set_stream(api, set_stream, handle, stream).map(|()| true)
    }

    /// Learns from a handle that was just made what the library tells by a handle alone.
    fn learn(&self, api: &LibraryFunctions, new: &RawHandle) {
        api.resets.iter().for_each(|reset| reset.learn(new));
        if let Some(of_handle) = api.of_handle {
            let mut number = 0;
            // SAFETY: the handle is live, only this call knows it, and `number` is a valid place for an int.
            if unsafe { of_handle(new.as_ptr(), &mut number) } == 0 {
                let number = number.unsigned_abs();
                self.version_of_handle.get_or_init(|| (number / 100_000, number % 100_000 / 100, number % 100));
            }
        }
    }

    #[cold]
    fn call_set_workspace(&self, api: &LibraryFunctions, handle: &RawHandle, workspace: Workspace) -> Result<()> {
        let (Some(set), Some(call)) = (api.set_workspace, &self.description.workspace) else { return Ok(()) };
        let address = ptr::without_provenance_mut(workspace.address as usize);
        // SAFETY: the handle is live, and the workspace is its alone for as long as it, or a graph, has it.
        match unsafe { set(handle.as_ptr(), address, workspace.bytes as usize) } {
            0 => Ok(()),
            status => Err(self.refused(api, call.set, status)),
        }
    }

    /// Sets the handler of device memory, or with none the library's own.
    #[inline]
    fn call_set_memory(
        &self,
        api: &LibraryFunctions,
        handle: &RawHandle,
        memory: Option<&DeviceMemHandler>,
    ) -> Result<()> {
        let (Some(set), Some(HandlerCalls { set: name, .. })) = (api.set_memory, self.description.set_memory) else {
            return Ok(());
        };
        // SAFETY: the handle is live, only its holder uses it, and the library copies the handler.
        match unsafe { set(handle.as_ptr(), memory.map_or(ptr::null(), ptr::from_ref)) } {
            0 => Ok(()),
            status => Err(self.refused(api, name, status)),
        }
    }

    /// Brings the library's own workspace back, which setting the stream does, for a handle that has none of ours. Each request
    /// then sets its stream.
    #[cold]
    fn reset_workspace(&self, api: &LibraryFunctions, set_stream: SetStreamFn, handle: &RawHandle) -> Result<()> {
        // SAFETY: the handle is live, and the legacy default stream lasts.
        match unsafe { set_stream(handle.as_ptr(), ptr::null_mut()) } {
            0 => Ok(()),
            status => Err(self.refused(api, self.description.set_stream.unwrap_or_default(), status)),
        }
    }

    /// Destroys what a refused creation left, where the library asks for that. It stays if destroying it would spoil a capture
    /// that is known of.
    #[cold]
    fn destroy_unfinished(&self, api: &LibraryFunctions, handle: NonNull<c_void>, device: Device) {
        let since = self.description.leaves_unfinished_since;
        let is_asked_for = since.is_some_and(|since| matches!(self.version(), Ok(Some(version)) if version >= since));
        if !is_asked_for {
            return;
        }
        // Kept until it is destroyed.
        let begun = runtime::get().and_then(|runtime| WholeDevice::begin(runtime, device));
        if matches!(begun, Ok(Some(_))) || !self.description.synchronizes_on_destroy {
            // SAFETY: the library made it for the call that it refused, which alone knows it.
            unsafe { (api.destroy)(handle.as_ptr()) };
        }
    }

    #[cold]
    fn refused(&self, api: &LibraryFunctions, function: &CStr, code: c_int) -> Error {
        let d = &self.description;
        let kind = match code {
            code if d.out_of_memory.contains(&code) => StatusKind::OutOfMemory,
            code if d.not_initialized.contains(&code) => StatusKind::NotInitialized,
            _ => StatusKind::Other,
        };
        let error = Error::refused(self.name(), &function.to_string_lossy(), self.status_name(api, code), code, kind);
        error.map_library(|refused| {
            refused.path = Some(api.loaded.path().to_owned());
            refused.advice = self.advice(api, kind);
        })
    }

    fn status_name(&self, api: &LibraryFunctions, code: c_int) -> String {
        let unknown = || UNKNOWN_STATUS.to_owned();
        if let Some(name) = api.status_name {
            // SAFETY: the function takes any status and returns null or a string that lives as long as the library.
            let name = unsafe { name(code) };
            if name.is_null() {
                return unknown();
            }
            // SAFETY: the name is not null, so it is a string that lives as long as the library.
            return unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        }
        let StatusNames::Table(table) = self.description.status_names else { return unknown() };
        table.iter().find(|(known, _)| *known == code).map_or_else(unknown, |(_, name)| (*name).to_owned())
    }

    /// What the library says of its last error, and what a driver older than the library means.
    fn advice(&self, api: &LibraryFunctions, kind: StatusKind) -> Option<String> {
        let mut advice = Vec::new();
        if let Some(last_error) = api.last_error {
            let mut message: [c_char; 512] = [0; 512];
            // SAFETY: the function writes at most the given length, with a final zero.
            unsafe { last_error(message.as_mut_ptr(), message.len() - 1) };
            // SAFETY: the last element is still zero.
            let message = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
            if !message.is_empty() {
                advice.push(format!("The library says: {message}"));
            }
        }
        let platform = self.description.component.platform;
        let runtime = runtime::get().ok().filter(|runtime| runtime.kind() == platform);
        let driver = runtime.and_then(runtime::Runtime::driver_version);
        match (driver, api.loaded.cuda()) {
            (Some((major, minor)), Some(built_for)) if built_for > major => advice.push(format!(
                "The library is built for CUDA {built_for}, and this driver supports CUDA {major}.{minor}: update the driver, or install {}",
                find::package(self.description.component, major)
            )),
            (None, _) if kind == StatusKind::NotInitialized => {
                advice.push(format!("This process does not use the {platform} runtime, so no handle can be made"));
            }
            _ => {}
        }
        if advice.is_empty() { None } else { Some(advice.join(". ")) }
    }

    /// Returns the major version of CUDA that the loaded file is built for, where its name or folder says.
    #[cfg(feature = "python")]
    pub(crate) fn cuda(&self) -> Option<u32> {
        self.api.get().and_then(|api| api.loaded.cuda())
    }

    /// Returns the pip packages that bring the library, by the major version of CUDA.
    #[cfg(feature = "python")]
    pub(crate) fn packages(&self) -> BTreeMap<u32, &'static str> {
        let variants = self.description.component.variants.iter();
        variants.filter_map(|variant| Some((variant.cuda?, variant.package))).collect()
    }
}

impl Library for Vendor {
    fn name(&self) -> &str {
        self.description.component.name
    }

    fn runtime(&self) -> Option<Kind> {
        Some(self.description.component.platform)
    }

    fn create(&self, device: Device) -> Result<RawHandle> {
        let api = self.api()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a valid place for a handle.
        let status = unsafe { (api.create)(&mut handle) };
        match NonNull::new(handle) {
            Some(handle) if status == 0 => {
                // SAFETY: the library just made it, and only this call knows it.
                let handle = unsafe { RawHandle::from_ptr(handle) };
                self.learn(api, &handle);
                let workspace = self.description.workspace.as_ref().filter(|_| api.set_workspace.is_some());
                Ok(match workspace.map(|call| (call, (call.bytes)(device))) {
                    Some((call, bytes)) if bytes > 0 => handle.with_workspaces(HandleWorkspaces::new(call.all, bytes)),
                    _ => handle,
                })
            }
            unfinished => {
                let error = self.refused(api, self.description.create, status).on(device);
                if let Some(handle) = unfinished {
                    self.destroy_unfinished(api, handle, device);
                }
                Err(error)
            }
        }
    }

    fn destroy(&self, handle: RawHandle) -> Result<()> {
        let api = self.api()?;
        if let (Some(set_stream), Some(_)) = (api.set_stream, api.set_memory) {
            // The handle's own memory goes back in the order of its stream, and the last one may be gone by now.
            // SAFETY: the handle is live and owned by this call, and the legacy default stream lasts.
            unsafe { set_stream(handle.as_ptr(), ptr::null_mut()) };
        }
        // SAFETY: the handle is live and owned by this call.
        let destroyed = match unsafe { (api.destroy)(handle.as_ptr()) } {
            0 => Ok(()),
            status => Err(self.refused(api, self.description.destroy, status)),
        };
        destroyed.and(handle.workspaces.map_or(Ok(()), |workspaces| workspaces.free()))
    }

    #[inline]
    fn set_stream(&self, handle: &RawHandle, stream: &Stream) -> Result<()> {
        let api = self.api()?;
        let Some(set_stream) = api.set_stream else { return Ok(()) };
        let was_stream_set = self.set_stream_if_other(api, set_stream, handle, stream)?;
        match &handle.workspaces {
            None => Ok(()),
            Some(workspaces) => workspaces.fit(stream, was_stream_set, |workspace| match workspace {
                Some(workspace) => self.call_set_workspace(api, handle, workspace),
                None => self.call_set_stream(api, set_stream, handle, stream),
            }),
        }
    }

    #[inline]
    fn reset(&self, handle: &RawHandle) -> Result<()> {
        let api = self.api()?;
        for reset in &api.resets {
            // SAFETY: the handle is live and only its holder uses it.
            match unsafe { reset.call(handle) } {
                0 => {}
                status => return Err(self.refused(api, reset.function, status)),
            }
        }
        // What it has of ours stays ours: `set_memory` follows, and sees to it that it does.
        if !handle.takes_our_memory() {
            self.call_set_memory(api, handle, None)?;
        }
        match (&handle.workspaces, api.set_stream, api.set_workspace) {
            (Some(workspaces), ..) => {
                workspaces.forget();
                Ok(())
            }
            (None, Some(set_stream), Some(_)) => self.reset_workspace(api, set_stream, handle),
            _ => Ok(()),
        }
    }

    #[cold]
    fn cannot_be_reset(&self, handle: &RawHandle) -> bool {
        let Ok(api) = self.api() else { return false };
        // SAFETY: the handle is live and only its holder uses it.
        let has_handler = |reset: &LoadedReset| unsafe { reset.has_handler(handle) };
        let get_memory = api.get_memory.filter(|_| !handle.takes_our_memory());
        // SAFETY: the handle is live and only its holder uses it.
        api.resets.iter().any(has_handler) || get_memory.is_some_and(|get| unsafe { handler_of(get, handle) }.is_some())
    }

    fn takes_memory(&self) -> Result<bool> {
        Ok(self.api()?.set_memory.is_some())
    }

    #[cold]
    fn set_memory(&self, handle: &RawHandle, memory: &DeviceMemHandler) -> Result<()> {
        let api = self.api()?;
        // SAFETY: the handle is live and only its holder uses it.
        let current = api.get_memory.and_then(|get| unsafe { handler_of(get, handle) });
        if !current.is_some_and(|current| current.is(memory)) {
            handle.note_our_memory(false);
            self.call_set_memory(api, handle, None).map_err(|error| {
                let advice = current.map(|_| OTHER_HANDLER.to_owned());
                error.map_library(|refused| refused.advice = advice.or(refused.advice.take()))
            })?;
            self.call_set_memory(api, handle, Some(memory))?;
        }
        handle.note_our_memory(true);
        Ok(())
    }

    fn keeps_scratch(&self) -> bool {
        self.description.keeps_scratch
    }

    fn version(&self) -> Result<Option<Version>> {
        let api = self.api()?;
        if let Some(number) = api.number {
            // SAFETY: the function takes nothing and needs no handle.
            let number = unsafe { number() } as u32;
            return Ok(Some((number / 10_000, number % 10_000 / 100, number % 100)));
        }
        if let Some(three) = api.three {
            let (mut major, mut minor, mut patch) = (0, 0, 0);
            // SAFETY: all three are valid places for a size, and no handle is needed.
            let status = unsafe { three(&mut major, &mut minor, &mut patch) };
            let VersionCall::Three(name) = self.description.version else { return Ok(None) };
            return match status {
                0 => Ok(Some((major as u32, minor as u32, patch as u32))),
                status => Err(self.refused(api, name, status)),
            };
        }
        let Some(property) = api.property else { return Ok(self.version_of_handle.get().copied()) };
        let mut version = [0; 3];
        for (kind, place) in (0..).zip(&mut version) {
            // SAFETY: `place` is a valid place for an int, and 0, 1 and 2 are the three properties.
            let status = unsafe { property(kind, place) };
            if status != 0 {
                let VersionCall::Property(name) = self.description.version else { return Ok(None) };
                return Err(self.refused(api, name, status));
            }
        }
        Ok(Some((version[0] as u32, version[1] as u32, version[2] as u32)))
    }

    fn path(&self) -> Result<Option<PathBuf>> {
        Ok(Some(self.api()?.loaded.path().to_owned()))
    }

    fn origin(&self) -> Result<Option<Origin>> {
        Ok(Some(self.api()?.loaded.origin()))
    }

    fn is_loaded(&self) -> bool {
        self.api.get().is_some()
    }

    fn handle_bytes(&self) -> u64 {
        self.description.handle_bytes
    }

    fn workspace_bytes(&self, device: Device) -> u64 {
        self.description.workspace.as_ref().map_or(0, |call| call.all.bytes(device))
    }

    fn release_workspaces(&self, device: Device) -> Result<()> {
        self.description.workspace.as_ref().map_or(Ok(()), |call| call.all.release_spare(device))
    }

    fn synchronizes_on_destroy(&self) -> bool {
        self.description.synchronizes_on_destroy
    }
}
