//! A scope's stay in a pool that was offered to other processes: meanwhile the pool is not put to sleep for them, and one
//! that wakes on use is awake when the scope begins.

use std::sync::Arc;

use crate::error::Result;
use crate::memory::pool::Pool;
use crate::memory::serve::wake_if_taken;
use crate::process;

/// A scope of an offered pool, until this is dropped.
#[derive(Debug)]
pub(super) struct ScopeStay(Arc<Pool>);

impl ScopeStay {
    /// Begins a stay; none in a pool that was not offered.
    ///
    /// # Errors
    /// Those of waking the pool; as that of a request, `ErrorKind::OutOfMemory`.
    pub(super) fn begin(pool: &Arc<Pool>) -> Result<Option<Self>> {
        if !pool.offer.is_made {
            return Ok(None);
        }
        let is_taken = pool.offer.begin_use();
        let stay = Self(Arc::clone(pool));
        if is_taken {
            wake_if_taken(pool)?;
        }
        Ok(Some(stay))
    }
}

impl Drop for ScopeStay {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.0.offer.end_use();
        }
    }
}
