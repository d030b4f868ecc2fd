//! NVIDIA's and AMD's libraries: `create(void**)`, `destroy(void*)`, `set_stream(void*, void*)`, each returning a status
//! where 0 is success. One table of names a library, one implementation for all.

#[cfg(feature = "python")]
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use log::info;

use super::callers_struct::CallersStruct;
use super::description::{Description, HandlerCalls};
use super::entry_points::{EntryPoints, SetStreamFn};
use super::refusal::refused;
use super::reset::{LoadedReset, handler_of};
use super::workspace::{HandleWorkspaces, Workspace};
use super::{DeviceMemHandler, Library, Named, Origin, RawHandle, Version};
use crate::error::Result;
use crate::ids::{Device, RawStream};
use crate::observe::{Activity, target::LIBRARY};
use crate::runtime::{self, BoundDevice, Kind, Stream, WholeDevice};

/// The advice if the library refuses to remove a handler of device memory.
const OTHER_HANDLER: &str =
    "Another handler of device memory was set for this handle: destroy the objects that have memory from it first";

/// One of NVIDIA's or AMD's libraries, loaded when first needed.
#[derive(Debug)]
pub struct Vendor {
    description: Description,
    /// Only success is kept, so that a library installed later is found.
    api: OnceLock<EntryPoints>,
    /// As the first handle reported it, if only handles report it.
    version_of_handle: OnceLock<Version>,
}

impl Vendor {
    pub(super) const fn new(description: Description) -> Self {
        Self { description, api: OnceLock::new(), version_of_handle: OnceLock::new() }
    }

    #[inline]
    fn api(&self) -> Result<&EntryPoints> {
        match self.api.get() {
            Some(api) => Ok(api),
            None => self.load(),
        }
    }

    /// Loads outside any lock: two threads may both do it, and the loader gives both the same copy.
    #[cold]
    fn load(&self) -> Result<&EntryPoints> {
        let activity = Activity::begin(format_args!("load {}", self.name()));
        let api = EntryPoints::load(&self.description)?;
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

    /// Turns a call's status into a result that names the function.
    #[inline]
    fn check(&self, api: &EntryPoints, function: &CStr, status: c_int) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(refused(&self.description, api, function, status)) }
    }

    /// As [`Vendor::check`]. On the hit path the name is not looked up.
    #[inline]
    fn check_set_stream(&self, api: &EntryPoints, status: c_int) -> Result<()> {
        if status == 0 { Ok(()) } else { self.check(api, self.description.set_stream.unwrap_or_default(), status) }
    }

    /// Returns the stream as the library's platform knows it.
    #[inline]
    fn raw(&self, stream: &Stream) -> RawStream {
        let raw = stream.raw();
        // The address first: it needs no load.
        if raw.is_default() && self.description.component.platform == Kind::Hip { raw.by_one_name() } else { raw }
    }

    #[inline]
    fn call_set_stream(
        &self,
        api: &EntryPoints,
        set_stream: SetStreamFn,
        handle: &RawHandle,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: the handle is live, and the stream is alive by the contract of `Stream::from_raw`.
        self.check_set_stream(api, unsafe { set_stream(handle.as_ptr(), self.raw(stream).as_ptr()) })
    }

    /// The same with the context of the stream's device current. Apart, to keep the guard out of the hit path.
    #[cold]
    fn call_set_stream_bound(
        &self,
        api: &EntryPoints,
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
        api: &EntryPoints,
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

    /// Reads what only a new handle has: its defaults, and for some libraries their version.
    fn read_new(&self, api: &EntryPoints, new: &RawHandle) {
        api.resets.iter().for_each(|reset| reset.read_new(new));
        if let Some(version) = api.version.read_of(new) {
            self.version_of_handle.get_or_init(|| version);
        }
    }

    #[cold]
    fn call_set_workspace(&self, api: &EntryPoints, handle: &RawHandle, workspace: Workspace) -> Result<()> {
        let (Some(set), Some(call)) = (api.set_workspace, &self.description.workspace) else { return Ok(()) };
        let address = ptr::without_provenance_mut(workspace.address as usize);
        // SAFETY: the handle is live, and the workspace is its alone for as long as it, or a graph, has it.
        self.check(api, call.set, unsafe { set(handle.as_ptr(), address, workspace.bytes as usize) })
    }

    /// Calls the function that creates a handle, and returns its status and the handle, which is null if there is none.
    fn call_create(&self, api: &EntryPoints) -> (c_int, *mut c_void) {
        if self.description.is_callers_struct {
            let handle = CallersStruct::allocate();
            // SAFETY: the function fills the struct, which is as large as that of any version.
            let status = unsafe { (api.create)(handle.as_ptr().cast()) };
            if status == 0 {
                return (status, handle.as_ptr());
            }
            // SAFETY: it was just allocated, and the library has refused it.
            unsafe { CallersStruct::free(handle) };
            return (status, ptr::null_mut());
        }
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a valid place for a handle.
        let status = unsafe { (api.create)(&mut handle) };
        (status, handle)
    }

    /// Takes the handler of device memory off a handle that has one. Not every library documents what it does when there is
    /// none to take off.
    fn take_off_handler(&self, api: &EntryPoints, handle: &RawHandle) -> Result<()> {
        // SAFETY: the handle is live and only its holder uses it.
        match api.get_memory.is_some_and(|get| unsafe { handler_of(get, handle) }.is_none()) {
            true => Ok(()),
            false => self.call_set_memory(api, handle, None),
        }
    }

    /// Sets the handler of device memory, or with none the library's own.
    #[inline]
    fn call_set_memory(&self, api: &EntryPoints, handle: &RawHandle, memory: Option<&DeviceMemHandler>) -> Result<()> {
        let (Some(set), Some(HandlerCalls { set: name, .. })) = (api.set_memory, self.description.set_memory) else {
            return Ok(());
        };
        // SAFETY: the handle is live, only its holder uses it, and the library copies the handler.
        self.check(api, name, unsafe { set(handle.as_ptr(), memory.map_or(ptr::null(), ptr::from_ref)) })
    }

    /// Restores the library's own workspace on a handle that has none of ours, by setting a stream. Each request sets its own
    /// stream afterwards.
    #[cold]
    fn reset_workspace(&self, api: &EntryPoints, set_stream: SetStreamFn, handle: &RawHandle) -> Result<()> {
        // SAFETY: the handle is live, and the legacy default stream lasts.
        self.check_set_stream(api, unsafe { set_stream(handle.as_ptr(), ptr::null_mut()) })
    }

    /// Destroys the handle that a refused creation left, if the library's documentation asks for that and no known capture
    /// would be spoilt.
    #[cold]
    fn destroy_unfinished(&self, api: &EntryPoints, handle: NonNull<c_void>, device: Device) {
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
        let (status, handle) = self.call_create(api);
        match NonNull::new(handle) {
            Some(handle) if status == 0 => {
                // SAFETY: the library just made it, and only this call knows it.
                let handle = unsafe { RawHandle::from_ptr(handle) };
                self.read_new(api, &handle);
                let workspace = self.description.workspace.as_ref().filter(|_| api.set_workspace.is_some());
                Ok(match workspace.map(|call| (call, (call.bytes)(device))) {
                    Some((call, bytes)) if bytes > 0 => handle.with_workspaces(HandleWorkspaces::new(call.all, bytes)),
                    _ => handle,
                })
            }
            unfinished => {
                let error = refused(&self.description, api, self.description.create, status).on(device);
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
        let destroyed = self.check(api, self.description.destroy, unsafe { (api.destroy)(handle.as_ptr()) });
        // One that the library would not end stays, for the library may use it still.
        if self.description.is_callers_struct && destroyed.is_ok() {
            // SAFETY: `create` allocated it, and the library is done with it.
            unsafe { CallersStruct::free(handle.as_non_null()) };
        }
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
            self.check(api, reset.function, unsafe { reset.call(handle) })?;
        }
        // A handle that takes our memory keeps our handler, which `set_memory` checks next.
        if !handle.takes_our_memory() {
            self.take_off_handler(api, handle)?;
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
            self.take_off_handler(api, handle).map_err(|error| {
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
        match api.version.read() {
            Ok(version) => Ok(version.or_else(|| self.version_of_handle.get().copied())),
            Err(status) => {
                Err(refused(&self.description, api, self.description.version.name().unwrap_or_default(), status))
            }
        }
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
