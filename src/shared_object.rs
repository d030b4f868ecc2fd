//! Opening shared libraries and looking symbols up, with the reason why something failed.

use std::error::Error;
use std::ffi::CStr;
use std::path::Path;

use libloading::os::unix as dl;

pub(crate) use libloading::os::unix::Library;

/// How to open a library: with every symbol resolved, so that what is missing shows at once.
pub(crate) const NOW: i32 = dl::RTLD_NOW | dl::RTLD_LOCAL;
/// Open it only if it is in the process already.
pub(crate) const IF_LOADED: i32 = dl::RTLD_LAZY | libc::RTLD_NOLOAD;

/// Opens a library by path, or by name with the dynamic linker's own search.
///
/// # Errors
/// The linker's reason.
pub(crate) fn open(file: &Path, flags: i32) -> Result<Library, String> {
    // SAFETY: loading runs the library's constructors, which the vendors make safe for any process.
    let opened = unsafe { Library::open(Some(file), flags) };
    opened.map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))
}

/// Returns the first of these symbols that the library lacks.
pub(crate) fn missing_symbol(library: &Library, symbols: &[&'static CStr]) -> Option<&'static CStr> {
    let is_missing = |symbol: &CStr| {
        // SAFETY: the symbol is only looked up here, not called.
        unsafe { library.get::<unsafe extern "C" fn()>(symbol) }.is_err()
    };
    symbols.iter().copied().find(|symbol| is_missing(symbol))
}
