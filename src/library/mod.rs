//! Libraries whose calls need a handle: what pools need from a library, and a small file for each that gpupool knows.
//!
//! The vendors' libraries have C interfaces of the same form, so each file is a table of names for one implementation.
//! To add a library that gpupool does not know, implement [`Library`].

mod api;
mod description;
mod device_mem_handler;
mod find;
#[cfg(feature = "python")]
pub(crate) mod functions;
mod vendor;
mod vendors;
mod workspace;

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{OneLine, Result};
use crate::ids::Device;
use crate::runtime::{Kind, Stream};

pub use device_mem_handler::{DeviceAllocFn, DeviceFreeFn, DeviceMemHandler};
pub use find::Origin;
pub use vendor::Vendor;
pub use vendors::{
    CUBLAS, CUBLASLT, CUDNN, CUDSS, CUSOLVER, CUSPARSE, CUSPARSELT, CUSTATEVEC, CUTENSOR, CUTENSORNET, HIPBLAS,
    HIPBLASLT, HIPSOLVER, HIPSPARSE, MIOPEN, simulated,
};
use workspace::HandleWorkspaces;

pub use crate::site_packages::add_site_packages;

/// A library's version: major, minor, patch.
pub type Version = (u32, u32, u32);

/// A live handle of a library, owned. Only returning it to its library destroys it.
#[derive(Debug)]
pub struct RawHandle {
    address: NonNull<c_void>,
    /// Where the library takes workspaces.
    workspaces: Option<Box<HandleWorkspaces>>,
    /// Whether this handle takes its device memory from gpupool. Only the holder reads and writes it.
    takes_our_memory: AtomicBool,
}

// SAFETY: a handle is an address that its owner gives to one thread at a time; the libraries allow use from any thread.
unsafe impl Send for RawHandle {}
// SAFETY: a shared handle lends only its address, or goes to `Library::set_stream`, which only the holding thread
// calls.
unsafe impl Sync for RawHandle {}

impl RawHandle {
    /// Takes ownership of a handle that a library just created.
    ///
    /// # Safety
    /// The handle is live, no other code destroys it, and it is passed only to the [`Library`] that created it.
    pub const unsafe fn from_ptr(handle: NonNull<c_void>) -> Self {
        Self { address: handle, workspaces: None, takes_our_memory: AtomicBool::new(false) }
    }

    fn with_workspaces(self, workspaces: HandleWorkspaces) -> Self {
        Self { workspaces: Some(Box::new(workspaces)), ..self }
    }

    #[inline]
    pub(crate) fn takes_our_memory(&self) -> bool {
        self.takes_our_memory.load(Ordering::Relaxed)
    }

    pub(crate) fn note_our_memory(&self, takes_our_memory: bool) {
        self.takes_our_memory.store(takes_our_memory, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) const fn as_non_null(&self) -> NonNull<c_void> {
        self.address
    }

    /// Returns the handle as the C API takes it.
    #[inline]
    pub const fn as_ptr(&self) -> *mut c_void {
        self.address.as_ptr()
    }
}

/// A library whose calls need a handle.
///
/// The pool calls [`create`](Library::create) and [`destroy`](Library::destroy) without holding a lock, with the
/// device's primary context current and the thread's capture mode relaxed. It calls [`set_stream`](Library::set_stream)
/// at every request for a handle, in the thread that holds it, with whatever context that thread has.
///
/// ```
/// use std::ffi::c_void;
/// use std::ptr::NonNull;
///
/// use gpupool::library::{Library, RawHandle};
/// use gpupool::{Device, HandlePool, Result, Stream};
///
/// /// A library whose handles hold nothing but a number.
/// struct Counter;
///
/// impl Library for Counter {
///     fn name(&self) -> &str {
///         "counter"
///     }
///
///     fn create(&self, _device: Device) -> Result<RawHandle> {
///         let handle = NonNull::from(Box::leak(Box::new(0_u64))).cast::<c_void>();
///         // SAFETY: the box is live, and destroyed below alone.
///         Ok(unsafe { RawHandle::from_ptr(handle) })
///     }
///
///     fn destroy(&self, handle: RawHandle) -> Result<()> {
///         // SAFETY: it is the box that `create` made, and destroyed once.
///         drop(unsafe { Box::from_raw(handle.as_ptr().cast::<u64>()) });
///         Ok(())
///     }
///
///     fn set_stream(&self, _handle: &RawHandle, _stream: &Stream) -> Result<()> {
///         Ok(())
///     }
/// }
///
/// let pool = HandlePool::new(Counter)?; // once: it lives as long as the process
/// let stream = Stream::new(gpupool::device(0)?)?;
/// assert_eq!(pool.handle(&stream)?.as_ptr(), pool.handle(&stream)?.as_ptr());
/// # Ok::<(), gpupool::Error>(())
/// ```
pub trait Library: Send + Sync {
    /// Returns the name shown in errors and statistics.
    fn name(&self) -> &str;

    /// Creates a handle on the current device, which is `device`.
    ///
    /// # Errors
    /// The library's error; with the kind [`OutOfMemory`](crate::StatusKind::OutOfMemory) the pool destroys idle
    /// handles and tries once more.
    fn create(&self, device: Device) -> Result<RawHandle>;

    /// Destroys a handle that this library created.
    ///
    /// # Errors
    /// The library's error. The handle counts as destroyed nevertheless.
    fn destroy(&self, handle: RawHandle) -> Result<()>;

    /// Sets the stream that the handle's next calls run on; it is a stream of the handle's device.
    ///
    /// # Errors
    /// The library's error.
    fn set_stream(&self, handle: &RawHandle, stream: &Stream) -> Result<()>;

    /// Resets what the handle's former owner could change, such as pointer mode or math mode. Called when a handle
    /// passes from one owner to the next.
    ///
    /// # Errors
    /// The library's error.
    fn reset(&self, _handle: &RawHandle) -> Result<()> {
        Ok(())
    }

    /// Returns whether a [`reset`](Library::reset) of this handle, or a [`set_memory`](Library::set_memory), was
    /// refused because of something that the former owner left, and would be refused again: the pool then abandons the
    /// handle. Other refusals are the request's error, and leave the handle in the pool.
    fn cannot_be_reset(&self, _handle: &RawHandle) -> bool {
        false
    }

    /// Returns whether [`set_memory`](Library::set_memory) has an effect.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if the library cannot be loaded.
    fn takes_memory(&self) -> Result<bool> {
        Ok(false)
    }

    /// Sets the functions by which the handle allocates device memory, from now on until it is destroyed or they are
    /// set again. It may have memory from elsewhere, which it frees with the functions given here.
    ///
    /// # Errors
    /// The library's error.
    fn set_memory(&self, _handle: &RawHandle, _memory: &DeviceMemHandler) -> Result<()> {
        Ok(())
    }

    /// Returns whether its functions are code of the program's own, such as Python's. Then they are not called to
    /// destroy idle handles when a request, or another process, needs memory.
    fn is_of_program(&self) -> bool {
        false
    }

    /// Returns whether the handle has scratch memory that work in progress may still use. Then the next stream must
    /// wait for the last one when a handle passes from one owner to the next, and a thread gets a handle for each of
    /// its streams.
    fn keeps_scratch(&self) -> bool {
        false
    }

    /// Returns the runtime that the handles need; none if they work with any.
    fn runtime(&self) -> Option<Kind> {
        None
    }

    /// Returns whether destroying a handle waits for the whole device, which invalidates every capture on it, in any
    /// capture mode. Then the pool destroys none while it knows of a capture.
    fn synchronizes_on_destroy(&self) -> bool {
        true
    }

    /// Returns the version, if the library reports one; some do so only once a handle was created.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if the library cannot be loaded.
    fn version(&self) -> Result<Option<Version>> {
        Ok(None)
    }

    /// Returns the file that the library was loaded from, if it was loaded from one.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if the library cannot be loaded.
    fn path(&self) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    /// Returns how that file was found.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if the library cannot be loaded.
    fn origin(&self) -> Result<Option<Origin>> {
        Ok(None)
    }

    /// Returns whether the library has been loaded, if it is loaded when first needed.
    fn is_loaded(&self) -> bool {
        true
    }

    /// Returns the device memory that a handle is known to use, in bytes; 0 if unknown.
    fn handle_bytes(&self) -> u64 {
        0
    }

    /// Returns the device memory in bytes that the library's handles, and graphs captured with them, were given as
    /// workspaces on the device, beyond what they allocated themselves.
    fn workspace_bytes(&self, _device: Device) -> u64 {
        0
    }

    /// Frees the workspaces that neither a handle nor a graph uses any more.
    ///
    /// # Errors
    /// The driver's error.
    fn release_workspaces(&self, _device: Device) -> Result<()> {
        Ok(())
    }
}

/// Returns a library's name as logs write it, with its version if it reports one.
pub(crate) fn named(library: &dyn Library) -> String {
    let name = OneLine(library.name());
    match library.version() {
        Ok(Some((major, minor, patch))) => format!("{name} {major}.{minor}.{patch}"),
        _ => name.to_string(),
    }
}
