//! What wakes the broker's thread.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

static BELL: OnceLock<OwnedFd> = OnceLock::new();

/// Returns the bell; made if there is none yet.
pub(super) fn bell() -> rustix::io::Result<&'static OwnedFd> {
    if let Some(bell) = BELL.get() {
        return Ok(bell);
    }
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    Ok(BELL.get_or_init(|| bell))
}

/// Has the thread look at what there is to do.
pub(super) fn ring() {
    if let Some(bell) = BELL.get() {
        // It fails only where it has rung so often that nothing more is needed.
        let _ = write(bell, &1_u64.to_ne_bytes());
    }
}

/// Takes note of the ringing so far.
pub(super) fn hush(bell: &OwnedFd) {
    let _ = read(bell, &mut [0; 8]);
}
