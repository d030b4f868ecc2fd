//! Blocks that travel: a pointer becomes a token, and a token of another process a pointer.

mod attached;

use std::ffi::{c_int, c_void};
use std::slice;

pub use attached::Attached;
pub(super) use attached::{attach, attached_record_stream, detach};

use self::attached::named;
use super::call::{null, place, run};
use crate::error::Error;
use crate::memory::share::{self, ShareToken};
use crate::process;

/// Shares the live block that a pointer lies in.
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
        process::refuse_forked()?;
        // SAFETY: the caller passes a place for a number.
        let bytes = unsafe { place(bytes, "bytes") }?;
        // SAFETY: as above.
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
        let (shared, lead) = share::share_at(pointer.addr() as u64, stream.as_ref(), is_sent != 0)?;
        // SAFETY: the caller passes room for as many bytes as it says, which are enough.
        unsafe { slice::from_raw_parts_mut(token.cast::<u8>(), ShareToken::BYTES) }.copy_from_slice(shared.as_bytes());
        *offset = lead;
        Ok(())
    })
}
