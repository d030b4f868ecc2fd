//! The neighbours that are connected to this process: each asks, and is answered at once, on the broker's thread. A process
//! that stalls or sends anything else is disconnected. Here is also what is given unasked: while others have asked lately, a
//! process that holds more than its most gives back what it has free.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, info};

use super::address::Listening;
use super::claims::pass_by;
use super::give::{give, kind_of};
use super::settings::limits_on;
use super::status::{pools_of, tell};
use super::wire::{Question, Spare, given, pools};
use crate::error::{Bytes, Error, Result};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::device::wakeup;
use crate::memory::share::{Guest, accepted, is_ready, receive, send};
use crate::memory::tuning::{ASKED_LATELY, MANY, PATIENCE, RETRY, RETRY_MOST};
use crate::observe::Activity;
use crate::observe::target::MEMORY;
use crate::process::{peer_of, share_of_descriptors};
use crate::runtime::KnownUuids;
use crate::sync::lock;

/// The most neighbours that are connected at a time, or as many as there is a share of descriptors for; those that asked
/// first are disconnected.
const VISITORS_MOST: usize = 0x400;

/// A neighbour that is connected.
#[derive(Debug)]
struct Visitor {
    socket: Arc<OwnedFd>,
    process: i32,
    /// When it is disconnected.
    deadline: Instant,
}

/// All of them, and who may become one.
#[derive(Debug)]
pub(super) struct Visitors {
    listening: Arc<Listening>,
    /// A descriptor to close where no other is left: whoever asks must hear of claims.
    spare: Mutex<Option<OwnedFd>>,
    /// Changed by the broker's thread alone.
    connected: Mutex<Vec<Visitor>>,
    /// Until when this process gives back unasked.
    asked_until: Mutex<Option<Instant>>,
}

impl Visitors {
    /// # Errors
    /// `ErrorKind::Unavailable` if no descriptor is left.
    pub(super) fn new(listening: Arc<Listening>) -> Result<Self> {
        let spare = spare().map_err(|error| {
            Error::unavailable(format!(
                "this process cannot be a neighbour of others: {error}. Raise its limit (ulimit -n)"
            ))
        })?;
        let spare = Mutex::new(Some(spare));
        Ok(Self { listening, spare, connected: Mutex::default(), asked_until: Mutex::default() })
    }

    /// Accepts those that have connected, and answers what they have asked by now, which is nearly always all.
    fn accept(&self, listener: &OwnedFd, connected: &mut Vec<Visitor>) {
        // Those that are disconnected here are open until the thread's turn ends.
        let most = VISITORS_MOST.min(share_of_descriptors() / 2);
        for _ in 0..MANY {
            match accepted(listener) {
                Ok(Some(socket)) => {
                    connected.extend(Visitor::new(socket).filter(|visitor| visitor.answer(&self.asked_until)));
                    if connected.len() > most {
                        connected.remove(0);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    debug!(target: MEMORY, "a neighbour could not be accepted: {error}");
                    self.accept_without_descriptors(listener);
                    break;
                }
            }
        }
    }

    /// Accepts one where most likely no descriptor is left, answers it, and disconnects it.
    fn accept_without_descriptors(&self, listener: &OwnedFd) {
        drop(lock(&self.spare).take());
        match accepted(listener).ok().flatten().and_then(Visitor::new) {
            Some(visitor) => {
                is_ready(&visitor.socket, RETRY_MOST);
                visitor.answer(&self.asked_until);
            }
            // The listener stays ready, so the next look would come at once.
            None => thread::sleep(RETRY),
        }
        *lock(&self.spare) = spare().ok();
    }

    fn was_asked_lately(&self) -> bool {
        lock(&self.asked_until).is_some_and(|until| Instant::now() < until)
    }
}

impl Guest for Visitors {
    fn descriptors(&self) -> Vec<Arc<OwnedFd>> {
        let connected = lock(&self.connected);
        [self.listening.socket()]
            .into_iter()
            .chain(connected.iter().map(|visitor| Arc::clone(&visitor.socket)))
            .collect()
    }

    fn wait(&self) -> Option<Duration> {
        let deadline = lock(&self.connected).iter().map(|visitor| visitor.deadline).min();
        let deadline = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let unasked = (self.was_asked_lately() && has_most()).then_some(RETRY_MOST * 0x10);
        // Some time is the most, after which it looks whether others still find it.
        [deadline, unasked, Some(PATIENCE)].into_iter().flatten().min()
    }

    fn go_on(&self, ready: &[bool]) {
        let mut ready = ready.iter().copied();
        let (socket, is_listener_ready) = (self.listening.socket(), ready.next().unwrap_or(false));
        // Without the lock, since a neighbour may be given memory.
        let mut connected = std::mem::take(&mut *lock(&self.connected));
        connected.retain(|visitor| {
            let is_ready = ready.next().unwrap_or(false);
            if is_ready { visitor.answer(&self.asked_until) } else { Instant::now() < visitor.deadline }
        });
        if is_listener_ready {
            self.accept(&socket, &mut connected);
        }
        if let Err(error) = self.listening.stay_to_be_found() {
            debug!(target: MEMORY, "neighbours do not find this process any more: {error}");
        }
        *lock(&self.connected) = connected;
        if self.was_asked_lately() {
            give_unasked();
        }
    }
}

impl Visitor {
    /// Makes one of a process that has connected, if it is this user's.
    fn new(socket: OwnedFd) -> Option<Self> {
        let peer = peer_of(socket.as_fd()).ok()?;
        let deadline = Instant::now() + PATIENCE;
        peer.is_of_own_user().then(|| Self { socket: Arc::new(socket), process: peer.process, deadline })
    }

    /// Answers what it has asked by now; false if the connection is over.
    fn answer(&self, asked_until: &Mutex<Option<Instant>>) -> bool {
        let packet = match receive(&self.socket) {
            Ok(Some(packet)) => packet,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let answer = match Question::from_bytes(&packet.bytes) {
            Some(Question::Tell { before }) => tell(before).to_bytes(),
            Some(Question::Give { spare, device, bytes, within_ms }) => {
                *lock(asked_until) = Some(Instant::now() + ASKED_LATELY);
                let within = Duration::from_millis(within_ms.into()).min(PATIENCE);
                let device = KnownUuids::Memory.device_with(&device).ok().flatten();
                given(device.map_or(0, |device| self.give(device, spare, bytes, within)))
            }
            Some(Question::Pools { device }) => {
                pools(KnownUuids::Memory.device_with(&device).ok().flatten().map_or_else(Vec::new, pools_of))
            }
            Some(Question::PassedBy { device, room }) => {
                if let Ok(Some(device)) = KnownUuids::Memory.device_with(&device) {
                    pass_by(device, room);
                }
                return true;
            }
            // Its end, or something else.
            None => return false,
        };
        // One that asks without reading is disconnected.
        matches!(send(&self.socket, &answer, &[]), Ok(true))
    }
}

impl Visitor {
    fn give(&self, device: Device, spare: Spare, asked: u64, within: Duration) -> u64 {
        let activity = Activity::begin_of(asked, format_args!("give memory to a neighbour"));
        let given = give(device, spare, asked, within);
        if let Some(caches) = DeviceCaches::known(device) {
            caches.neighbours.give(given);
        }
        if given > 0 {
            let (process, took, kind) = (self.process, activity.took(), kind_of(spare));
            let (asked, given) = (Bytes(asked), Bytes(given));
            info!(target: MEMORY, "{device}: process {process} asked for {asked}, and was given {given} of {kind} in {took}");
        }
        given
    }
}

/// Returns a descriptor that is there to be closed, of something that forked children may keep open.
fn spare() -> io::Result<OwnedFd> {
    wakeup()?.try_clone()
}

fn with_most() -> impl Iterator<Item = (Device, u64)> {
    let most = |caches: &'static DeviceCaches| {
        let device = caches.memory.location.device()?;
        Some((device, limits_on(device).most?))
    };
    DeviceCaches::of_devices().filter_map(most)
}

fn has_most() -> bool {
    with_most().next().is_some()
}

/// Gives back what is free of what this process holds beyond its most.
fn give_unasked() {
    for (device, most) in with_most() {
        let held = DeviceCaches::known(device).map_or(0, |caches| caches.memory.budget.reserved());
        if held > most {
            give(device, Spare::Free, held - most, Duration::ZERO);
        }
    }
}
