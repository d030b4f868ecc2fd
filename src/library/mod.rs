//! Libraries whose calls need a handle: what the pools ask of one, and one small file for each that gpupool knows.
//!
//! The vendors' libraries share one C shape, so each file is a table of names that one implementation works from. A
//! library that gpupool does not know is served by implementing [`Library`].

mod description;
mod device_mem_handler;
mod find;
#[cfg(feature = "python")]
pub(crate) mod functions;
mod named;
mod reset;
mod vendor;
mod vendors;
mod workspace;

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::ids::Device;
use crate::runtime::{Kind, Stream};

pub use device_mem_handler::{DeviceAllocFn, DeviceFreeFn, DeviceMemHandler};
pub use find::Origin;
pub(crate) use named::Named;
pub use vendor::Vendor;
pub use vendors::{
    CUBLAS, CUBLASLT, CUDNN, CUDSS, CUSOLVER, CUSPARSE, HIPBLAS, HIPBLASLT, HIPSOLVER, HIPSPARSE, MIOPEN, host,
};
use workspace::HandleWorkspaces;

pub use crate::site_packages::add_site_packages;

/// A library's version: major, minor, patch.
pub type Version = (u32, u32, u32);

/// A live handle of a library, owned. It is destroyed by giving it back to its library, and by nothing else.
#[derive(Debug)]
pub struct RawHandle {
    address: NonNull<c_void>,
    /// Where the library takes workspaces.
    workspaces: Option<Box<HandleWorkspaces>>,
    /// Whether the library was told to take this handle's device memory from gpupool. Only the holder reads and writes it.
    takes_our_memory: AtomicBool,
}

// SAFETY: a handle is an address that its owner gives to one thread at a time; the libraries allow use from any thread.
unsafe impl Send for RawHandle {}
// SAFETY: a shared handle lends only its address, or goes to `Library::set_stream`, which only the holding thread calls.
unsafe impl Sync for RawHandle {}

impl RawHandle {
    /// Takes ownership of a handle that a library just created.
    ///
    /// # Safety
    /// The handle is live, no other code destroys it, and it is given only to the [`Library`] that made it.
    pub const unsafe fn from_ptr(handle: NonNull<c_void>) -> Self {
        Self { address: handle, workspaces: None, takes_our_memory: AtomicBool::new(false) }
    }

    /// Returns the same handle, with workspaces.
    fn with_workspaces(self, workspaces: HandleWorkspaces) -> Self {
        Self { workspaces: Some(Box::new(workspaces)), ..self }
    }

    #[inline]
    fn takes_our_memory(&self) -> bool {
        self.takes_our_memory.load(Ordering::Relaxed)
    }

    fn note_our_memory(&self, takes_our_memory: bool) {
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
/// The pool calls [`create`](Library::create) and [`destroy`](Library::destroy) outside of every lock, with the
/// device's primary context current and the thread's capture mode relaxed. It calls [`set_stream`](Library::set_stream)
/// on every checkout, in the thread that holds the handle, with whatever context that thread has.
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
    /// What the library refused; the kind [`OutOfMemory`](crate::StatusKind::OutOfMemory) makes the pool destroy idle
    /// handles and try once more.
    fn create(&self, device: Device) -> Result<RawHandle>;

    /// Destroys a handle that this library created.
    ///
    /// # Errors
    /// What the library refused. The handle counts as destroyed all the same.
    fn destroy(&self, handle: RawHandle) -> Result<()>;

    /// Sets the stream that the handle's next calls run on; it is one of the handle's device.
    ///
    /// # Errors
    /// What the library refused.
    fn set_stream(&self, handle: &RawHandle, stream: &Stream) -> Result<()>;

    /// Sets back what the handle's former owner could change of it, such as pointer mode or math mode. Called when a handle
    /// goes from one owner to the next.
    ///
    /// # Errors
    /// What the library refused.
    fn reset(&self, _handle: &RawHandle) -> Result<()> {
        Ok(())
    }

    /// Returns whether it is for something of the former owner's that a [`reset`](Library::reset) of this handle was refused, or a
    /// [`set_memory`](Library::set_memory), and would be again: the pool then gives the handle up. Other refusals are the
    /// request's error, and leave the handle in the pool.
    fn cannot_be_reset(&self, _handle: &RawHandle) -> bool {
        false
    }

    /// Returns whether [`set_memory`](Library::set_memory) does anything.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if it cannot be loaded.
    fn takes_memory(&self) -> Result<bool> {
        Ok(false)
    }

    /// Tells the handle where to take device memory from, now and until it is destroyed or told otherwise. It may have memory
    /// from elsewhere, which it frees by the functions given here.
    ///
    /// # Errors
    /// What the library refused.
    fn set_memory(&self, _handle: &RawHandle, _memory: &DeviceMemHandler) -> Result<()> {
        Ok(())
    }

    /// Returns whether the handle has scratch memory that work under way may still use. Then the next stream has to wait for
    /// the last one when a handle goes from one owner to the next, and a thread gets a handle for each of its streams.
    fn keeps_scratch(&self) -> bool {
        false
    }

    /// Returns the runtime that the handles need; none if any will do.
    fn runtime(&self) -> Option<Kind> {
        None
    }

    /// Returns whether destroying a handle waits for the whole device, which spoils every capture on it, in any capture
    /// mode. Then the pool destroys none while it knows of a capture.
    fn synchronizes_on_destroy(&self) -> bool {
        true
    }

    /// Returns the version, if the library tells one; some do only once a handle was made.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if it cannot be loaded.
    fn version(&self) -> Result<Option<Version>> {
        Ok(None)
    }

    /// Returns the file it was loaded from, if it was loaded from one.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if it cannot be loaded.
    fn path(&self) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    /// Returns how that file was found.
    ///
    /// # Errors
    /// `ErrorKind::LibraryNotFound` if it cannot be loaded.
    fn origin(&self) -> Result<Option<Origin>> {
        Ok(None)
    }

    /// Returns whether it has been loaded, where it is loaded when first needed.
    fn is_loaded(&self) -> bool {
        true
    }

    /// Device memory that a handle is known to take, in bytes; 0 where unknown.
    fn handle_bytes(&self) -> u64 {
        0
    }

    /// Device memory in bytes that the library's handles, and graphs captured with them, have been given to compute with on
    /// the device, beyond what they took themselves.
    fn workspace_bytes(&self, _device: Device) -> u64 {
        0
    }

    /// Frees what of that neither a handle nor a graph has any more.
    ///
    /// # Errors
    /// What the driver refused.
    fn release_workspaces(&self, _device: Device) -> Result<()> {
        Ok(())
    }
}
