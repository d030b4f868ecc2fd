//! Checkpoints of a pool, for C. Not there yet.

use std::ffi::{c_int, c_void};

use super::call::run;
use super::pools::PoolHandle;
use crate::error::Error;

/// `gpupool_checkpoint`.
#[derive(Debug)]
pub struct Checkpoint {
    _private: (),
}

/// Is told of a block that was live before.
pub type FreedFunction = unsafe extern "C" fn(*mut c_void, *mut c_void);
/// Is told of a block that is live after.
pub type AllocatedFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, u64);

pub(super) unsafe extern "C" fn pool_checkpoint(_: *mut PoolHandle, _: *mut *mut Checkpoint) -> c_int {
    run(|| Err(Error::internal("not there yet")))
}

pub(super) unsafe extern "C" fn pool_restore(
    _: *mut PoolHandle,
    _: *const Checkpoint,
    _: *mut c_void,
    _: Option<FreedFunction>,
    _: Option<AllocatedFunction>,
) -> c_int {
    run(|| Err(Error::internal("not there yet")))
}

pub(super) unsafe extern "C" fn checkpoint_release(_: *mut Checkpoint) {}
