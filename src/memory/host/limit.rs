//! The limit on the process's pinned memory.

use crate::error::Result;
use crate::memory::device::PINNED;
use crate::process;

/// Limits the pinned memory that this process may reserve through gpupool, in bytes, on all NUMA nodes together; none
/// removes the limit. Memory reserved beyond it is kept until it is free and released.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn set_pinned_limit(nbytes: Option<u64>) -> Result<()> {
    process::refuse_forked()?;
    PINNED.set_limit(nbytes);
    Ok(())
}

/// Returns the maximum number of bytes of pinned memory that this process may reserve through gpupool, if there is a
/// limit.
pub fn pinned_limit() -> Option<u64> {
    PINNED.limit()
}
