//! Memory ranges: addresses whose pages are committed and decommitted.

use std::ffi::{c_int, c_void};
use std::{ptr, slice};

use super::header::Callback;
use super::pools::{PoolHandle, use_of};
use crate::error::{Error, Result};
use crate::memory::plug::call::{device_of, null, place, pointer, run, stream_of, stream_on_existing};
use crate::memory::{CommitOptions, MemoryRange, reserve_range_of};
use crate::observe::recording::{Purpose, hold_stack};
use crate::runtime::Stream;

/// `gpupool_range`: a range, until `range_release` or `range_drop` ends it.
#[derive(Debug)]
pub struct RangeHandle(MemoryRange);

/// Called with the context, the numbers of pages that were taken, and how many.
pub type DiscardFunction = unsafe extern "C" fn(*mut c_void, *const u32, u64);

pub(super) unsafe extern "C" fn pool_reserve_range(
    pool: *const PoolHandle,
    bytes: u64,
    page_bytes: u64,
    range: *mut *mut RangeHandle,
    address: *mut *mut c_void,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a place for a pointer.
        let range = unsafe { place(range, "range") }?;
        // SAFETY: the caller passes a place for a pointer.
        let address = unsafe { place(address, "pointer") }?;
        (*range, *address) = (ptr::null_mut(), ptr::null_mut());
        let made = reserve_range_of(use_of(pool)?, bytes, page_bytes)?;
        *address = pointer(made.ptr());
        *range = Box::into_raw(Box::new(RangeHandle(made)));
        Ok(())
    })
}

/// Returns a caller's range.
///
/// # Safety
/// `pool_reserve_range` returned it, and it was not released; or it is null.
unsafe fn range_of<'a>(range: *const RangeHandle) -> Result<&'a MemoryRange> {
    // SAFETY: as the caller promises.
    Ok(&unsafe { range.as_ref() }.ok_or_else(|| null("range"))?.0)
}

/// Returns the page numbers that a caller passes.
///
/// # Safety
/// There are so many.
unsafe fn numbers<'a>(pages: *const u32, count: u64) -> Result<&'a [u32]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pages.is_null() {
        return Err(null("pages"));
    }
    // No array is larger than half of the addresses.
    let count =
        usize::try_from(count).ok().filter(|count| isize::try_from(count.saturating_mul(size_of::<u32>())).is_ok());
    let count = count.ok_or_else(|| Error::invalid_value("count: there are not so many pages"))?;
    // SAFETY: as the caller promises.
    Ok(unsafe { slice::from_raw_parts(pages, count) })
}

/// Returns the stream that a caller names; none for -1.
///
/// # Safety
/// The stream is alive and of the device.
unsafe fn named(device: c_int, stream: *mut c_void) -> Result<Option<Stream>> {
    // SAFETY: as the caller promises.
    (device != -1).then(|| unsafe { stream_on_existing(device, stream) }).transpose()
}

pub(super) unsafe extern "C" fn range_commit(
    range: *const RangeHandle,
    pages: *const u32,
    count: u64,
    device: c_int,
    stream: *mut c_void,
    priority: *const c_int,
    fill: c_int,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a range that was not released, or null.
        let range = unsafe { range_of(range) }?;
        // SAFETY: the caller passes so many numbers.
        let pages = unsafe { numbers(pages, count) }?;
        if device != -1 {
            device_of(device)?;
        }
        // SAFETY: the caller promises that the stream is alive and of the device.
        let stream = unsafe { stream_of(device, stream) }?;
        let wrong = |_| Error::invalid_value(format!("fill is {fill}: give a byte, 0 to 255, or -1 for none"));
        let fill = (fill != -1).then(|| u8::try_from(fill).map_err(wrong)).transpose()?;
        // SAFETY: the caller passes a number, or null.
        let priority = unsafe { priority.as_ref() }.copied();
        let _stack = hold_stack(Purpose::Allocation);
        range.commit(pages, &stream, CommitOptions { priority, fill })
    })
}

pub(super) unsafe extern "C" fn range_decommit(
    range: *const RangeHandle,
    pages: *const u32,
    count: u64,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a range that was not released, or null; so many numbers; and a stream that is alive.
        let (range, pages, stream) = unsafe { (range_of(range)?, numbers(pages, count)?, named(device, stream)?) };
        let _stack = hold_stack(Purpose::Free);
        range.decommit(pages, stream.as_ref())
    })
}

pub(super) unsafe extern "C" fn range_pin(
    range: *const RangeHandle,
    pages: *const u32,
    count: u64,
    device: c_int,
    stream: *mut c_void,
    bits: *mut c_void,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a range that was not released, or null; so many numbers; and a stream that is alive.
        let (range, pages, stream) = unsafe { (range_of(range)?, numbers(pages, count)?, named(device, stream)?) };
        if bits.is_null() && count > 0 {
            return Err(null("bits"));
        }
        let found = range.pin(pages, stream.as_ref())?;
        if !found.is_empty() {
            // SAFETY: the caller passes room for a bit of each page.
            unsafe { slice::from_raw_parts_mut(bits.cast::<u8>(), found.len()) }.copy_from_slice(&found);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn range_unpin(
    range: *const RangeHandle,
    pages: *const u32,
    count: u64,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a range that was not released, or null; so many numbers; and a stream that is alive.
        let (range, pages, stream) = unsafe { (range_of(range)?, numbers(pages, count)?, named(device, stream)?) };
        range.unpin(pages, stream.as_ref())
    })
}

pub(super) unsafe extern "C" fn range_prepare(range: *const RangeHandle, pages: u64) -> c_int {
    run(|| {
        let many = |_| Error::invalid_value(format!("pages is {pages}: the range has fewer"));
        // SAFETY: the caller passes a range that was not released, or null.
        unsafe { range_of(range) }?.prepare(u32::try_from(pages).map_err(many)?)
    })
}

pub(super) unsafe extern "C" fn range_bytes(
    range: *const RangeHandle,
    committed: *mut u64,
    discardable: *mut u64,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a range that was not released, or null.
        let range = unsafe { range_of(range) }?;
        // SAFETY: the caller passes a place for a number, or null.
        if let Some(committed) = unsafe { committed.as_mut() } {
            *committed = range.committed_bytes()?;
        }
        // SAFETY: the caller passes a place for a number, or null.
        if let Some(discardable) = unsafe { discardable.as_mut() } {
            *discardable = range.discardable_bytes()?;
        }
        Ok(())
    })
}

impl Callback<DiscardFunction> {
    fn call(&self, pages: &[u32]) {
        // SAFETY: the caller promises that the function may be called so as long as the range lives.
        unsafe { (self.function)(self.context, pages.as_ptr(), pages.len() as u64) };
    }
}

pub(super) unsafe extern "C" fn range_on_discard(
    range: *const RangeHandle,
    callback: Option<DiscardFunction>,
    context: *mut c_void,
) -> c_int {
    run(|| {
        let callback = Callback::new(callback, context)?;
        // SAFETY: the caller passes a range that was not released, or null.
        unsafe { range_of(range) }?.on_discard(move |pages| callback.call(pages)).keep();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn range_release(range: *mut RangeHandle, device: c_int, stream: *mut c_void) -> c_int {
    run(|| {
        // SAFETY: the caller passes a range that was not released, or null; and a stream that is alive.
        let (held, stream) = unsafe { (range_of(range)?, named(device, stream)?) };
        let _stack = hold_stack(Purpose::Free);
        // The context is the caller's again after this.
        held.release(stream.as_ref())?;
        // SAFETY: `pool_reserve_range` made it, and the caller gives it up.
        drop(unsafe { Box::from_raw(range) });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn range_drop(range: *mut RangeHandle) -> c_int {
    run(|| {
        // SAFETY: the caller passes a range that was not released, or null.
        unsafe { range_of(range) }?;
        let _stack = hold_stack(Purpose::Free);
        // SAFETY: `pool_reserve_range` made it, and the caller gives it up.
        unsafe { Box::from_raw(range) }.0.give_up();
        Ok(())
    })
}
