//! Exceptions of PyTorch's, thrown from functions that it calls.
//!
//! PyTorch does not look whether a pluggable allocator returned null, so a failure must be an exception of C++, and
//! `torch.OutOfMemoryError` is one of its own classes. Rust has neither, but PyTorch's library has all that makes one:
//! the constructor of `c10::Error`, which takes a `std::string`, and the table of virtual functions that makes an error
//! one of memory. <https://itanium-cxx-abi.github.io/cxx-abi/abi-eh.html>

use std::ffi::{c_char, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;

use crate::error::{Error, ErrorKind, Result, Wanted};

/// `std::string` of libstdc++.
#[repr(C)]
struct Text {
    characters: *mut c_char,
    length: usize,
    /// Short texts, else the capacity.
    local: [u8; 16],
}

/// `c10::SourceLocation`.
#[repr(C)]
struct Place {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `c10::Error` and its subclass are some 100 bytes.
const OBJECT_BYTES: usize = 0x400;

/// What is needed of PyTorch's library and of the C++ library that it uses.
#[derive(Clone, Copy)]
struct Functions {
    allocate: unsafe extern "C" fn(usize) -> *mut c_void,
    throw: unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !,
    append: unsafe extern "C-unwind" fn(*mut Text, *const u8, usize) -> *mut Text,
    dispose: unsafe extern "C" fn(*mut Text),
    construct: unsafe extern "C-unwind" fn(*mut c_void, Place, *mut Text),
    /// `c10::OutOfMemoryError`'s virtual functions. Two words precede them: an offset, and the type.
    out_of_memory: usize,
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// The symbols whose addresses [`set_symbols`] takes, in this order.
pub(super) const SYMBOLS: [&str; 6] = [
    "__cxa_allocate_exception",
    "__cxa_throw",
    "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE6appendEPKcm",
    "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE10_M_disposeEv",
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    "_ZTVN3c1016OutOfMemoryErrorE",
];

/// Sets where PyTorch's [`SYMBOLS`] are.
///
/// # Safety
/// Each address is 0 or that of its symbol, in a library that stays loaded.
///
/// # Errors
/// `ErrorKind::InvalidValue` if one of them is null.
pub(super) unsafe fn set_symbols(addresses: [usize; 6]) -> Result<()> {
    if let Some(place) = addresses.iter().position(|address| *address == 0) {
        return Err(Error::invalid_value(format!("{} has no address", SYMBOLS[place])));
    }
    let [allocate, throw, append, dispose, construct, out_of_memory] =
        addresses.map(ptr::with_exposed_provenance::<c_void>);
    // SAFETY: the caller promises that these are the symbols' addresses, none is null, and the types are their
    // signatures.
    let functions = unsafe {
        Functions {
            allocate: transmute::<*const c_void, unsafe extern "C" fn(usize) -> *mut c_void>(allocate),
            throw: transmute::<
                *const c_void,
                unsafe extern "C-unwind" fn(*mut c_void, *const c_void, *const c_void) -> !,
            >(throw),
            append: transmute::<*const c_void, unsafe extern "C-unwind" fn(*mut Text, *const u8, usize) -> *mut Text>(
                append,
            ),
            dispose: transmute::<*const c_void, unsafe extern "C" fn(*mut Text)>(dispose),
            construct: transmute::<*const c_void, unsafe extern "C-unwind" fn(*mut c_void, Place, *mut Text)>(
                construct,
            ),
            out_of_memory: out_of_memory.addr() + 2 * size_of::<usize>(),
        }
    };
    let _ = FUNCTIONS.set(functions);
    Ok(())
}

/// Returns a size as PyTorch writes it.
fn size(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} bytes"),
        0x400..0x10_0000 => format!("{:.2} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Returns the text of the exception, and whether it is one of memory.
fn describe(error: Error) -> (String, bool) {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::OutOfMemory(lack) => match &lack.wanted {
            // How PyTorch begins, which programs look for.
            Wanted::Memory { bytes, .. } => {
                (format!("CUDA out of memory. Tried to allocate {}. {text}", size(*bytes)), true)
            }
            Wanted::Handle(_) | Wanted::Addresses(_) => (format!("CUDA out of memory. {text}"), true),
        },
        _ => (text, false),
    }
}

/// Throws the error, as `c10::OutOfMemoryError` or as a `c10::Error`, which Python sees as `torch.OutOfMemoryError` and
/// `RuntimeError`. Without symbols it ends the process, as any exception does that cannot be thrown.
///
/// # Safety
/// The caller was called by code that lets C++ exceptions through, and all Rust functions in between are `C-unwind`.
pub(super) unsafe fn throw(error: Error) -> ! {
    let Some(functions) = FUNCTIONS.get() else { std::process::abort() };
    let (message, is_of_memory) = describe(error);
    // SAFETY: the functions are what their names say (`set_symbols`). The object is larger than the class and aligned
    // as `malloc` aligns; it is whole before it is thrown, and its own table names its type and its destructor, first
    // of the virtual functions.
    unsafe {
        let object = (functions.allocate)(OBJECT_BYTES);
        let mut text = Text { characters: ptr::null_mut(), length: 0, local: [0; 16] };
        // An empty text is kept in itself.
        text.characters = (&raw mut text.local).cast();
        (functions.append)(&raw mut text, message.as_ptr(), message.len());
        drop(message);
        let place = Place { function: c"malloc".as_ptr(), file: c"gpupool".as_ptr(), line: 0 };
        (functions.construct)(object, place, &raw mut text);
        (functions.dispose)(&raw mut text);
        let table: *mut *const *const c_void = object.cast();
        if is_of_memory {
            *table = ptr::with_exposed_provenance(functions.out_of_memory);
        }
        let (kind, destroy) = (*(*table).sub(1), **table);
        (functions.throw)(object, kind, destroy)
    }
}
