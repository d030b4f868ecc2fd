//! The most pinned memory that the process may have.

use crate::error::Result;
use crate::memory::device::PINNED;
use crate::process;

/// Lets this process reserve at most so many bytes of pinned memory through gpupool, on all NUMA nodes together; any number
/// for none. What is reserved beyond it stays until it is free and given back.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn set_pinned_limit(nbytes: Option<u64>) -> Result<()> {
    process::refuse_forked()?;
    PINNED.set_limit(nbytes);
    Ok(())
}

/// Returns the most bytes of pinned memory that this process may reserve through gpupool, if there is a limit.
pub fn pinned_limit() -> Option<u64> {
    PINNED.limit()
}
