//! Blocks shared between processes: a token for a block, and memory attached by another process's token.

use std::ffi::{c_int, c_void};
use std::{ptr, slice};

use crate::error::{Error, Result};
use crate::memory::device_buffer::{self, DeviceBuffer};
use crate::memory::peer::{self, ShareToken};
use crate::memory::plug::call::{device_of, null, place, pointer, run, stream_of, stream_on_existing};
use crate::process;
use crate::runtime::Stream;

/// `gpupool_attached`: attached memory, until `detach` ends it.
#[derive(Debug)]
pub struct Attached(DeviceBuffer);

/// Returns the stream that a caller names; none for -1.
///
/// # Safety
/// The stream is alive and of the device.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is no such device.
unsafe fn named(device: c_int, stream: *mut c_void) -> Result<Option<Stream>> {
    // SAFETY: as the caller promises.
    (device != -1).then(|| unsafe { stream_on_existing(device, stream) }).transpose()
}

pub(super) unsafe extern "C" fn share(
    pointer: *const c_void,
    device: c_int,
    stream: *mut c_void,
    is_sent: c_int,
    token: *mut c_void,
    bytes: *mut u64,
    offset: *mut u64,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a place for a number.
        let bytes = unsafe { place(bytes, "bytes") }?;
        // SAFETY: the caller passes a place for a number.
        let offset = unsafe { place(offset, "offset") }?;
        if token.is_null() {
            return Err(null("token"));
        }
        // SAFETY: the caller promises that the stream is alive and of the device.
        let stream = unsafe { named(device, stream) }?;
        let room = std::mem::replace(bytes, ShareToken::BYTES as u64);
        if room < ShareToken::BYTES as u64 {
            return Err(Error::invalid_value(format!(
                "a token has {} bytes, and there is room for {room}: give GPUPOOL_TOKEN_BYTES",
                ShareToken::BYTES
            )));
        }
        let (shared, lead) = peer::share_at(pointer.addr() as u64, stream.as_ref(), is_sent != 0)?;
        // SAFETY: the caller passes room for as many bytes as it says, which are enough.
        unsafe { slice::from_raw_parts_mut(token.cast::<u8>(), ShareToken::BYTES) }.copy_from_slice(shared.as_bytes());
        *offset = lead;
        Ok(())
    })
}

pub(super) unsafe extern "C" fn attach(
    token: *const c_void,
    bytes: u64,
    device: c_int,
    stream: *mut c_void,
    attached: *mut *mut Attached,
    address: *mut *mut c_void,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a place for a pointer.
        let attached = unsafe { place(attached, "attached") }?;
        // SAFETY: the caller passes a place for a pointer.
        let address = unsafe { place(address, "pointer") }?;
        (*attached, *address) = (ptr::null_mut(), ptr::null_mut());
        if token.is_null() {
            return Err(null("token"));
        }
        let bytes = isize::try_from(bytes).map_err(|_| peer::wrong_size(bytes))?;
        // SAFETY: the caller passes a token of so many bytes.
        let token = ShareToken::from_bytes(unsafe { slice::from_raw_parts(token.cast(), bytes.cast_unsigned()) })?;
        // SAFETY: the caller promises that the stream is alive and of the device.
        let stream = unsafe { named(device, stream) }?;
        let buffer = device_buffer::attach(&token, None, stream.as_ref())?;
        *address = pointer(buffer.ptr());
        *attached = Box::into_raw(Box::new(Attached(buffer)));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn attached_record_stream(
    attached: *const Attached,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes what `attach` returned and `detach` has not ended.
        let attached = unsafe { attached.as_ref() }.ok_or_else(|| null("attached"))?;
        if device != -1 {
            device_of(device)?;
        }
        // SAFETY: the caller promises that the stream is alive and of the device.
        attached.0.record_stream(&unsafe { stream_of(device, stream) }?)
    })
}

pub(super) unsafe extern "C" fn detach(attached: *mut Attached, device: c_int, stream: *mut c_void) -> c_int {
    run(|| {
        if attached.is_null() {
            return Err(null("attached"));
        }
        // SAFETY: the caller promises that the stream is alive and of the device.
        let stream = unsafe { named(device, stream) }?;
        // What refuses comes before this: a refused call has freed nothing.
        process::refuse_forked()?;
        // SAFETY: `attach` made it, and no other call has it.
        stream.as_ref().map_or(Ok(()), |stream| unsafe { &*attached }.0.check_stream(stream))?;
        // SAFETY: `attach` made it, and the caller gives it up.
        let Attached(buffer) = *unsafe { Box::from_raw(attached) };
        // Without a stream it is freed as dropping it does.
        stream.map_or(Ok(()), |stream| buffer.free_on(&stream))
    })
}
