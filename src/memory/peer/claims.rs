//! Claims: memory that this process is about to take, told to its neighbours so that two that measure what is free at the
//! same time see each other. They stand in line by when they were made, and one for which there is room is held: from then on
//! it counts for everybody, whatever clocks say. A claim is used up as the process keeps more than when it was made, the
//! oldest first, and comes back as it keeps less, until it is released: whether free memory is the driver's or in the
//! process's cache makes no difference.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use log::warn;

use super::status::Division;
use crate::error::Bytes;
use crate::ids::Device;
use crate::observe::target::MEMORY;
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

/// How a claim stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It has its place in line, until there is room for it.
    InLine,
    /// There was room for it.
    Held,
    /// Others have claimed the memory while this process did not answer them.
    Lost,
}

/// A claim, as it is counted.
#[derive(Clone, Copy, Debug)]
struct CountedClaim {
    number: u64,
    device: Device,
    bytes: u64,
    /// The least that the process was seen to keep since then.
    base: u64,
    /// When it was made, by a clock that all processes of the machine have: nanoseconds. No two of a process are equal.
    made: u64,
    standing: Standing,
}

impl CountedClaim {
    /// Returns whether it counts for one made at a time.
    fn counts(&self, before: u64) -> bool {
        match self.standing {
            Standing::InLine => self.made < before,
            Standing::Held => true,
            Standing::Lost => false,
        }
    }
}

static NEXT: AtomicU64 = AtomicU64::new(0);
static CLAIMS: Mutex<Vec<CountedClaim>> = Mutex::new(Vec::new());

/// Puts a claim in line, and returns also when it was made.
pub(super) fn make(device: Device, nbytes: u64) -> (MemoryClaim, u64) {
    let base = Division::of(device).kept();
    let number = NEXT.fetch_add(1, Ordering::AcqRel);
    let mut claims = lock(&CLAIMS);
    // Read under the lock, so that who asks for claims made before another time misses none.
    let made = now().max(claims.last().map_or(0, |last| last.made.saturating_add(1)));
    claims.push(CountedClaim { number, device, bytes: nbytes, base, made, standing: Standing::InLine });
    (MemoryClaim { number, device, nbytes }, made)
}

/// Returns the time in nanoseconds.
fn now() -> u64 {
    #[cfg(feature = "fault-injection")]
    if let set @ 1.. = CLOCK.load(Ordering::Relaxed) {
        return set;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// The time at which this process's clock stands; 0 if it goes.
#[cfg(feature = "fault-injection")]
static CLOCK: AtomicU64 = AtomicU64::new(0);

/// Makes the clock by which claims are made stand at a time, or go again with 0: for gpupool's own tests.
#[cfg(all(feature = "fault-injection", feature = "python"))]
pub(crate) fn set_clock(nanoseconds: u64) {
    CLOCK.store(nanoseconds, Ordering::Relaxed);
}

/// Returns the number of the next claim.
pub(super) fn next() -> u64 {
    NEXT.load(Ordering::Acquire)
}

/// Returns the claims to a device that are not lost, in the order in which they were made. What the process no longer keeps of
/// what it had before is anybody's: from then on whatever it keeps more uses its claims up.
fn claims_to(device: Device, division: &Division) -> Vec<CountedClaim> {
    let mut claims = lock(&CLAIMS);
    let of_device = claims.iter_mut().filter(|claim| claim.device == device && claim.standing != Standing::Lost);
    let seen = |claim: &mut CountedClaim| {
        if claim.number < division.next_claim {
            claim.base = claim.base.min(division.kept());
        }
        *claim
    };
    of_device.map(seen).collect()
}

/// Returns the bytes of a device that are claimed and not taken yet, by claims that are held or were made before a time.
pub(super) fn claimed_on(device: Device, before: u64, division: &Division) -> u64 {
    sum(device, division, |claim| claim.counts(before)).unwrap_or(0)
}

/// Returns the bytes of a device that this process has a right to beyond what it keeps; none if it holds no claim.
pub(super) fn held_on(device: Device, division: &Division) -> Option<u64> {
    sum(device, division, |claim| claim.standing == Standing::Held)
}

/// Returns what is left of some claims, with what has to be woken beside: claims are beyond what the process has, which
/// what sleeps for others is a part of. None if there is no such claim.
fn sum(device: Device, division: &Division, is_meant: impl Fn(&CountedClaim) -> bool) -> Option<u64> {
    let claims = claims_to(device, division);
    let mut meant =
        left(&claims, division.kept()).filter(|(claim, _)| is_meant(claim)).map(|(_, left)| left).peekable();
    meant.peek()?;
    Some(meant.fold(division.asleep_for_others, u64::saturating_add))
}

/// Returns whether this process holds a claim to a device.
pub(super) fn is_claim_held(device: Device) -> bool {
    lock(&CLAIMS).iter().any(|claim| claim.device == device && claim.standing == Standing::Held)
}

/// Loses what this process has claimed of a device, if that is more than there is room for beside what others have claimed
/// while it did not answer.
pub(super) fn pass_by(device: Device, room: u64) {
    let held = held_on(device, &Division::of(device)).unwrap_or(0);
    if held <= room {
        return;
    }
    for claim in lock(&CLAIMS).iter_mut().filter(|claim| claim.device == device && claim.standing == Standing::Held) {
        claim.standing = Standing::Lost;
    }
    warn!(
        target: MEMORY,
        "{device}: this process did not answer its neighbours in time, as if it was stopped, and another one claimed memory: its \
         own claims, with {} left, are lost",
        Bytes(held)
    );
}

/// Returns the bytes of claims to a device that are lost.
pub(super) fn lost_on(device: Device) -> u64 {
    let claims = lock(&CLAIMS);
    let lost = claims.iter().filter(|claim| claim.device == device && claim.standing == Standing::Lost);
    lost.fold(0, |sum: u64, claim| sum.saturating_add(claim.bytes))
}

/// Returns the devices with claims.
pub(super) fn devices_claimed() -> Vec<Device> {
    lock(&CLAIMS).iter().map(|claim| claim.device).collect()
}

/// Returns what is left of each claim when the process keeps so many bytes.
fn left(claims: &[CountedClaim], kept: u64) -> impl Iterator<Item = (&CountedClaim, u64)> {
    let mut earlier: Vec<(u64, u64)> = Vec::new();
    claims.iter().map(move |claim| {
        let growth = kept.saturating_sub(claim.base);
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

    /// Returns how much of it is not taken yet, in bytes; 0 of one that is lost, since this process did not answer in time
    /// while another one claimed the memory.
    pub fn left(&self) -> u64 {
        if process::is_forked() {
            return 0;
        }
        let division = Division::of(self.device);
        let claims = claims_to(self.device, &division);
        left(&claims, division.kept()).find(|(claim, _)| claim.number == self.number).map_or(0, |(_, left)| left)
    }
}

impl MemoryClaim {
    pub(super) fn stands(&self) -> Option<Standing> {
        lock(&CLAIMS).iter().find(|claim| claim.number == self.number).map(|claim| claim.standing)
    }

    /// Notes how it stands.
    pub(super) fn stand(&self, standing: Standing) {
        lock(&CLAIMS)
            .iter_mut()
            .filter(|claim| claim.number == self.number)
            .for_each(|claim| claim.standing = standing);
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
        let claim = |number, bytes, base| CountedClaim {
            number,
            device: Device::from_ordinal(0),
            bytes,
            base,
            made: number,
            standing: Standing::Held,
        };
        let left_of = |claims: &[CountedClaim], kept| left(claims, kept).map(|(_, left)| left).collect::<Vec<_>>();
        let one = [claim(0, 10, 100)];
        assert_eq!([90, 100, 104, 110, 200].map(|kept| left_of(&one, kept)[0]), [10, 10, 6, 0, 0]);
        // The second was made when six of the first had been taken.
        let two = [claim(0, 10, 0), claim(1, 10, 6)];
        assert_eq!(
            [6, 8, 12, 20, 30].map(|kept| left_of(&two, kept)),
            [vec![4, 10], vec![2, 10], vec![0, 8], vec![0, 0], vec![0, 0]]
        );
        // What went back can be claimed again.
        assert_eq!(left_of(&two, 0), [10, 10]);
    }
}
