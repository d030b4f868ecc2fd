//! Whole numbers that Python objects lend by the buffer protocol, as arrays of NumPy and `array.array` do.

use std::ffi::CStr;

use pyo3::prelude::*;

use super::host_bytes::View;
use crate::python::whole::accepted;

/// How the integers of a buffer are stored.
#[derive(Clone, Copy)]
struct Format {
    bytes: usize,
    is_signed: bool,
}

/// The numbers that an object lends, or the first that is not one from 0 to 2**32 - 1.
pub(in crate::python) type LentIntegers = Result<Vec<u32>, i128>;

/// Returns the numbers that an object lends; none if it lends no integers in one dimension.
pub(in crate::python) fn lent_integers(object: &Bound<'_, PyAny>) -> PyResult<Option<LentIntegers>> {
    Ok(accepted(object.py(), View::new(object))?.and_then(|view| view.integers()))
}

/// Reads numbers of one type.
///
/// # Safety
/// There are so many at this stride. They need no alignment.
unsafe fn read<N: Copy + TryInto<u32> + Into<i128>>(start: *const u8, count: usize, stride: isize) -> LentIntegers {
    let at = |stride: isize, index: usize| start.wrapping_offset(stride * index as isize).cast::<N>();
    let side_by_side = size_of::<N>() as isize;
    // Their stride is a constant there, so that several are read at once.
    if stride == side_by_side {
        // SAFETY: as the caller promises.
        narrow(count, |index| unsafe { at(side_by_side, index).read_unaligned() })
    } else {
        // SAFETY: as the caller promises.
        narrow(count, |index| unsafe { at(stride, index).read_unaligned() })
    }
}

/// Returns numbers, or the first that is too large.
fn narrow<N: Copy + TryInto<u32> + Into<i128>>(count: usize, at: impl Fn(usize) -> N) -> LentIntegers {
    let mut is_wrong = false;
    let number = |index| {
        let number: Result<u32, _> = at(index).try_into();
        is_wrong |= number.is_err();
        number.unwrap_or_default()
    };
    let numbers = (0..count).map(number).collect();
    let wrong = if is_wrong { (0..count).map(at).find(|number| (*number).try_into().is_err()) } else { None };
    wrong.map_or(Ok(numbers), |number| Err(number.into()))
}

impl View<'_> {
    fn integers(&self) -> Option<LentIntegers> {
        let (count, stride) = self.one_dimension()?;
        let Format { bytes, is_signed } = self.integer_format()?;
        let start = self.start();
        // SAFETY: the view has so many items at this stride, each as long as its format says.
        unsafe {
            Some(match (bytes, is_signed) {
                (1, true) => read::<i8>(start, count, stride),
                (1, false) => read::<u8>(start, count, stride),
                (2, true) => read::<i16>(start, count, stride),
                (2, false) => read::<u16>(start, count, stride),
                (4, true) => read::<i32>(start, count, stride),
                (4, false) => read::<u32>(start, count, stride),
                (8, true) => read::<i64>(start, count, stride),
                (8, false) => read::<u64>(start, count, stride),
                _ => return None,
            })
        }
    }

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
