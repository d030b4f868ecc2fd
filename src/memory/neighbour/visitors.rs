//! The neighbours that are connected to this process: each asks, and is answered at once, on the broker's thread. A process
//! that stalls or sends anything else is disconnected. Here is also what is given unasked: while others have asked lately, a
//! process that holds more than its most gives back what it has free.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, info};

use super::give::{give, kind_of};
use super::settings::limits_on;
use super::status::{pools_of, tell};
use super::wire::{Question, Spare, given, pools};
use crate::error::Bytes;
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::share::{Guest, accepted, receive, send};
use crate::memory::tuning::{ASKED_LATELY, MANY, PATIENCE, RETRY, RETRY_MOST};
use crate::observe::Activity;
use crate::observe::target::MEMORY;
use crate::process::peer_of;
use crate::runtime::KnownUuids;
use crate::sync::lock;

/// The most neighbours that are connected at a time; those that asked first are disconnected.
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
    listener: Arc<OwnedFd>,
    /// Changed by the broker's thread alone.
    connected: Mutex<Vec<Visitor>>,
    /// Until when this process gives back unasked.
    asked_until: Mutex<Option<Instant>>,
}

impl Visitors {
    pub(super) fn new(listener: OwnedFd) -> Self {
        Self { listener: Arc::new(listener), connected: Mutex::default(), asked_until: Mutex::default() }
    }

    fn accept(&self) -> Vec<Visitor> {
        let mut new = Vec::new();
        for _ in 0..MANY {
            match accepted(&self.listener) {
                Ok(Some(socket)) => new.extend(Visitor::new(socket)),
                Ok(None) => break,
                Err(error) => {
                    debug!(target: MEMORY, "a neighbour could not be accepted: {error}");
                    // Most likely no descriptor is left. The listener stays ready, so the next look would come at once.
                    thread::sleep(RETRY);
                    break;
                }
            }
        }
        new
    }

    fn was_asked_lately(&self) -> bool {
        lock(&self.asked_until).is_some_and(|until| Instant::now() < until)
    }
}

impl Guest for Visitors {
    fn descriptors(&self) -> Vec<Arc<OwnedFd>> {
        let connected = lock(&self.connected);
        [&self.listener].into_iter().chain(connected.iter().map(|visitor| &visitor.socket)).map(Arc::clone).collect()
    }

    fn wait(&self) -> Option<Duration> {
        let deadline = lock(&self.connected).iter().map(|visitor| visitor.deadline).min();
        let deadline = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let unasked = (self.was_asked_lately() && has_most()).then_some(RETRY_MOST * 0x10);
        [deadline, unasked].into_iter().flatten().min()
    }

    fn go_on(&self, ready: &[bool]) {
        let mut ready = ready.iter().copied();
        let is_listener_ready = ready.next().unwrap_or(false);
        // Without the lock, since a neighbour may be given memory.
        let mut connected = std::mem::take(&mut *lock(&self.connected));
        connected.retain(|visitor| {
            let is_ready = ready.next().unwrap_or(false);
            if is_ready { visitor.answer(&self.asked_until) } else { Instant::now() < visitor.deadline }
        });
        if is_listener_ready {
            // Most have sent their question by now.
            connected.extend(self.accept().into_iter().filter(|visitor| visitor.answer(&self.asked_until)));
        }
        let too_many = connected.len().saturating_sub(VISITORS_MOST);
        connected.drain(..too_many);
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
