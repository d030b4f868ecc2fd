//! Events: what the allocator did, as C sees it, and who is told of each while it happens.

use std::ffi::{c_int, c_void};

use super::call::run;
use crate::error::Error;
use crate::memory::pool::PoolId;

/// `gpupool_event`: one thing that the allocator did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Of this struct.
    pub size: u64,
    /// A `gpupool_action`.
    pub action: c_int,
    /// The device.
    pub device: c_int,
    /// Where the block or the pages start; of an OOM the bytes that the driver still had.
    pub address: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The stream whose requests the memory serves.
    pub stream: *mut c_void,
    /// The pool.
    pub pool: PoolId,
    /// Microseconds since 1970.
    pub unix_micros: u64,
    /// 0 for none.
    pub stack: u32,
}

/// Is told of an event.
pub type Observer = unsafe extern "C" fn(*mut c_void, *const Event);

pub(super) unsafe extern "C" fn observe(_observer: Option<Observer>, _context: *mut c_void) -> c_int {
    run(|| Err(Error::internal("not there yet")))
}
