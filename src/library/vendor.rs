//! NVIDIA's and AMD's libraries: `create(void**)`, `destroy(void*)`, `set_stream(void*, void*)`, each returning a
//! status where 0 is success. One table of names a library, one implementation for all.

#[cfg(feature = "python")]
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use log::info;

use super::api::{LoadedHandler, VendorApi};
use super::description::Description;
use super::workspace::HandleWorkspaces;
use super::{DeviceMemHandler, Library, Origin, RawHandle, Version, named};
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
    api: OnceLock<VendorApi>,
    /// As the first handle reported it, if only handles report it.
    version_of_handle: OnceLock<Version>,
}

impl Vendor {
    pub(super) const fn new(description: Description) -> Self {
        Self { description, api: OnceLock::new(), version_of_handle: OnceLock::new() }
    }

    #[inline]
    fn api(&self) -> Result<&VendorApi> {
        match self.api.get() {
            Some(api) => Ok(api),
            None => self.load(),
        }
    }

    /// Loads outside any lock: two threads may both do it, and the loader gives both the same copy.
    #[cold]
    fn load(&self) -> Result<&VendorApi> {
        let activity = Activity::begin(format_args!("load {}", self.name()));
        let api = VendorApi::load(&self.description)?;
        let mut is_first = false;
        let api = self.api.get_or_init(|| {
            is_first = true;
            api
        });
        if is_first {
            let how = if api.loaded.origin == Origin::Process { "already loaded" } else { "loaded" };
            let (path, took) = (api.loaded.path.display(), activity.took());
            info!(target: LIBRARY, "{}: {how} from {path} in {took}", named(self));
        }
        Ok(api)
    }

    /// Turns a call's status into a result that names the function.
    #[inline]
    fn check(&self, api: &VendorApi, status: c_int, function: &CStr) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(api.refused(&self.description, function, status)) }
    }

    /// Returns the stream as the library's platform knows it.
    #[inline]
    fn raw(&self, stream: &Stream) -> RawStream {
        let raw = stream.raw();
        // The address first: it needs no load.
        if raw.is_default() && self.description.component.platform() == Kind::Hip { raw.by_one_name() } else { raw }
    }

    /// Sets the stream, if the library's handles have one.
    #[inline]
    fn call_set_stream(&self, api: &VendorApi, handle: &RawHandle, stream: RawStream) -> Result<()> {
        let Some(set_stream) = api.set_stream else { return Ok(()) };
        // SAFETY: the handle is live, and the stream is alive by the contract of `Stream::from_raw`.
        let status = unsafe { set_stream(handle.as_ptr(), stream.as_ptr()) };
        // On the hit path the name is not looked up.
        if status == 0 { Ok(()) } else { self.check(api, status, self.description.set_stream.unwrap_or_default()) }
    }

    /// The same with the context of the stream's device current. Apart, to keep the guard out of the hit path.
    #[cold]
    fn call_set_stream_bound(&self, api: &VendorApi, handle: &RawHandle, stream: &Stream) -> Result<()> {
        let _bound = BoundDevice::of(runtime::get()?, stream.device())?;
        self.call_set_stream(api, handle, self.raw(stream))
    }

    /// Sets the stream, if asking does not show that it is set, and returns whether it had to.
    #[inline]
    fn set_stream_if_other(&self, api: &VendorApi, handle: &RawHandle, stream: &Stream) -> Result<bool> {
        let raw = self.raw(stream);
        if let Some(get_stream) = api.get_stream {
            let mut current = ptr::null_mut();
            // SAFETY: the handle is live and `current` is a valid place for a stream.
            if unsafe { get_stream(handle.as_ptr(), &mut current) } == 0 && current.addr() == raw.address() {
                return Ok(false);
            }
        }
        if self.description.set_stream_uses_context {
            return self.call_set_stream_bound(api, handle, stream).map(|()| true);
        }
        self.call_set_stream(api, handle, raw).map(|()| true)
    }

    /// Calls the function that creates a handle, and returns its status and the handle, which is null if there is none.
    fn call_create(&self, api: &VendorApi) -> (c_int, *mut c_void) {
        let mut handle = ptr::null_mut();
        if !self.description.is_callers_struct {
            // SAFETY: `handle` is a valid place for a handle.
            return (unsafe { (api.create)(&mut handle) }, handle);
        }
        let filled = CallersStruct::allocate();
        // SAFETY: the function fills the struct, which is as large as that of any version.
        let status = unsafe { (api.create)(filled.as_ptr().cast()) };
        if status == 0 {
            return (status, filled.as_ptr());
        }
        // SAFETY: it was just allocated, and the library has refused it.
        unsafe { CallersStruct::free(filled) };
        (status, handle)
    }

    /// Takes a handler of memory off a handle that has one.
    fn take_off(&self, api: &VendorApi, handler: &LoadedHandler, handle: &RawHandle) -> Result<()> {
        // SAFETY: the handle is live and only its holder uses it.
        self.check(api, unsafe { handler.take_off(handle) }, handler.name)
    }

    /// Returns the handlers that a handle's next owner does not want. One that takes our memory keeps our handler,
    /// which
    /// `set_memory` checks.
    fn unwanted_handlers<'a>(api: &'a VendorApi, handle: &RawHandle) -> impl Iterator<Item = &'a LoadedHandler> {
        api.handlers.iter().chain(api.memory.as_ref().filter(|_| !handle.takes_our_memory()))
    }

    /// Destroys the handle that a refused creation left, if the library's documentation asks for that and no known
    /// capture would be spoilt.
    #[cold]
    fn destroy_unfinished(&self, api: &VendorApi, handle: NonNull<c_void>, device: Device) {
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
        self.api.get().and_then(|api| api.loaded.cuda)
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
        Some(self.description.component.platform())
    }

    fn create(&self, device: Device) -> Result<RawHandle> {
        let api = self.api()?;
        let (status, handle) = self.call_create(api);
        match NonNull::new(handle) {
            Some(handle) if status == 0 => {
                // SAFETY: the library just made it, and only this call knows it.
                let handle = unsafe { RawHandle::from_ptr(handle) };
                api.resets.iter().for_each(|reset| reset.read_new(&handle));
                if let Some(version) = api.version_of(&self.description.version, &handle) {
                    self.version_of_handle.get_or_init(|| version);
                }
                let workspace = self.description.workspace.as_ref().filter(|_| api.set_workspace.is_some());
                Ok(match workspace.map(|call| (call, (call.bytes)(device))) {
                    Some((call, bytes)) if bytes > 0 => handle.with_workspaces(HandleWorkspaces::new(call.all, bytes)),
                    _ => handle,
                })
            }
            unfinished => {
                let error = api.refused(&self.description, self.description.create, status).on(device);
                if let Some(handle) = unfinished {
                    self.destroy_unfinished(api, handle, device);
                }
                Err(error)
            }
        }
    }

    fn destroy(&self, handle: RawHandle) -> Result<()> {
        let api = self.api()?;
        if let (Some(set_stream), Some(_)) = (api.set_stream, &api.memory) {
            // The handle's own memory goes back in the order of its stream, and the last one may be gone by now.
            // SAFETY: the handle is live and owned by this call, and the legacy default stream lasts.
            unsafe { set_stream(handle.as_ptr(), ptr::null_mut()) };
        }
        // SAFETY: the handle is live and owned by this call.
        let destroyed = self.check(api, unsafe { (api.destroy)(handle.as_ptr()) }, self.description.destroy);
        // One that the library would not end stays, for the library may use it still.
        if self.description.is_callers_struct && destroyed.is_ok() {
            // SAFETY: `create` allocated it, and the library is done with it.
            unsafe { CallersStruct::free(handle.as_non_null()) };
        }
        let freed = handle.workspaces.map_or(Ok(()), |workspaces| workspaces.free());
        destroyed.and(freed)
    }

    #[inline]
    fn set_stream(&self, handle: &RawHandle, stream: &Stream) -> Result<()> {
        let api = self.api()?;
        if api.set_stream.is_none() {
            return Ok(());
        }
        let was_stream_set = self.set_stream_if_other(api, handle, stream)?;
        let Some(workspaces) = &handle.workspaces else { return Ok(()) };
        workspaces.fit(stream, was_stream_set, |workspace| {
            let (Some(workspace), Some(set)) = (workspace, api.set_workspace) else {
                return self.call_set_stream(api, handle, self.raw(stream));
            };
            let address = ptr::without_provenance_mut(workspace.address as usize);
            // SAFETY: the handle is live, and the workspace is its alone for as long as it, or a graph, has it.
            let status = unsafe { set(handle.as_ptr(), address, workspace.bytes as usize) };
            self.check(api, status, self.description.workspace.as_ref().map_or(c"", |call| call.set))
        })
    }

    #[inline]
    fn reset(&self, handle: &RawHandle) -> Result<()> {
        let api = self.api()?;
        for reset in &api.resets {
            // SAFETY: the handle is live and only its holder uses it.
            self.check(api, unsafe { reset.call(handle) }, reset.name)?;
        }
        Self::unwanted_handlers(api, handle).try_for_each(|handler| self.take_off(api, handler, handle))?;
        match &handle.workspaces {
            Some(workspaces) => workspaces.forget(),
            // Setting any stream restores the library's own workspace. Each request sets its own stream afterwards.
            None if api.set_workspace.is_some() => self.call_set_stream(api, handle, RawStream::LEGACY)?,
            None => {}
        }
        Ok(())
    }

    #[cold]
    fn cannot_be_reset(&self, handle: &RawHandle) -> bool {
        // SAFETY: the handle is live and only its holder uses it.
        let has = |handler: &LoadedHandler| unsafe { handler.of(handle) }.is_some();
        self.api().is_ok_and(|api| Self::unwanted_handlers(api, handle).any(has))
    }

    fn takes_memory(&self) -> Result<bool> {
        Ok(self.api()?.memory.is_some())
    }

    #[cold]
    fn set_memory(&self, handle: &RawHandle, memory: &DeviceMemHandler) -> Result<()> {
        let api = self.api()?;
        let Some(handler) = &api.memory else { return Ok(()) };
        // SAFETY: the handle is live and only its holder uses it.
        let current = unsafe { handler.of(handle) };
        if !current.is_some_and(|current| current.is(memory)) {
            handle.note_our_memory(false);
            self.take_off(api, handler, handle).map_err(|error| {
                let advice = current.map(|_| OTHER_HANDLER.to_owned());
                error.map_library(|refused| refused.advice = advice.or(refused.advice.take()))
            })?;
            // SAFETY: the handle is live and only its holder uses it.
            self.check(api, unsafe { handler.set(handle, memory) }, handler.name)?;
        }
        Ok(())
    }

    fn keeps_scratch(&self) -> bool {
        self.description.keeps_scratch
    }

    fn version(&self) -> Result<Option<Version>> {
        let api = self.api()?;
        let (d, of_handle) = (&self.description, self.version_of_handle.get());
        match api.version(&d.version) {
            Ok(version) => Ok(version.or(of_handle.copied())),
            Err(status) => Err(api.refused(d, d.version.name().unwrap_or_default(), status)),
        }
    }

    fn path(&self) -> Result<Option<PathBuf>> {
        Ok(Some(self.api()?.loaded.path.clone()))
    }

    fn origin(&self) -> Result<Option<Origin>> {
        Ok(Some(self.api()?.loaded.origin))
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

/// A handle that is a struct of the caller's, as cuSPARSELt's: `int init(struct *)` fills it and `int destroy(struct
/// *)` empties it. Its calls take the address, which is the handle that a pool hands out.
///
/// As large as the largest struct of any version, whose names and files do not tell its size: cuSPARSELt 0.6 has 13072
/// bytes, 0.7 has 1024, and later versions 512. Aligned as they ask for.
#[repr(C, align(16))]
#[derive(Debug)]
struct CallersStruct([u8; 16384]);

impl CallersStruct {
    /// Returns the address of a new one, of zeros, which stays until it is freed.
    fn allocate() -> NonNull<c_void> {
        NonNull::from(Box::leak(Box::new(Self([0; 16384])))).cast()
    }

    /// Frees one.
    ///
    /// # Safety
    /// [`CallersStruct::allocate`] returned the address, nobody uses it, and it is freed once.
    unsafe fn free(address: NonNull<c_void>) {
        // SAFETY: by the caller's promise it is the box that `allocate` leaked, and nobody else's.
        drop(unsafe { Box::from_raw(address.cast::<Self>().as_ptr()) });
    }
}
