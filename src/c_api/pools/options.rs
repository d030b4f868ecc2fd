//! The settings of a pool to create, for C.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use super::super::header::c_struct;
use super::super::sized::{self, SizedStruct};
use super::source::CSource;
use crate::error::Result;
use crate::memory::device::{SegmentSource, Source};
use crate::memory::pool::Rules;
use crate::memory::serve;

c_struct! {
    /// `gpupool_source`.
    pub struct PoolSource as "gpupool_source" {
        /// The first argument of the functions.
        pub context: *mut c_void,
        /// Returns memory, or null.
        pub allocate: Option<unsafe extern "C" fn(*mut c_void, u64, c_int, *mut c_void) -> *mut c_void>,
        /// Frees it.
        pub free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u64, c_int, *mut c_void)>,
        /// Called once, when the pool has ended and all its memory was freed.
        pub release: Option<unsafe extern "C" fn(*mut c_void)>,
    }
}

c_struct! {
    /// `gpupool_pool_options`.
    pub struct PoolOptions as "gpupool_pool_options" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// Whether its memory belongs to graphs.
        pub for_graphs: c_int,
        /// Whether other pools may use its free memory when memory runs out.
        pub use_on_oom: c_int,
        /// Whether each segment serves one block at a time.
        pub no_split: c_int,
        /// Its name, or null.
        pub name: *const c_char,
        /// Its source, or null.
        pub source: *const PoolSource,
        /// Whether it may be put to sleep for another process that has no memory.
        pub sleeps_for_others: c_int,
        /// Whether its next request, scope, copy or commit wakes it then.
        pub wakes_on_use: c_int,
    }
}

// SAFETY: it has the layout of C, begins with its size, and all of its bytes may be zero.
unsafe impl SizedStruct for PoolOptions {}

/// Returns what a new pool is like.
///
/// # Safety
/// The options are null, or begin with their size; their name is null or a string, and their source null or one whose
/// functions may be called from any thread until it is released.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the options are null or have no size, or the source lacks a function.
pub(super) unsafe fn read(options: *const PoolOptions) -> Result<serve::PoolSettings> {
    // SAFETY: the caller promises that they begin with their size, or are null.
    let options = unsafe { sized::read(options) }?;
    let name = (!options.name.is_null()).then(|| {
        // SAFETY: the caller promises that it is a string.
        unsafe { CStr::from_ptr(options.name) }.to_string_lossy().into_owned()
    });
    // SAFETY: the caller promises that it is a source, or null.
    let source = unsafe { options.source.as_ref() };
    // SAFETY: the caller's promise.
    let source = source.map(|source| unsafe { CSource::new(source) }).transpose()?;
    let rules = Rules {
        use_on_oom: options.use_on_oom != 0,
        no_split: options.no_split != 0,
        has_own_source: source.is_some(),
        is_for_graphs: options.for_graphs != 0,
        sleeps_for_others: options.sleeps_for_others != 0,
        wakes_on_use: options.wakes_on_use != 0,
    };
    let source = source.map(|source| Source::Segments(Arc::new(source) as Arc<dyn SegmentSource>));
    Ok(serve::PoolSettings { rules, source, limit: None, reserve: 0, name })
}
