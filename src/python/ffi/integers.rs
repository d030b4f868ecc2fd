//! Whole numbers that Python objects lend by the buffer protocol, as arrays of NumPy and `array.array` do.

use std::ffi::CStr;
use std::mem::size_of;

use pyo3::prelude::*;

use super::host_bytes::View;

/// How the integers of a buffer are stored.
#[derive(Clone, Copy)]
struct Format {
    bytes: usize,
    is_signed: bool,
}

/// Returns the numbers that an object lends, each as `take` takes it; none if it lends no integers in one dimension.
///
/// # Errors
/// What `take` returns.
pub(in crate::python) fn lent_integers(
    object: &Bound<'_, PyAny>,
    mut take: impl FnMut(i128) -> PyResult<()>,
) -> PyResult<Option<()>> {
    let Ok(view) = View::new(object) else { return Ok(None) };
    let (shape, stride) = match view.one_dimension() {
        Some(dimension) => dimension,
        None => return Ok(None),
    };
    let Some(format) = view.integer_format() else { return Ok(None) };
    for index in 0..shape {
        let at = view.start().wrapping_offset(stride * index as isize);
        let mut bytes = [0; size_of::<u64>()];
        // SAFETY: the view has so many items at this stride, each as long as its format says, and they need no alignment.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), format.bytes) };
        let raw = u64::from_ne_bytes(if cfg!(target_endian = "big") { shifted(bytes, format.bytes) } else { bytes });
        let unused = 64 - 8 * format.bytes as u32;
        take(if format.is_signed { i128::from((raw << unused).cast_signed() >> unused) } else { i128::from(raw) })?;
    }
    Ok(Some(()))
}

const fn shifted(bytes: [u8; 8], used: usize) -> [u8; 8] {
    (u64::from_be_bytes(bytes) >> (64 - 8 * used as u32)).to_be_bytes()
}

impl View<'_> {
    fn start(&self) -> *const u8 {
        self.view.buf.cast_const().cast()
    }

    /// Returns how many items there are, and the bytes from one to the next.
    fn one_dimension(&self) -> Option<(usize, isize)> {
        if self.view.ndim != 1 || self.view.shape.is_null() {
            return None;
        }
        // SAFETY: a view of one dimension has one item in its shape and, if they are given, in its strides.
        let (count, stride) = unsafe {
            let stride = if self.view.strides.is_null() { self.view.itemsize } else { *self.view.strides };
            (*self.view.shape, stride)
        };
        Some((usize::try_from(count).ok()?, stride))
    }

    fn integer_format(&self) -> Option<Format> {
        // None stands for bytes.
        let format = if self.view.format.is_null() {
            c"B"
        } else {
            // SAFETY: a format that is not null is a string that lives as long as the view.
            unsafe { CStr::from_ptr(self.view.format) }
        };
        let own = if cfg!(target_endian = "big") { b'>' } else { b'<' };
        let is_native = |order: &u8| matches!(order, b'@' | b'=') || *order == own;
        let letter = match format.to_bytes() {
            [letter] => *letter,
            [order, letter] if is_native(order) => *letter,
            _ => return None,
        };
        let is_signed = matches!(letter, b'b' | b'h' | b'i' | b'l' | b'q' | b'n');
        let is_integer = is_signed || matches!(letter, b'B' | b'H' | b'I' | b'L' | b'Q' | b'N');
        let bytes = usize::try_from(self.view.itemsize).ok().filter(|bytes| matches!(bytes, 1 | 2 | 4 | 8));
        bytes.filter(|_| is_integer).map(|bytes| Format { bytes, is_signed })
    }
}
