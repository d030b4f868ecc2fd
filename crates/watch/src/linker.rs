//! What the linker finds, asked as if this library were not there: by its own `dlsym`, or by the next one that stands in for
//! that.

use std::ffi::{CStr, c_char, c_void};
use std::{mem, ptr};

use crate::elf::{self, Known, Object, file_name};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The address of the next `dlsym` and `dlvsym`: the linker's, or another library's that stands in for those.
pub(crate) static NEXT: [(&CStr, Known); 2] = [(c"dlsym", Known::new()), (c"dlvsym", Known::new())];

pub(crate) fn next(which: usize) -> usize {
    let (name, address) = &NEXT[which];
    address.get_or(|| first_after(elf::here(), name)).unwrap_or(not_there as Dlsym as usize)
}

/// Stands in for a `dlvsym` that a C library lacks.
unsafe extern "C" fn not_there(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

/// Returns where the first object after the one that has an address defines a symbol, as the linker has it for RTLD_NEXT.
pub(crate) fn first_after(address: usize, symbol: &CStr) -> Option<usize> {
    let mut is_after = false;
    elf::each(|object| {
        if !is_after {
            is_after = object.has(address);
            return None;
        }
        object.definition(symbol)
    })
}

/// Returns whether the object of one address was loaded before that of the other.
pub(crate) fn is_before(address: usize, other: usize) -> bool {
    let has = |object: Object| {
        if object.has(other) { Some(false) } else { object.has(address).then_some(true) }
    };
    elf::each(has).unwrap_or(false)
}

/// Returns the linker's own `dlsym`, whichever libraries stand in for it.
fn linkers() -> usize {
    /// How the names of files begin that have it: of glibc, before 2.34 and since, and of musl.
    const FILES: [&[u8]; 4] = [b"libdl.so", b"libc.so", b"libc.musl", b"ld-musl"];
    static OWN: Known = Known::new();

    let is_one = |object: &Object| FILES.iter().any(|file| file_name(object.path()).starts_with(file));
    let find = || elf::each(|object| is_one(&object).then(|| object.definition(c"dlsym")).flatten());
    OWN.get_or(find).unwrap_or_else(|| next(0))
}

/// Returns what the linker finds by a handle, as if this library had asked.
pub(crate) fn ask(handle: *mut c_void, name: &CStr, version: Option<&CStr>) -> Option<usize> {
    // SAFETY: the addresses are those of functions of these types, and the handle is the program's.
    let found = unsafe {
        match version {
            None => mem::transmute::<usize, Dlsym>(next(0))(handle, name.as_ptr()),
            Some(version) => mem::transmute::<usize, Dlvsym>(next(1))(handle, name.as_ptr(), version.as_ptr()),
        }
    };
    (!found.is_null()).then_some(found as usize)
}

/// Returns what the exported function of this name stands before. Another library that stands in for `dlsym` would ask for
/// what comes after that library, and so is not asked itself.
pub(crate) fn behind_us(symbol: &CStr) -> Option<usize> {
    // SAFETY: the address is that of a function of this type.
    let next = || unsafe { mem::transmute::<usize, Dlsym>(linkers())(libc::RTLD_NEXT, symbol.as_ptr()) };
    let found = next();
    if found.is_null() {
        // Where there is no driver either, it is asked again: its reason is the one to be told.
        of_driver(symbol).or_else(|| Some(next() as usize).filter(|&found| found != 0))
    } else {
        // For a program that finds it so the linker keeps the driver open, and its address is kept here.
        let _ = of_driver(symbol);
        Some(found as usize)
    }
}

/// Returns a function of the driver that is loaded, as by a handle of it: also where no other object sees it.
pub(crate) fn of_driver(symbol: &CStr) -> Option<usize> {
    ask(driver()?, symbol, None)
}

/// The same for what no program has asked for, which is told of no error: none if no driver is loaded, none in that if it
/// lacks the function.
pub(crate) fn unasked_of_driver(symbol: &CStr) -> Option<Option<usize>> {
    let found = ask(driver()?, symbol, None);
    if found.is_none() {
        without_error(0);
    }
    Some(found)
}

/// Returns a handle of the driver, if it is loaded.
fn driver() -> Option<*mut c_void> {
    // SAFETY: the driver is opened only if it is there, and stays open.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!driver.is_null()).then_some(driver)
}

/// Returns what was found, of which no error says that it was not: what was tried before may have left one.
pub(crate) fn without_error(found: usize) -> usize {
    // SAFETY: it only forgets the thread's last error of the linker.
    unsafe { libc::dlerror() };
    found
}
