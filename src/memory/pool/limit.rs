//! The most memory that the process may reserve on each device, also on those that it uses later. It calls no driver,
//! so a launcher can set it before a process's devices are known.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::sync::lock;

/// The maximum that the process may reserve on a device; if both are set, the lower one applies.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MemoryLimit {
    /// A fraction of the device's memory, 0 to 1.
    pub fraction: Option<f64>,
    /// A number of bytes.
    pub bytes: Option<u64>,
}

impl MemoryLimit {
    /// Returns the limit in bytes, on a device with that much memory; none for no limit.
    pub(in crate::memory) fn on(self, total: u64) -> Option<u64> {
        let part = self.fraction.filter(|&fraction| fraction < 1.0).map(|fraction| (total as f64 * fraction) as u64);
        [part, self.bytes].into_iter().flatten().min()
    }
}

static LIMIT: Mutex<MemoryLimit> = Mutex::new(MemoryLimit { fraction: None, bytes: None });

/// Locks and returns the limit, while a device joins those in use. No driver is called under it.
pub(in crate::memory) fn lock_limit() -> MutexGuard<'static, MemoryLimit> {
    lock(&LIMIT)
}

pub(in crate::memory) fn refuse_no_fraction(fraction: f64) -> Result<()> {
    if (0.0..=1.0).contains(&fraction) { Ok(()) } else { Err(no_fraction(fraction)) }
}

#[cold]
pub(crate) fn no_fraction(fraction: impl Display) -> Error {
    Error::invalid_value(format!("fraction={fraction} is no fraction: give 0 to 1 of the device's memory"))
}

#[cfg(test)]
mod tests {
    use super::MemoryLimit;

    #[test]
    fn the_lesser_of_two_limits_counts() {
        let limit = |fraction, bytes| MemoryLimit { fraction, bytes }.on(1000);
        assert_eq!(limit(None, None), None);
        assert_eq!(limit(Some(1.0), None), None);
        assert_eq!(limit(Some(0.5), None), Some(500));
        assert_eq!(limit(Some(0.5), Some(400)), Some(400));
        assert_eq!(limit(Some(0.5), Some(600)), Some(500));
        assert_eq!(limit(Some(1.0), Some(600)), Some(600));
        assert_eq!(limit(Some(0.0), None), Some(0));
    }
}
