//! Bytes of the host that Python objects lend by the buffer protocol, and copies between them and device memory.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{ffi, intern};

use crate::error::Error;
use crate::memory::{CopyDirection, DeviceBuffer, HostBytes, PinnedBuffer};
use crate::python::arguments::{accepted, is_refusal};
use crate::python::ffi::pinned_buffer::PyPinnedBuffer;
use crate::runtime::Stream;

/// How many objects lie between a view and the pinned memory that it is of, at most: an array of a memoryview of a buffer.
const MOST_BETWEEN: usize = 8;

/// What an object shows of its memory, which stays as long as this lives. PyO3's own buffers refuse arrays of ctypes and
/// numbers of NumPy, which leave out their strides.
struct View<'py> {
    pub(crate) view: Box<ffi::Py_buffer>,
    /// A view is released by a thread that is attached to the interpreter.
    _py: Python<'py>,
}

impl<'py> View<'py> {
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive, and the view is a place for one that does not move.
        let status = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self { view, _py: object.py() })
    }

    /// Whether the bytes are in one piece, in C order.
    fn is_contiguous(&self) -> bool {
        // SAFETY: the view is filled.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.view, b'C' as c_char) == 1 }
    }

    /// Whether its items are Python objects.
    fn holds_objects(&self) -> bool {
        // SAFETY: a format that is not null is a string that lives as long as the view.
        !self.view.format.is_null() && unsafe { CStr::from_ptr(self.view.format) }.to_bytes().contains(&b'O')
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // SAFETY: the view was filled, and is released once; the thread is attached, as `_py` says.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
    }
}

/// Memory that an object lends as long as this lives.
struct Lent<'py> {
    view: View<'py>,
    /// The pinned memory of gpupool's that it lies in.
    pinned: Option<Arc<PinnedBuffer>>,
}

impl<'py> Lent<'py> {
    fn new(host: &Bound<'py, PyAny>, method: &str) -> PyResult<Self> {
        let name = host.get_type().name()?;
        let view = View::new(host).map_err(|error| {
            if !is_refusal(host.py(), &error) {
                return error;
            }
            PyTypeError::new_err(format!(
                "{method}() takes host memory with Python's buffer protocol (bytes, bytearray, memoryview, a NumPy array, \
                 PinnedBuffer), not {name}: {error}. For a CPU tensor of PyTorch give tensor.numpy()"
            ))
        })?;
        if view.holds_objects() {
            return Err(PyTypeError::new_err(format!("{method}() copies bytes, and this {name} holds Python objects")));
        }
        if !view.is_contiguous() {
            return Err(Error::invalid_value(format!(
                "{method}() needs contiguous memory in C order, which this {name} is not: give numpy.ascontiguousarray(...) of \
                 it, or copy it there"
            ))
            .into());
        }
        let mut lent = Self { view, pinned: None };
        lent.pinned = lent.pinned_memory(host)?;
        Ok(lent)
    }

    /// Returns the pinned memory that this is a view of: `obj` of a memoryview, or `base` of an array, leads there.
    fn pinned_memory(&self, host: &Bound<'_, PyAny>) -> PyResult<Option<Arc<PinnedBuffer>>> {
        let py = host.py();
        let mut object = host.clone();
        for _ in 0..MOST_BETWEEN {
            if let Ok(pinned) = object.cast::<PyPinnedBuffer>() {
                let buffer = pinned.get().0.shared()?;
                let end = buffer.address() + buffer.nbytes();
                let is_inside = buffer.address() <= self.address() && self.address() + self.bytes() <= end;
                return Ok(is_inside.then_some(buffer));
            }
            let next = match object.getattr_opt(intern!(py, "obj"))? {
                None => object.getattr_opt(intern!(py, "base"))?,
                found => found,
            };
            let Some(next) = next else { break };
            object = next;
        }
        Ok(None)
    }

    fn address(&self) -> u64 {
        self.view.view.buf.expose_provenance() as u64
    }

    fn bytes(&self) -> u64 {
        self.view.view.len.unsigned_abs() as u64
    }
}

/// Copies between the buffer and what an object lends. Pinned memory is copied in the background; for any other this waits.
///
/// # Errors
/// `TypeError` for an object without bytes; `InvalidValue` for memory that is read-only and would be written; else as
/// [`DeviceBuffer::copy_from`].
pub(crate) fn copy(
    buffer: &DeviceBuffer,
    direction: CopyDirection,
    host: &Bound<'_, PyAny>,
    stream: &Stream,
) -> PyResult<()> {
    let is_written = matches!(direction, CopyDirection::ToHost);
    let lent = Lent::new(host, if is_written { "copy_to" } else { "copy_from" })?;
    if is_written && lent.view.view.readonly != 0 {
        return Err(Error::invalid_value(format!(
            "copy_to() writes, and this {} is read-only: give a bytearray, a writable array or a PinnedBuffer; bytes(buffer) \
             makes new bytes",
            host.get_type().name()?
        ))
        .into());
    }
    let bytes = HostBytes { address: lent.address(), bytes: lent.bytes(), pinned: lent.pinned.as_deref() };
    // SAFETY: the object lends the bytes, to be written if they are, as long as `lent` lives, and pinned ones lie in their
    // buffer.
    Ok(host.py().detach(|| unsafe { buffer.copy(direction, bytes, stream) })?)
}

// Whole numbers that Python objects lend by the buffer protocol, as arrays of NumPy and `array.array` do.

/// The numbers that an object lends, or the first that is not one from 0 to 2**32 - 1.
type LentIntegers = Result<Vec<u32>, i128>;

/// Returns the numbers that an object lends; none if it lends no integers in one dimension.
pub(crate) fn lent_integers(object: &Bound<'_, PyAny>) -> PyResult<Option<LentIntegers>> {
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
        let (bytes, is_signed) = self.integer_format()?;
        let start = self.view.buf.cast_const().cast();
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

    /// Returns how many bytes an item has, and whether it has a sign; none for what is no integer.
    fn integer_format(&self) -> Option<(usize, bool)> {
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
        bytes.filter(|_| is_integer).map(|bytes| (bytes, is_signed))
    }
}
