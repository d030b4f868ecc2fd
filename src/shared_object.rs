//! Opening shared libraries and looking symbols up, with reasons for failures.

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::io;
use std::path::{Path, PathBuf};

use libloading::os::unix as dl;

pub(crate) use libloading::os::unix::Library;

/// Opens a library with every symbol resolved, so that a missing one shows at once.
pub(crate) const NOW: i32 = dl::RTLD_NOW | dl::RTLD_LOCAL;
/// Opens it only if it is in the process already.
pub(crate) const IF_LOADED: i32 = dl::RTLD_LAZY | libc::RTLD_NOLOAD;

/// Opens a library by path, or by name with the dynamic linker's own search.
pub(crate) fn open(file: &Path, flags: i32) -> Result<Library, String> {
    // SAFETY: loading runs the library's constructors, which the vendors make safe for any process.
    let opened = unsafe { Library::open(Some(file), flags) };
    opened.map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))
}

/// Returns whether the linker's reason is that there is no such file. If a file needs another one, the reason names
/// that.
pub(crate) fn is_absent(file: &Path, reason: &str) -> bool {
    // In the language of the process, as the linker's.
    let no_file = io::Error::from_raw_os_error(libc::ENOENT).to_string();
    let no_file = no_file.split(" (os error").next().unwrap_or_default();
    reason.starts_with(&format!("{}: ", file.display())) && reason.ends_with(no_file)
}

/// Returns the first of these symbols that the library lacks.
pub(crate) fn missing_symbol<'a>(library: &Library, symbols: &[&'a CStr]) -> Option<&'a CStr> {
    let is_missing = |symbol: &CStr| {
        // SAFETY: the symbol is only looked up here, not called.
        unsafe { library.get::<unsafe extern "C" fn()>(symbol) }.is_err()
    };
    symbols.iter().copied().find(|symbol| is_missing(symbol))
}

/// Returns the file that holds a symbol of the library.
pub(crate) fn file_of(library: &Library, symbol: &CStr) -> Option<PathBuf> {
    // SAFETY: the symbol is only looked up here, not called.
    let address = unsafe { library.get::<*const ()>(symbol) }.ok()?.as_raw_ptr();
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is a valid place, and any address may be asked about.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: a successful `dladdr` filled it in.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: `dli_fname` is a string that lives as long as the library.
    let path = PathBuf::from(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    Some(path.canonicalize().unwrap_or(path))
}

/// Returns the address of a symbol that is seen in the whole process, such as one of a library that was loaded before it.
pub(crate) fn symbol_of_process(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the symbol is only looked up here.
    unsafe { Library::this().get::<*mut c_void>(name) }.ok().map(|found| found.as_raw_ptr())
}
