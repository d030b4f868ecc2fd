//! How a call from C ends: with a status, and a reason for `last_error`; no panic crosses it. A call that succeeds
//! writes nothing but its result.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::error::{Error, ErrorKind, Result, StatusKind};
use crate::ids::Device;
use crate::memory::serve::Allocation;
use crate::process;
use crate::runtime::{self, Stream};

/// `GPUPOOL_SUCCESS`.
pub(crate) const SUCCESS: c_int = 0x0;
const OUT_OF_MEMORY: c_int = 0x1;
const INVALID_VALUE: c_int = 0x2;
const DRIVER: c_int = 0x3;
const FORKED: c_int = 0x4;
const OTHER: c_int = 0x5;
const ASLEEP: c_int = 0x6;
const EXHAUSTED: c_int = 0x7;
const UNAVAILABLE: c_int = 0x8;

/// The most bytes of [`last_error`]'s text, with its null byte. Longer texts are cut.
const TEXT: usize = 0x1000;
const NO_ERROR: &CStr = c"no call of this thread has failed";

thread_local! {
    /// Why the thread's last call failed. Without a destructor, so that it works to the end of the thread and the
    /// process.
    static LAST: RefCell<[u8; TEXT]> = const { RefCell::new([0; TEXT]) };
}

pub(crate) unsafe extern "C" fn last_error() -> *const c_char {
    let text = LAST.try_with(|last| {
        let has_text = last.try_borrow().is_ok_and(|text| text[0] != 0);
        has_text.then_some(last.as_ptr().cast::<c_char>().cast_const())
    });
    text.ok().flatten().unwrap_or(NO_ERROR.as_ptr())
}

/// Writes a text and a null byte, as far as there is room.
fn write_text(room: &mut [u8; TEXT], text: &str) {
    let mut end = text.len().min(TEXT - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // Only texts of other code's errors may have null bytes.
    for (to, from) in room.iter_mut().zip(text[..end].bytes().map(|byte| if byte == 0 { b' ' } else { byte })) {
        *to = from;
    }
    room[end] = 0;
}

fn status(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::OutOfMemory(_) => OUT_OF_MEMORY,
        ErrorKind::Library(refused) if refused.kind == StatusKind::OutOfMemory => OUT_OF_MEMORY,
        ErrorKind::Library(_) => DRIVER,
        ErrorKind::Interrupted { refused: Some(refused), .. } => status(refused),
        ErrorKind::InvalidValue(_) => INVALID_VALUE,
        ErrorKind::Forked => FORKED,
        ErrorKind::Asleep(_) => ASLEEP,
        ErrorKind::PoolExhausted(_) => EXHAUSTED,
        ErrorKind::LibraryNotFound { .. } | ErrorKind::RuntimeUnavailable { .. } | ErrorKind::Unavailable(_) => {
            UNAVAILABLE
        }
        _ => OTHER,
    }
}

/// Keeps the error for [`last_error`], and returns its status.
#[cold]
fn fail(error: &Error) -> c_int {
    let text = error.to_string();
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut room| write_text(&mut room, &text)));
    status(error)
}

/// Runs a call, and returns its status. In a forked child, what it calls decides.
#[inline]
pub(crate) fn status_of(call: impl FnOnce() -> Result<()>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(error)) => fail(&error),
        Err(_) => fail(&Error::internal("a call from C panicked")),
    }
}

/// Runs a call, and returns its status. Refuses in a forked child.
#[inline]
pub(crate) fn run(call: impl FnOnce() -> Result<()>) -> c_int {
    status_of(|| process::refuse_forked().and_then(|()| call()))
}

/// Writes a call's result to its place, unless it fails. `name` is the header's name for the place.
///
/// # Safety
/// The place may be written, or is null, which is refused.
#[inline]
pub(crate) unsafe fn put<T: Copy>(place: *mut T, name: &str, call: impl FnOnce() -> Result<T>) -> Result<()> {
    if place.is_null() {
        return Err(null(name));
    }
    let result = call()?;
    // SAFETY: the caller passes a place that may be written, or null, which it is not.
    unsafe { place.write(result) };
    Ok(())
}

/// Runs [`put`] as a whole call. Returns its status.
///
/// # Safety
/// As [`put`].
#[inline]
pub(crate) unsafe fn answer<T: Copy>(place: *mut T, name: &str, call: impl FnOnce() -> Result<T>) -> c_int {
    // SAFETY: as the caller promises.
    status_of(|| unsafe { put(place, name, call) })
}

/// As [`answer`], for what the caller gives back later: a failed call writes `none`.
///
/// # Safety
/// As [`answer`].
#[inline]
pub(crate) unsafe fn answer_or_none<T: Copy>(
    place: *mut T,
    name: &str,
    none: T,
    call: impl FnOnce() -> Result<T>,
) -> c_int {
    // SAFETY: the caller passes a place that may be written, or null.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = none;
    }
    // SAFETY: the caller passes a place that may be written, or null.
    unsafe { answer(place, name, call) }
}

/// Runs a call that returns bytes, for which the place may be null.
///
/// # Safety
/// The place is one for a number, or null.
pub(crate) unsafe fn count(place: *mut u64, call: impl FnOnce() -> Result<u64>) -> c_int {
    run(|| {
        let bytes = call()?;
        // SAFETY: the caller passes a place for a number, or null.
        if let Some(place) = unsafe { place.as_mut() } {
            *place = bytes;
        }
        Ok(())
    })
}

/// Runs a call whose form has no status: a failure returns `otherwise`, and its reason is for [`last_error`].
#[inline]
pub(crate) fn guard<R>(otherwise: R, call: impl FnOnce() -> Result<R>) -> R {
    let mut result = otherwise;
    run(|| {
        result = call()?;
        Ok(())
    });
    result
}

pub(crate) fn device_of(ordinal: c_int) -> Result<Device> {
    process::refuse_forked()?;
    runtime::device(ordinal.into())
}

/// Returns the device that a caller names; none for -1, which is all of them.
pub(crate) fn one_or_all(ordinal: c_int) -> Result<Option<Device>> {
    if ordinal == -1 { process::refuse_forked().map(|()| None) } else { device_of(ordinal).map(Some) }
}

/// Returns the stream of a device, which is looked up where the stream is used.
///
/// # Safety
/// The stream is alive while it is used, and of the device.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a negative number.
#[inline]
pub(crate) unsafe fn stream_on(device: c_int, stream: *mut c_void) -> Result<Stream> {
    let device = match u32::try_from(device) {
        Ok(ordinal) => Device::from_ordinal(ordinal),
        Err(_) => device_of(device)?,
    };
    // SAFETY: the caller promises that the stream is alive and of the device.
    Ok(unsafe { Stream::view_of(stream, device) })
}

/// As [`stream_on`], of a device that is looked up first.
///
/// # Safety
/// As [`stream_on`].
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is no such device; `ErrorKind::Forked`.
pub(crate) unsafe fn stream_on_existing(device: c_int, stream: *mut c_void) -> Result<Stream> {
    device_of(device)?;
    // SAFETY: as the caller promises.
    unsafe { stream_on(device, stream) }
}

/// Returns the stream that a caller names; -1 for whichever device it belongs to.
///
/// # Safety
/// The stream is alive while it is used, and of the device if one is named, which is looked up where it is used.
///
/// # Errors
/// `ErrorKind::InvalidValue` for another negative number; for -1 as [`Stream::from_raw`].
#[inline]
pub(crate) unsafe fn stream_of(device: c_int, stream: *mut c_void) -> Result<Stream> {
    if device == -1 {
        // SAFETY: the caller promises that the stream is alive.
        return unsafe { Stream::from_raw(stream) };
    }
    // SAFETY: the caller promises that the stream is alive and of the device.
    unsafe { stream_on(device, stream) }
}

/// Returns a place that a caller passes for one of several results.
///
/// # Safety
/// The place is null, or one that may be written.
///
/// # Errors
/// `ErrorKind::InvalidValue` if it is null; `name` is the header's name for the place.
#[inline]
pub(crate) unsafe fn place<'a, T>(place: *mut T, name: &str) -> Result<&'a mut T> {
    // SAFETY: the caller promises that it may be written unless it is null.
    unsafe { place.as_mut() }.ok_or_else(|| null(name))
}

#[cold]
pub(crate) fn null(name: &str) -> Error {
    Error::invalid_value(format!("{name} is a null pointer; give the address of one"))
}

/// Returns the address of an allocation as C takes it: null for 0 bytes.
#[inline]
pub(crate) fn address_of(bytes: u64, allocate: impl FnOnce() -> Result<Allocation>) -> Result<*mut c_void> {
    if bytes == 0 { Ok(ptr::null_mut()) } else { allocate().map(|block| pointer(block.address())) }
}

#[inline]
pub(crate) fn pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let mut room = [b'x'; TEXT];
        write_text(&mut room, text);
        CStr::from_bytes_until_nul(&room).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    }

    #[test]
    fn a_text_is_cut_between_characters_and_has_no_null_bytes() {
        assert_eq!(written(""), "");
        assert_eq!(written("a\0b"), "a b");
        let (most, long) = ("a".repeat(TEXT - 1), "a".repeat(TEXT - 2) + "\u{e4}\u{e4}");
        assert_eq!(written(&most), most);
        assert_eq!(written(&long), most[1..]);
    }
}
