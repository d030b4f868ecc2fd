//! Structs that begin with their size, so that a program and the gpupool that it runs with may know different versions:
//! fields that only one of the two knows are neither read nor written.

use std::ptr;

use super::header::HeaderStruct;
use crate::error::{Error, Result};
use crate::memory::plug::call::null;

/// A struct of the header that begins with its size.
///
/// # Safety
/// It has the layout of C, begins with a `u64`, and all of its bytes may be zero.
pub(super) unsafe trait SizedStruct: Copy + HeaderStruct {}

const LEAST: u64 = size_of::<u64>() as u64;

/// Returns how many bytes of a struct both sides know.
///
/// # Safety
/// The place begins with the struct's size, or is null.
unsafe fn known<T: SizedStruct>(place: *const T) -> Result<usize> {
    if place.is_null() {
        return Err(null(T::NAME));
    }
    // SAFETY: the caller promises that the struct begins with its size.
    let size = unsafe { place.cast::<u64>().read_unaligned() };
    if size < LEAST {
        let name = T::NAME;
        return Err(Error::invalid_value(format!("the size of a {name} is {size}; set it to sizeof({name})")));
    }
    Ok(usize::try_from(size).unwrap_or(usize::MAX).min(size_of::<T>()))
}

/// Returns what a caller passes. Fields that the caller's version lacks are zero.
///
/// # Safety
/// The place is null, or a struct of the caller's version, which begins with its size.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a null pointer, or a size that is none.
pub(super) unsafe fn read<T: SizedStruct>(place: *const T) -> Result<T> {
    // SAFETY: the caller promises as much.
    let known = unsafe { known(place) }?;
    // SAFETY: by the trait's promise all of its bytes may be zero.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: both are at least `known` bytes long: the caller's struct by its size, ours by `known`.
    unsafe { ptr::copy_nonoverlapping(place.cast::<u8>(), (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// Fills the fields of the caller's struct that the caller's version has. Its size stays as it is.
///
/// # Safety
/// As [`read`], and the struct may be written.
///
/// # Errors
/// As [`read`].
pub(super) unsafe fn write<T: SizedStruct>(place: *mut T, value: T) -> Result<()> {
    // SAFETY: the caller promises as much.
    let known = unsafe { known(place) }?;
    let skipped = size_of::<u64>();
    let (from, to) = ((&raw const value).cast::<u8>(), place.cast::<u8>());
    // SAFETY: both are at least `known` bytes long, and `known` is no less than the size's own.
    unsafe { ptr::copy_nonoverlapping(from.add(skipped), to.add(skipped), known - skipped) };
    Ok(())
}
