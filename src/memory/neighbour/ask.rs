//! Asking the neighbours. All are asked at once what they hold; who does not answer in time is passed by. Then those of
//! lowest priority are asked for memory first: each for free memory, then each for discardable pages, then each for pools
//! that were offered, until there is enough or the time is over. Nothing stays open afterwards.

use std::cmp::Reverse;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::give::kind_of;
use super::membership::connect_to_all;
use super::settings::environment;
use super::wire::{Held, NeighbourPool, Question, Spare, Told, read_given, read_pools};
use crate::error::{Bytes, Result};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::share::{Packet, is_ready, pidfd, receive, send, timespec};
use crate::memory::tuning::{A_FEW, GIVEN_WITHIN, PAGE};
use crate::observe::Activity;
use crate::observe::target::MEMORY;
use crate::process::peer_of;
use crate::runtime::{DeviceUuid, KnownUuids};

/// A connection to a neighbour.
#[derive(Debug)]
struct Contacted {
    socket: OwnedFd,
    /// Its id; 0 in another PID namespace.
    process: i32,
    told: Option<Told>,
}

/// A neighbour that may give memory of the device, and what it tells of that.
#[derive(Debug)]
struct Giving {
    socket: OwnedFd,
    process: u32,
    name: String,
    held: Held,
    /// What it may still be asked for, by its guarantee.
    above: u64,
    /// Whether it did not answer in time.
    is_passed_by: bool,
}

/// Connects to all neighbours and asks them; those that can be reached are in the list.
///
/// # Errors
/// Those of [`connect_to_all`].
fn ask_all(question: &[u8]) -> Result<Vec<Contacted>> {
    let ask = |socket: OwnedFd| {
        let peer = peer_of(socket.as_fd()).ok()?;
        let is_sent = peer.is_of_own_user() && matches!(send(&socket, question, &[]), Ok(true));
        is_sent.then_some(Contacted { socket, process: peer.process, told: None })
    };
    Ok(connect_to_all()?.into_iter().filter_map(ask).collect())
}

fn has_ended(process: i32) -> bool {
    match pidfd(process) {
        Ok(pidfd) => is_ready(&pidfd, Duration::ZERO),
        Err(error) => error == Errno::SRCH,
    }
}

/// Returns what all neighbours tell that answer in time, with the connections to them; of their claims those made before
/// a time. It ends when no one has answered for so long, or after `most`: hundreds that all ask each other need longer.
fn ask_what_they_hold(before: u64, silence: Duration, most: Duration) -> Result<Vec<(OwnedFd, Told)>> {
    let begun = Instant::now();
    let mut waiting = ask_all(&Question::Tell { before }.to_bytes())?;
    let (mut answered, mut last) = (Vec::new(), Instant::now());
    // Until when it is not looked whether those that do not answer have ended; once, as there may be hundreds.
    let mut look_at = Some(last + silence / 4);
    while !waiting.is_empty() {
        let left = most.saturating_sub(begun.elapsed()).min(silence.saturating_sub(last.elapsed()));
        let mut polled: Vec<_> = waiting.iter().map(|asked| PollFd::new(&asked.socket, PollFlags::IN)).collect();
        let wait = look_at.map_or(left, |at| left.min(at.saturating_duration_since(Instant::now())));
        let outcome = poll(&mut polled, Some(&timespec(wait)));
        let ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        match outcome {
            Ok(0) | Err(Errno::INTR) if left.is_zero() => break,
            Ok(0) => {
                // The socket of one that has ended may stay open in a child that it has forked.
                if look_at.take_if(|at| *at <= Instant::now()).is_some() {
                    waiting.retain(|asked| asked.process <= 0 || !has_ended(asked.process));
                }
            }
            Ok(_) => {
                let mut ready = ready.into_iter();
                let over = waiting.extract_if(.., |asked| ready.next().unwrap_or(false) && asked.is_over());
                answered.extend(over.filter_map(|asked| Some((asked.socket, asked.told?))));
                last = Instant::now();
            }
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    Ok(answered)
}

impl Contacted {
    /// Takes its answer, if there is one, and returns whether nothing more is to come.
    fn is_over(&mut self) -> bool {
        match receive(&self.socket) {
            Ok(None) => false,
            Ok(Some(Packet { bytes, .. })) => {
                self.told = Told::from_bytes(&bytes);
                true
            }
            Err(_) => true,
        }
    }
}

/// Returns how long asking may take.
pub(super) fn deadline() -> Duration {
    environment().map_or(GIVEN_WITHIN, |read| read.deadline)
}

/// Returns what all neighbours tell, also where hundreds all ask each other, with the connections to them.
fn listed(before: u64) -> Result<Vec<(OwnedFd, Told)>> {
    ask_what_they_hold(before, deadline() / 2, deadline() * A_FEW as u32)
}

/// Returns what the neighbours tell, until none has answered for half of the deadline; of their claims those made before a
/// time.
///
/// # Errors
/// Those of [`connect_to_all`].
pub(super) fn what_they_hold(before: u64) -> Result<Vec<Told>> {
    Ok(listed(before)?.into_iter().map(|(_, told)| told).collect())
}

/// Returns the same, and for each that holds something of a device its pools there; none of one that does not answer that
/// within the deadline.
///
/// # Errors
/// Those of [`connect_to_all`].
pub(super) fn what_their_pools_hold(device: DeviceUuid) -> Result<Vec<(Told, Option<Vec<NeighbourPool>>)>> {
    let told = listed(u64::MAX)?;
    let until = Instant::now() + deadline();
    let question = Question::Pools { device }.to_bytes();
    // All at once, and then each is waited for.
    let ask = |(socket, told): (OwnedFd, Told)| {
        let is_asked = told.held.iter().any(|held| held.device == device);
        let is_sent = is_asked && matches!(send(&socket, &question, &[]), Ok(true));
        (socket, told, is_sent)
    };
    let asked: Vec<_> = told.into_iter().map(ask).collect();
    let answer = |(socket, told, is_sent): (OwnedFd, Told, bool)| {
        let left = until.saturating_duration_since(Instant::now());
        let packet = if is_sent && is_ready(&socket, left) { receive(&socket).ok().flatten() } else { None };
        (told, packet.and_then(|packet| read_pools(&packet.bytes)))
    };
    Ok(asked.into_iter().map(answer).collect())
}

/// Sorts neighbours in the order in which they are asked: those above their most first, then by priority, the lowest
/// first, then those that can give most.
fn in_order(neighbours: &mut [Giving]) {
    neighbours.sort_by_key(|giving| {
        let held = &giving.held;
        let is_within = held.most.is_none_or(|most| held.reserved <= most);
        (is_within, held.priority, Reverse(held.would_give()))
    });
}

/// What came of asking.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) given: u64,
    /// What the neighbours told before.
    pub(super) told: Vec<Told>,
}

/// Asks the neighbours to give back so many bytes of a device.
pub(super) fn ask(device: Device, wanted: u64) -> Outcome {
    let begun = Instant::now();
    let until = begun + deadline();
    let none = |told| Outcome { given: 0, told };
    let Ok(uuid) = KnownUuids::Memory.of(device) else { return none(Vec::new()) };
    let activity = Activity::begin_of(wanted, format_args!("ask neighbours for memory"));
    let answered = ask_what_they_hold(u64::MAX, deadline() / 2, deadline() / 2).unwrap_or_default();
    let told: Vec<_> = answered.iter().map(|(_, told)| told.clone()).collect();
    let on_device = |(socket, told): (OwnedFd, Told)| {
        let held = told.held.into_iter().find(|held| held.device == uuid)?;
        let (process, name, above) = (told.process, told.name, held.above_guarantee());
        Some(Giving { socket, process, name, held, above, is_passed_by: false })
    };
    let mut neighbours: Vec<_> = answered.into_iter().filter_map(on_device).collect();
    in_order(&mut neighbours);
    let mut given = 0;
    for spare in Spare::ALL {
        for neighbour in &mut neighbours {
            let left = until.saturating_duration_since(Instant::now());
            if given >= wanted || left.is_zero() {
                break;
            }
            given += neighbour.give(device, uuid, spare, wanted - given, left);
        }
    }
    let took = activity.took();
    if let Some(caches) = DeviceCaches::known(device) {
        caches.neighbours.ask(given, begun.elapsed());
    }
    log::info!(
        target: MEMORY,
        "{device}: asked {} neighbours for {}; they gave {} in {took}", neighbours.len(), Bytes(wanted), Bytes(given)
    );
    Outcome { given, told }
}

impl Giving {
    /// Asks for memory of one kind, and returns how much came in time.
    fn give(&mut self, device: Device, uuid: DeviceUuid, spare: Spare, wanted: u64, within: Duration) -> u64 {
        let has = self.held.spare[spare as usize].min(self.above);
        // Idle handles are not told, and beside what is guaranteed.
        if self.is_passed_by || (has == 0 && spare != Spare::Free) {
            return 0;
        }
        let bytes = wanted.next_multiple_of(PAGE);
        let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let question = Question::Give { spare, device: uuid, bytes, within_ms };
        if !matches!(send(&self.socket, &question.to_bytes(), &[]), Ok(true)) || !is_ready(&self.socket, within) {
            // Stopped, at work for another one, or gone: it is passed by, for what comes next, too.
            self.is_passed_by = true;
            return 0;
        }
        let packet = receive(&self.socket).ok().flatten();
        let given = packet.and_then(|packet| read_given(&packet.bytes)).unwrap_or(0);
        self.above = self.above.saturating_sub(given);
        if given > 0 {
            let (process, name, kind) = (self.process, &self.name, kind_of(spare));
            log::debug!(target: MEMORY, "{device}: process {process} {name:?} gave {} of {kind}", Bytes(given));
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn the_least_important_are_asked_first() -> Result<(), std::io::Error> {
        let giving = |process, priority, reserved, most, free| -> Result<Giving, std::io::Error> {
            let held = Held { reserved, most, priority, spare: [free, 0, 0], ..Held::default() };
            let (socket, _) = std::os::unix::net::UnixStream::pair()?;
            let (socket, name, above) = (socket.into(), String::new(), held.above_guarantee());
            Ok(Giving { socket, process, name, held, above, is_passed_by: false })
        };
        let mut neighbours = [
            giving(1, 5, 100, None, 50)?,
            giving(2, -5, 100, None, 10)?,
            giving(3, -5, 100, Some(100), 20)?,
            // Above its most, whatever its priority.
            giving(4, 9, 100, Some(99), 1)?,
        ];
        in_order(&mut neighbours);
        assert_eq!(neighbours.map(|giving| giving.process), [4, 3, 2, 1]);
        Ok(())
    }
}
