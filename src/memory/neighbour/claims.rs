//! Claims: memory that this process is about to take, told to its neighbours so that two that measure what is free at the
//! same time see each other. A claim is used up as the process's reserved memory grows beyond what it was when it was made,
//! the oldest first, and comes back when that memory does, until the claim is released.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::process;
use crate::sync::lock;

/// A right to memory that is not taken yet, until this is dropped or the process ends; see [`claim`](crate::claim).
#[must_use = "the claim ends when this is dropped"]
#[derive(Debug)]
pub struct MemoryClaim {
    number: u64,
    device: Device,
    nbytes: u64,
}

/// A claim, as it is counted.
#[derive(Clone, Copy, Debug)]
struct CountedClaim {
    number: u64,
    device: Device,
    bytes: u64,
    /// What the process had reserved then.
    base: u64,
    /// When it was made, by a clock that all processes of the machine have: nanoseconds.
    made: u64,
}

static CLAIMS: Mutex<Vec<CountedClaim>> = Mutex::new(Vec::new());

/// Returns what this process has reserved of a device.
pub(super) fn reserved_on(device: Device) -> u64 {
    DeviceCaches::known(device).map_or(0, |caches| caches.memory.budget.reserved())
}

/// Makes a claim, and returns also when it was made: later than any other that a process tells of afterwards is not.
pub(super) fn make(device: Device, nbytes: u64) -> (MemoryClaim, u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let base = reserved_on(device);
    let mut claims = lock(&CLAIMS);
    // Read under the lock, so that who asks for claims made before another time misses none.
    let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    claims.push(CountedClaim { number, device, bytes: nbytes, base, made });
    (MemoryClaim { number, device, nbytes }, made)
}

/// Returns the bytes of the device that are claimed and not taken yet, by claims made before a time.
pub(super) fn claimed_on(device: Device, before: u64) -> u64 {
    let reserved = reserved_on(device);
    // In the order in which they were made.
    let claims: Vec<_> = lock(&CLAIMS).iter().filter(|claim| claim.device == device).copied().collect();
    left(&claims, reserved).filter(|(claim, _)| claim.made < before).map(|(_, left)| left).sum()
}

/// Returns the devices with claims.
pub(super) fn devices_claimed() -> Vec<Device> {
    lock(&CLAIMS).iter().map(|claim| claim.device).collect()
}

/// Returns what is left of each claim when the process has reserved so many bytes.
fn left(claims: &[CountedClaim], reserved: u64) -> impl Iterator<Item = (&CountedClaim, u64)> {
    let mut earlier: Vec<(u64, u64)> = Vec::new();
    claims.iter().map(move |claim| {
        let growth = reserved.saturating_sub(claim.base);
        // Of what earlier claims have used up, the part that came after this claim was made.
        let by_others = |(base, used): &(u64, u64)| used.saturating_sub(claim.base.saturating_sub(*base));
        let used = claim.bytes.min(growth.saturating_sub(earlier.iter().map(by_others).sum()));
        earlier.push((claim.base, used));
        (claim, claim.bytes - used)
    })
}

impl MemoryClaim {
    /// Returns the device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the claimed bytes.
    pub fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// Returns how much of it is not taken yet, in bytes.
    pub fn left(&self) -> u64 {
        if process::is_forked() {
            return 0;
        }
        let reserved = reserved_on(self.device);
        let claims: Vec<_> = lock(&CLAIMS).iter().filter(|claim| claim.device == self.device).copied().collect();
        left(&claims, reserved).find(|(claim, _)| claim.number == self.number).map_or(0, |(_, left)| left)
    }
}

impl Drop for MemoryClaim {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if !process::is_forked() {
            lock(&CLAIMS).retain(|claim| claim.number != self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_used_up_by_what_comes_after_them() {
        let claim =
            |number, bytes, base| CountedClaim { number, device: Device::from_ordinal(0), bytes, base, made: number };
        let left_of =
            |claims: &[CountedClaim], reserved| left(claims, reserved).map(|(_, left)| left).collect::<Vec<_>>();
        let one = [claim(0, 10, 100)];
        assert_eq!([90, 100, 104, 110, 200].map(|reserved| left_of(&one, reserved)[0]), [10, 10, 6, 0, 0]);
        // The second was made when six of the first had been taken.
        let two = [claim(0, 10, 0), claim(1, 10, 6)];
        assert_eq!(
            [6, 8, 12, 20, 30].map(|reserved| left_of(&two, reserved)),
            [vec![4, 10], vec![2, 10], vec![0, 8], vec![0, 0], vec![0, 0]]
        );
        // What went back can be claimed again.
        assert_eq!(left_of(&two, 0), [10, 10]);
    }
}
