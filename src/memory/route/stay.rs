//! A stay in a pool that was offered to other processes, of a scope or of a call that uses what the pool holds: meanwhile
//! the pool is not put to sleep for them, and one that wakes on use is awake when the stay begins.

use std::sync::Arc;

use crate::error::Result;
use crate::memory::pool::Pool;
use crate::memory::serve::wake_if_taken;
use crate::process;

/// A use of an offered pool, until this is dropped.
#[derive(Debug)]
pub(in crate::memory) struct PoolStay(Arc<Pool>);

impl PoolStay {
    /// Begins a stay; none in a pool that was not offered.
    ///
    /// # Errors
    /// Those of waking the pool; as that of a request, `ErrorKind::OutOfMemory`.
    pub(in crate::memory) fn begin(pool: &Arc<Pool>) -> Result<Option<Self>> {
        if !pool.sleep.offer.is_made {
            return Ok(None);
        }
        let is_taken = pool.sleep.offer.begin_use();
        let stay = Self(Arc::clone(pool));
        if is_taken {
            wake_if_taken(pool)?;
        }
        Ok(Some(stay))
    }
}

impl Drop for PoolStay {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.0.sleep.offer.end_use();
        }
    }
}
