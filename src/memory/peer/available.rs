//! What this process could have, and claims to it.

use std::thread;
use std::time::{Duration, Instant};

use super::ask::{Heard, WaitFor, what_they_hold};
use super::claims::{MemoryClaim, Standing, claimed_on, make};
use super::codec::Held;
use super::help::join;
use super::status::Division;
use crate::error::{Bytes, Error, GPUPOOL, Result};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::serve::no_room_for_claim;
use crate::memory::system_limit::{SystemLimit, system_limits};
use crate::memory::tuning::{A_FEW, RETRY, RETRY_MOST};
use crate::process;
use crate::runtime::{self, KnownUuids, MemoryInfo, RelaxedCapture, get};
use crate::sync::{Interruption, MayWait};

/// Returns how many bytes of a device this process could have: those that the driver has free and those that it has free
/// itself, with what its neighbours would give back, less what they have claimed. Where they would have to put pools to
/// sleep, that is counted. A limit of the system counts as the device's size: of the Multi-Process Service
/// (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`) for this process, and of the control group (`dmem.max`, or NVML's), which all
/// neighbours are taken to share. Other processes than neighbours are not known, and nobody is held to the answer: see [`claim`].
/// This process need not be a neighbour, and becomes none.
///
/// # Errors
/// As [`neighbours`](crate::neighbours); `ErrorKind::Library` if the driver does not tell what is free.
pub fn available_memory(device: Device) -> Result<u64> {
    process::refuse_forked()?;
    let device = runtime::existing(device)?;
    Ok(available(device, u64::MAX, WaitFor::Nobody)?.0)
}

/// Returns what this process could have beside claims that are held or were made before a time, and who has told of them.
fn available(device: Device, before: u64, wait_for: WaitFor) -> Result<(u64, Heard)> {
    let uuid = KnownUuids::Memory.of(device)?;
    let at_first = free_and_own(device)?;
    let heard = what_they_hold(before, None, wait_for)?;
    // What another process takes or gives back meanwhile must not count as free and as its own to give.
    let at_last = free_and_own(device)?;
    let (free, own_free) = if at_first.0 + at_first.1 < at_last.0 + at_last.1 { at_first } else { at_last };
    Ok((within(&system_limits(device), free, own_free, &heard.on(uuid)), heard))
}

/// What there is for a claim.
#[derive(Debug)]
struct Availability {
    available: u64,
    /// By this process, the claim included.
    claimed: u64,
    heard: Heard,
}

impl Availability {
    fn of(device: Device, made: u64) -> Result<Self> {
        let (available, heard) = available(device, made, WaitFor::TheRunning)?;
        let claimed = claimed_on(device, made.saturating_add(1), &Division::of(device));
        Ok(Self { available, claimed, heard })
    }

    /// Returns whether there is enough: nobody who could not be asked may have claimed it.
    fn is_enough(&self) -> bool {
        self.claimed <= self.available && self.heard.unasked == 0
    }
}

/// Returns what the driver has free, and what this process has: beside what is free there what waits to go to the driver,
/// which is to be counted once.
fn free_and_own(device: Device) -> Result<(u64, u64)> {
    let caches = DeviceCaches::known(device);
    let flow = || caches.map(|caches| caches.memory.pieces.bytes());
    let mut found = (0, 0);
    for _ in 0..A_FEW {
        if let Some(caches) = caches {
            let _ = caches.memory.under_way.wait();
        }
        let at_first = flow();
        let own = Division::of(device).unused();
        found = (free_on(device)?, own);
        if flow() == at_first {
            break;
        }
    }
    Ok(found)
}

/// Returns the sum of what is free and would be given, within the system's limits.
fn within(limits: &[SystemLimit], free: u64, own_free: u64, others: &[Held]) -> u64 {
    let free = limits.iter().fold(free, |free, limit| free.min(limit.left));
    let most = |limit: &SystemLimit| if limit.is_own { limit.left.saturating_add(own_free) } else { limit.bytes };
    limits.iter().map(most).fold(sum(free, own_free, others), u64::min)
}

/// Returns what the driver has free, also while a stream is captured.
pub(super) fn free_on(device: Device) -> Result<u64> {
    Ok(info_of(device)?.free)
}

fn info_of(device: Device) -> Result<MemoryInfo> {
    let _relaxed = RelaxedCapture::new(get()?).map_err(|error| error.on(device))?;
    runtime::memory_info(device)
}

fn sum(free: u64, own_free: u64, others: &[Held]) -> u64 {
    let given = others.iter().map(Held::would_give);
    let claimed = others.iter().fold(0, |sum: u64, held| sum.saturating_add(held.claimed));
    given.fold(free.saturating_add(own_free), u64::saturating_add).saturating_sub(claimed)
}

/// Claims memory of a device before it is taken, beyond what this process has, until the claim is dropped or the process
/// ends: the neighbours count it as theirs no more, in [`available_memory`] and in their own claims. What this process keeps
/// more from then on uses the claim up. Of two that claim the same memory at once the first gets it. Nothing is taken, and
/// nobody is asked to give memory back before it is: requests do that. As long as there is a claim, the part of this process's
/// free memory that it is for is given to nobody, and its pools are not put to sleep for others. This process becomes a
/// neighbour itself.
///
/// ```
/// let device = gpupool::device(0)?;
/// let claim = gpupool::claim(1 << 20, device)?;
/// assert_eq!(claim.left(), 1 << 20);
/// # Ok::<(), gpupool::Error>(())
/// ```
///
/// # Errors
/// `ErrorKind::OutOfMemory` if so much is not available; `ErrorKind::Unavailable` if a neighbour could not be asked what it has
/// claimed; as [`available_memory`] and [`set_neighbour`](crate::set_neighbour).
pub fn claim(nbytes: u64, device: Device) -> Result<MemoryClaim> {
    claim_within(nbytes, device, Duration::ZERO)
}

/// Claims memory like [`claim`], and waits until so much is available. Claims wait in the order in which they were made: one
/// that waits counts for those behind it. So processes whose work does not fit into the memory of the device together do it in
/// turns: each claims what its turn takes, all at once, as two that wait for more than they have claimed may wait for each
/// other.
///
/// # Errors
/// As [`claim`], once the time is over, or at once if the device never has so much; `ErrorKind::InvalidValue` without an end in a
/// callback.
pub fn claim_within(nbytes: u64, device: Device, timeout: Duration) -> Result<MemoryClaim> {
    claim_unless_interrupted(nbytes, device, timeout, Interruption::default())
}

/// The same, with `ErrorKind::Unavailable` if the wait is interrupted.
pub(crate) fn claim_unless_interrupted(
    nbytes: u64,
    device: Device,
    timeout: Duration,
    mut interruption: Interruption<'_>,
) -> Result<MemoryClaim> {
    process::refuse_forked()?;
    let device = runtime::existing(device)?;
    join()?;
    let (begun, uuid) = (Instant::now(), KnownUuids::Memory.of(device)?);
    // First, so that the neighbours know of it before they are asked for theirs.
    let (claim, made) = make(device, nbytes);
    let mut pause = RETRY;
    loop {
        let mut room = Availability::of(device, made)?;
        if room.is_enough() {
            // Whatever clocks say of who was first: of two that both come this far, each asks once more while its own claim
            // is held, and so one of them sees the other's.
            claim.stand(Standing::Held);
            room = Availability::of(device, made)?;
            let may_be_granted = room.is_enough() && room.heard.pass_by_silent(uuid, room.available - room.claimed)?;
            // Another process may have passed this one by meanwhile.
            if may_be_granted && claim.stands() == Some(Standing::Held) {
                return Ok(claim);
            }
            claim.stand(Standing::InLine);
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() || nbytes > info_of(device)?.total {
            drop(claim);
            return Err(no_room(device, nbytes, &room));
        }
        MayWait::until_callbacks_end("so much memory can be claimed, without a timeout").check_for(timeout)?;
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(RETRY_MOST);
        if interruption.is_due() {
            return Err(Error::unavailable(format!(
                "the wait for a claim to {} of {device} was interrupted",
                Bytes(nbytes)
            )));
        }
    }
}

#[cold]
fn no_room(device: Device, nbytes: u64, room: &Availability) -> Error {
    if room.heard.unasked > 0 {
        return Error::unavailable(format!(
            "{} of {device} could not be claimed: {} neighbours could not be asked what they have claimed, as too many others \
             wait for them. Wait longer, or end those that are stopped",
            Bytes(nbytes),
            room.heard.unasked
        ));
    }
    let available = room.available.saturating_sub(room.claimed.saturating_sub(nbytes));
    let why = format!(
        "This process could have {}, with what its neighbours would give back and without what they and it have claimed: \
         claim less, or wait longer",
        Bytes(available)
    );
    no_room_for_claim(device, nbytes, Error::no_memory(GPUPOOL, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_free_here_and_there_and_not_claimed() {
        let held = |reserved, guarantee, claimed| Held {
            reserved,
            guarantee,
            claimed,
            spare: [10, 20, 30],
            ..Held::default()
        };
        assert_eq!(sum(5, 7, &[]), 12);
        assert_eq!(sum(5, 7, &[held(100, 0, 0), held(100, 75, 9)]), 12 + 60 + 25 - 9);
        assert_eq!(sum(5, 0, &[held(0, 0, 50)]), 0);
        // What others give helps against a limit that they share, and not against one of this process alone.
        let limit = |bytes, left, is_own| SystemLimit { bytes, left, is_own };
        assert_eq!(within(&[], 50, 7, &[held(100, 0, 0)]), 50 + 7 + 60);
        assert_eq!(within(&[limit(90, 20, false)], 50, 7, &[held(100, 0, 0)]), 20 + 7 + 60);
        assert_eq!(within(&[limit(80, 20, false)], 50, 7, &[held(100, 0, 0)]), 80);
        assert_eq!(within(&[limit(90, 20, true)], 50, 7, &[held(100, 0, 0)]), 27);
        assert_eq!(within(&[limit(90, 20, true), limit(90, 0, false)], 50, 0, &[]), 0);
    }
}
