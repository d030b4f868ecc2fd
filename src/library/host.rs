//! A library for simulated devices: its handles take simulated memory, know their stream, and cost what a test says.
//! Destroying one waits for the device, as cuBLAS does.
//!
//! Without a GPU it shows what the pools do; in benches it shows what they cost by themselves.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::{Library, RawHandle, Version};
use crate::error::Result;
use crate::runtime::host::{self, Call, check};
use crate::runtime::{Kind, Stream};
use crate::stream::Device;

/// The simulated library.
#[derive(Debug)]
pub struct HostLibrary {
    create_nanoseconds: AtomicU64,
    bytes: AtomicU64,
    keeps_scratch: AtomicBool,
}

/// The simulated library.
pub static HOST: HostLibrary = HostLibrary {
    create_nanoseconds: AtomicU64::new(0),
    bytes: AtomicU64::new(1 << 20),
    keeps_scratch: AtomicBool::new(false),
};

/// What a handle's address points to. Alone in its cache lines, as real handles mostly are.
#[derive(Debug)]
#[repr(align(128))]
struct HostHandle {
    stream: AtomicUsize,
    resets: AtomicU64,
    device: Device,
    bytes: u64,
}

/// Sets how long creating a handle takes from now on.
pub fn set_create_cost(cost: Duration) {
    HOST.create_nanoseconds.store(cost.as_nanos() as u64, Ordering::Relaxed);
}

/// Sets how much simulated device memory a handle takes from now on, in bytes.
pub fn set_handle_bytes(bytes: u64) {
    HOST.bytes.store(bytes, Ordering::Relaxed);
}

/// Sets whether its handles keep scratch memory, as cuSOLVER's do.
pub fn set_keeps_scratch(keeps_scratch: bool) {
    HOST.keeps_scratch.store(keeps_scratch, Ordering::Relaxed);
}

/// How often a handle of this library was set back for its next owner.
///
/// # Safety
/// The address is that of a live handle of this library.
pub unsafe fn resets_of(handle: *mut c_void) -> u64 {
    // SAFETY: the caller vouches for the handle.
    unsafe { &*handle.cast::<HostHandle>() }.resets.load(Ordering::Relaxed)
}

fn inner(handle: &RawHandle) -> &HostHandle {
    // SAFETY: a `RawHandle` of this library owns a `HostHandle` until `destroy` takes it.
    unsafe { &*handle.as_ptr().cast() }
}

/// The stream that was last set on a handle of this library.
///
/// # Safety
/// The address is that of a live handle of this library.
pub unsafe fn stream_of(handle: *mut c_void) -> usize {
    // SAFETY: the caller vouches for the handle.
    unsafe { &*handle.cast::<HostHandle>() }.stream.load(Ordering::Relaxed)
}

/// [`stream_of`] for the private test functions of the Python module, whose caller vouches for the number.
#[cfg(feature = "python")]
pub(crate) fn stream_of_address(handle: usize) -> usize {
    // SAFETY: tests pass only what `handle()` of this library's pool answered.
    unsafe { stream_of(std::ptr::with_exposed_provenance_mut(handle)) }
}

impl Library for HostLibrary {
    fn name(&self) -> &str {
        "host"
    }

    fn runtime(&self) -> Option<Kind> {
        Some(Kind::Host)
    }

    fn create(&self, device: Device) -> Result<RawHandle> {
        check(Call::HandleCreate)?;
        let bytes = self.bytes.load(Ordering::Relaxed);
        host::allocate(bytes)?;
        let cost = self.create_nanoseconds.load(Ordering::Relaxed);
        if cost > 0 {
            thread::sleep(Duration::from_nanos(cost));
        }
        let handle = Box::new(HostHandle { stream: AtomicUsize::new(0), resets: AtomicU64::new(0), device, bytes });
        let handle = NonNull::from(Box::leak(handle));
        handle.as_ptr().expose_provenance();
        // SAFETY: the box was just leaked for this handle, and `destroy` takes it back.
        Ok(unsafe { RawHandle::from_ptr(handle.cast()) })
    }

    fn destroy(&self, handle: RawHandle) -> Result<()> {
        check(Call::HandleDestroy)?;
        // SAFETY: the handle owns the box that `create` leaked.
        let inner = unsafe { Box::from_raw(handle.as_ptr().cast::<HostHandle>()) };
        host::synchronize_and_free(inner.device, inner.bytes)
    }

    #[inline]
    fn set_stream(&self, handle: &RawHandle, stream: &Stream) -> Result<()> {
        check(Call::HandleSetStream)?;
        inner(handle).stream.store(stream.raw().address(), Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn reset(&self, handle: &RawHandle) -> Result<()> {
        inner(handle).resets.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn keeps_scratch(&self) -> bool {
        self.keeps_scratch.load(Ordering::Relaxed)
    }

    fn version(&self) -> Result<Option<Version>> {
        Ok(Some((1, 0, 0)))
    }

    fn handle_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
