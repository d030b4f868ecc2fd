//! Attached memory, for C.

use std::ffi::{c_int, c_void};
use std::slice;

use crate::error::Result;
use crate::memory::device_buffer::{self, DeviceBuffer};
use crate::memory::plug::c_api::call::{device_of, null, place, pointer, run, stream_of};
use crate::memory::share::{self, ShareToken};
use crate::process;
use crate::runtime::Stream;

/// `gpupool_attached`: attached memory, until `detach` ends it.
#[derive(Debug)]
pub struct Attached(DeviceBuffer);

/// Returns the stream that a caller names; -1 for whichever device it belongs to.
///
/// # Safety
/// The stream is alive and of the device.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is no such device.
unsafe fn checked(device: c_int, stream: *mut c_void) -> Result<Stream> {
    if device != -1 {
        device_of(device)?;
    }
    // SAFETY: as the caller promises.
    unsafe { stream_of(device, stream) }
}

/// As [`checked`], and none for -1.
///
/// # Safety
/// As [`checked`].
///
/// # Errors
/// As [`checked`].
pub(super) unsafe fn named(device: c_int, stream: *mut c_void) -> Result<Option<Stream>> {
    // SAFETY: as the caller promises.
    (device != -1).then(|| unsafe { checked(device, stream) }).transpose()
}

/// Takes a block up that another process shares.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn attach(
    token: *const c_void,
    bytes: u64,
    device: c_int,
    stream: *mut c_void,
    attached: *mut *mut Attached,
    address: *mut *mut c_void,
) -> c_int {
    run(|| {
        process::refuse_forked()?;
        // SAFETY: the caller passes a place for a pointer.
        let attached = unsafe { place(attached, "attached") }?;
        // SAFETY: as above.
        let address = unsafe { place(address, "pointer") }?;
        (*attached, *address) = (std::ptr::null_mut(), std::ptr::null_mut());
        if token.is_null() {
            return Err(null("token"));
        }
        let bytes = isize::try_from(bytes).map_err(|_| share::wrong_size(bytes))?;
        // SAFETY: the caller passes a token of so many bytes.
        let token = ShareToken::from_bytes(unsafe { slice::from_raw_parts(token.cast(), bytes.cast_unsigned()) })?;
        // SAFETY: the caller promises that the stream is alive and of the device.
        let stream = unsafe { named(device, stream) }?;
        let buffer = device_buffer::attach(&token, None, stream.as_ref())?;
        *address = pointer(buffer.address());
        *attached = Box::into_raw(Box::new(Attached(buffer)));
        Ok(())
    })
}

/// Keeps attached memory, once it is given up, until the stream's work at that time is done.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn attached_record_stream(
    attached: *const Attached,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    run(|| {
        process::refuse_forked()?;
        // SAFETY: the caller passes what `attach` gave and `detach` has not ended.
        let attached = unsafe { attached.as_ref() }.ok_or_else(|| null("attached"))?;
        // SAFETY: the caller promises that the stream is alive and of the device.
        attached.0.record_stream(&unsafe { checked(device, stream) }?)
    })
}

/// Gives attached memory up.
pub(in crate::memory::plug::c_api) unsafe extern "C" fn detach(
    attached: *mut Attached,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    run(|| {
        process::refuse_forked()?;
        if attached.is_null() {
            return Err(null("attached"));
        }
        // SAFETY: the caller promises that the stream is alive and of the device.
        let stream = unsafe { named(device, stream) }?;
        // SAFETY: `attach` made it, and the caller gives it up.
        let Attached(buffer) = *unsafe { Box::from_raw(attached) };
        match stream {
            Some(stream) => buffer.free_on(&stream),
            None => {
                drop(buffer);
                Ok(())
            }
        }
    })
}
