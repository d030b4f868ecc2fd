//! Where CuPy's objects have their fields, found by looking for known values in objects that CuPy has made.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// What comes before the first field of an object.
const HEADER: usize = size_of::<ffi::PyObject>();

/// The offsets of the fields of an object of `cupy.cuda.BaseMemory`, which has no others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MemoryFields {
    pub(super) ptr: usize,
    pub(super) size: usize,
    pub(super) device: usize,
}

/// The offsets of the fields of a `cupy.cuda.MemoryPointer`, which has no others but a table of functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PointerFields {
    pub(super) ptr: usize,
    pub(super) device: usize,
    pub(super) memory: usize,
}

/// How many bytes an object of `cupy.cuda.BaseMemory` has: two words, and an int that fills a third.
pub(super) const MEMORY_SIZE: usize = HEADER + 3 * size_of::<u64>();
/// How many a `cupy.cuda.MemoryPointer` has: the table, and as many.
const POINTER_SIZE: usize = HEADER + 4 * size_of::<u64>();

/// Values that do not come about by chance.
const TRIALS: [(u64, u64, i32); 2] = [
    (0x1e5a_77c3_9b04_e200, 0x0c81_5d2f_a36e_4b17, 0x3b5c_19d7),
    (0x63d0_08f1_4ab7_2c00, 0x2f96_e11c_70d8_53a9, 0x4d02_a6eb),
];
/// How far a pointer is into its memory.
const INTO: u64 = 0x0125_8d00;

/// Returns where the fields are; none where CuPy's objects are made in another way than those that are known.
pub(super) fn find(
    base: &Bound<'_, PyType>,
    unowned: &Bound<'_, PyAny>,
    pointer: &Bound<'_, PyType>,
) -> Option<(MemoryFields, PointerFields)> {
    let py = base.py();
    let has = |class: &Bound<'_, PyType>, size: usize| {
        class.getattr("__basicsize__").and_then(|found| found.extract::<usize>()).is_ok_and(|found| found == size)
            && class.getattr("__dictoffset__").and_then(|found| found.extract::<isize>()).is_ok_and(|found| found == 0)
    };
    if !has(base, MEMORY_SIZE) || !has(pointer, POINTER_SIZE) || base.hasattr("__pyx_vtable__").ok()? {
        return None;
    }
    let mut found = TRIALS.iter().map(|&(ptr, size, device)| {
        let memory = unowned.call1((ptr, size, py.None(), device)).ok()?;
        let made = pointer.call1((&memory, INTO)).ok()?;
        if !memory.is_instance(base).ok()? || !made.is_exact_instance(pointer) {
            return None;
        }
        let words = words(&memory, MEMORY_SIZE);
        let memory_fields = MemoryFields {
            ptr: only(&words, |word| word == ptr)?,
            size: only(&words, |word| word == size)?,
            device: only(&words, |word| low_half(word) == device)?,
        };
        let words = self::words(&made, POINTER_SIZE);
        let pointer_fields = PointerFields {
            ptr: only(&words, |word| word == ptr + INTO)?,
            device: only(&words, |word| low_half(word) == device)?,
            memory: only(&words, |word| word == memory.as_ptr().expose_provenance() as u64)?,
        };
        Some((memory_fields, pointer_fields))
    });
    let (first, second) = (found.next()??, found.next()??);
    (first == second).then_some(first)
}

/// Returns the words of an object that come after what every object has.
fn words(object: &Bound<'_, PyAny>, size: usize) -> Vec<u64> {
    let start = object.as_ptr().cast::<u64>();
    let range = HEADER / size_of::<u64>()..size / size_of::<u64>();
    // SAFETY: the object is alive and of a class whose objects have at least so many bytes, and nothing writes to it.
    range.map(|index| unsafe { start.add(index).read() }).collect()
}

/// Returns the offset of the one word that is right; none where none or several are.
fn only(words: &[u64], is_right: impl Fn(u64) -> bool) -> Option<usize> {
    let mut right = words.iter().enumerate().filter(|(_, word)| is_right(**word)).map(|(index, _)| index);
    let first = right.next()?;
    right.next().is_none().then_some(HEADER + first * size_of::<u64>())
}

/// An int that fills a word with what is behind it.
const fn low_half(word: u64) -> i32 {
    word as u32 as i32
}
