//! Other work that the broker's thread does between its own: serving this process's neighbours, which are above this
//! module. The thread waits for a guest's descriptors together with all others, and lets it go on. A guest that takes
//! long delays the processes that attach blocks, so it has bounds of its own.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::broker;
use crate::error::Result;
use crate::memory::device::wake;

/// What the thread does besides. Only that thread calls these functions, with no lock held.
pub(in crate::memory) trait Guest: Debug + Send + Sync {
    /// Returns what it waits for, to be read.
    fn descriptors(&self) -> Vec<Arc<OwnedFd>>;

    /// Returns how long it waits at most.
    fn wait(&self) -> Option<Duration>;

    /// Does what is to be done, given which of those descriptors are ready.
    fn go_on(&self, ready: &[bool]);
}

static GUEST: OnceLock<Arc<dyn Guest>> = OnceLock::new();

/// Makes the thread serve a guest from now on, and starts it if it does not run yet. There is one guest: a second call
/// changes nothing.
///
/// # Errors
/// `ErrorKind::Unavailable` if the system has no thread or descriptor left.
pub(in crate::memory) fn admit(guest: Arc<dyn Guest>) -> Result<()> {
    broker::start()?;
    let _ = GUEST.set(guest);
    wake();
    Ok(())
}

pub(super) fn guest() -> Option<&'static Arc<dyn Guest>> {
    GUEST.get()
}
