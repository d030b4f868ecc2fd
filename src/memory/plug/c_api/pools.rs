//! Pools, for C. Not there yet.

use std::ffi::{c_char, c_int, c_void};

use super::call::run;
use crate::error::Error;
use crate::memory::pool::PoolId;

/// `gpupool_pool`: a use of a pool.
#[derive(Debug)]
pub struct PoolHandle {
    _private: (),
}

/// `gpupool_source`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolSource {
    /// What the functions are called with.
    pub context: *mut c_void,
    /// Returns memory, or null.
    pub allocate: Option<unsafe extern "C" fn(*mut c_void, u64, c_int, *mut c_void) -> *mut c_void>,
    /// Takes it back.
    pub free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u64, c_int, *mut c_void)>,
    /// Called once, when the pool is gone.
    pub release: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// `gpupool_pool_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Of this struct.
    pub size: u64,
    /// Its memory is part of graphs.
    pub for_graphs: c_int,
    /// What it has free serves others when memory is short.
    pub use_on_oom: c_int,
    /// Each segment serves one block at a time.
    pub no_split: c_int,
    /// Its name, or null.
    pub name: *const c_char,
    /// Its source, or null.
    pub source: *const PoolSource,
}

fn not_there() -> c_int {
    run(|| Err(Error::internal("not there yet")))
}

pub(super) unsafe extern "C" fn pool_create(_: c_int, _: *const PoolOptions, _: *mut *mut PoolHandle) -> c_int {
    not_there()
}

pub(super) unsafe extern "C" fn pool_release(_: *mut PoolHandle) -> c_int {
    not_there()
}

pub(super) unsafe extern "C" fn pool_id(_: *const PoolHandle, _: *mut PoolId) -> c_int {
    not_there()
}

pub(super) unsafe extern "C" fn pool_set_use_on_oom(_: *mut PoolHandle, _: c_int) -> c_int {
    not_there()
}

pub(super) unsafe extern "C" fn pool_set_no_split(_: *mut PoolHandle) -> c_int {
    not_there()
}

pub(super) unsafe extern "C" fn pool_trim(_: *mut PoolHandle, _: *mut u64) -> c_int {
    not_there()
}

pub(super) unsafe extern "C" fn ticket() -> u64 {
    0
}

pub(super) unsafe extern "C" fn pool_allocate(
    _: *mut PoolHandle,
    _: u64,
    _: u64,
    _: *mut c_void,
    _: *mut *mut c_void,
) -> c_int {
    not_there()
}

pub(super) unsafe extern "C" fn pool_by_id(_: c_int, _: *const PoolId, _: *mut *mut PoolHandle) -> c_int {
    not_there()
}
