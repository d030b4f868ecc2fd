//! The processes that attach this one's blocks: what each holds, and the answers to its messages. A process may have
//! several connections. Each is served one message after the other, and closed if the process takes too long. The holds
//! of all its connections last until a message lets them go, or the process ends. A pidfd shows that end: a socket may
//! be closed while the process's GPU work goes on.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::shared::{self, Hold, InRegion, SharedBlock};
use super::socket;
use super::wire::{Ask, DESCRIBED, DESCRIPTORS, ENDED, GIVEN, HeldBlock, Message, describe, numbers, refusal};
use crate::error::{Error, Result};
use crate::memory::device::{KeptMapping, Region, with_device};
use crate::memory::tuning::PATIENCE;
use crate::process::peer_of;
use crate::runtime::{Event, KnownUuids};
use crate::sync::lock;

/// The most mappings that one process may keep: no version of gpupool keeps more, so a process that does is
/// disconnected.
const KEPT_MOST: usize = 0x4000;

const FREED: &str =
    "the buffer was freed, or never shared: keep it in the process that shares it until it was attached";
const MOVED: &str =
    "the buffer was let go while it was attached, and lies in other memory since: attach it from the beginning";

/// A process that holds something, or has a connection by which it did.
#[derive(Debug)]
struct HoldingProcess {
    /// Shared with its connections.
    pidfd: Arc<OwnedFd>,
    /// What it holds, by the blocks' numbers; none is empty.
    held: BTreeMap<u64, Vec<Hold>>,
}

/// All of them, by id.
static PROCESSES: Mutex<BTreeMap<i32, HoldingProcess>> = Mutex::new(BTreeMap::new());

/// Adds a hold of a block by a process, and returns the pidfd, as the process's end must be seen.
fn add_hold(process: i32, block: u64, hold: Hold) -> Result<Arc<OwnedFd>> {
    let pidfd = match pidfd_of(process).filter(|pidfd| !socket::is_ready(pidfd, Duration::ZERO)) {
        Some(pidfd) => pidfd,
        None => {
            // An ended process may have had the same id.
            end_process(process);
            Arc::new(watch(process)?)
        }
    };
    let mut processes = lock(&PROCESSES);
    let new = || HoldingProcess { pidfd: Arc::clone(&pidfd), held: BTreeMap::new() };
    let holding = processes.entry(process).or_insert_with(new);
    holding.held.entry(block).or_default().push(hold);
    Ok(pidfd)
}

fn watch(process: i32) -> Result<OwnedFd> {
    if process == 0 {
        return Err(Error::unavailable(
            "the process that attaches cannot be seen by the one that shares, as it is in another PID namespace: run both in \
             one (docker run --pid)",
        ));
    }
    socket::pidfd(process).map_err(|error| {
        Error::unavailable(format!(
            "the process that attaches cannot be watched (pidfd_open: {error}); Linux 5.3 is needed"
        ))
    })
}

fn pidfd_of(process: i32) -> Option<Arc<OwnedFd>> {
    lock(&PROCESSES).get(&process).map(|holding| Arc::clone(&holding.pidfd))
}

/// Removes one hold of a process.
fn let_go(process: i32, block: u64) {
    let mut processes = lock(&PROCESSES);
    let Some(holding) = processes.get_mut(&process) else { return };
    let Some(holds) = holding.held.get_mut(&block) else { return };
    holds.pop();
    if holds.is_empty() {
        holding.held.remove(&block);
    }
}

fn holds(process: i32, block: u64) -> bool {
    lock(&PROCESSES).get(&process).is_some_and(|holding| holding.held.contains_key(&block))
}

pub(super) fn holders(block: u64) -> Vec<i32> {
    let processes = lock(&PROCESSES);
    let holding = processes.iter().filter(|(_, holding)| holding.held.contains_key(&block));
    holding.map(|(process, _)| *process).collect()
}

/// Removes all holds of a process that has ended.
pub(super) fn end_process(process: i32) {
    drop(lock(&PROCESSES).remove(&process));
}

/// Returns the pidfds of processes whose end must be seen, and forgets those without holds and connections.
pub(super) fn watched() -> Vec<(i32, Arc<OwnedFd>)> {
    let mut all = lock(&PROCESSES);
    all.retain(|_, holding| !holding.held.is_empty() || Arc::strong_count(&holding.pidfd) > 1);
    all.iter().map(|(&process, holding)| (process, Arc::clone(&holding.pidfd))).collect()
}

/// An answer that waits for room.
#[derive(Debug)]
struct Answer {
    packet: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// The block that the process holds once it has this answer.
    held: Option<u64>,
}

impl Answer {
    const fn new(packet: Vec<u8>) -> Self {
        Self { packet, descriptors: Vec::new(), held: None }
    }

    /// Adds events: their names, and their descriptors if they have any.
    fn with_events(mut self, events: &[Arc<Event>]) -> Result<Self> {
        for event in events {
            let exported = event.export()?;
            self.packet.extend(exported.name);
            self.descriptors.extend(exported.descriptor);
        }
        Ok(self)
    }
}

#[derive(Debug)]
struct Current {
    block: u64,
    region: Arc<Region>,
    events: Vec<Arc<Event>>,
}

/// A connection of a process that attaches.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    process: i32,
    /// When it is closed unless something happens; none once a token was shown, while nothing is to be sent.
    pub(super) deadline: Option<Instant>,
    answer: Option<Answer>,
    current: Option<Current>,
    /// Set once the process has held something by this connection: its end must be seen even if it holds nothing more.
    pidfd: Option<Arc<OwnedFd>>,
    /// On the process's channel, the mappings that it keeps, by its own numbers.
    kept: Option<BTreeMap<u64, KeptMapping>>,
    /// Mappings to end, whose numbers wait for room.
    unsent: Vec<u64>,
}

impl Connection {
    /// Makes one for a process that has connected, if it is this user's.
    pub(super) fn new(socket: OwnedFd) -> Option<Self> {
        let peer = peer_of(socket.as_fd()).ok()?;
        peer.is_of_own_user().then(|| Self {
            socket,
            process: peer.process,
            deadline: Some(Instant::now() + PATIENCE / 2),
            answer: None,
            current: None,
            pidfd: None,
            kept: None,
            unsent: Vec::new(),
        })
    }

    /// Returns whether the process has not shown a token yet.
    pub(super) const fn is_of_a_stranger(&self) -> bool {
        self.pidfd.is_none()
    }

    /// Returns whether an answer waits for room.
    pub(super) const fn is_answering(&self) -> bool {
        self.answer.is_some()
    }

    /// Looks for kept mappings whose regions have ended.
    pub(super) fn look_for_ended(&mut self) {
        let kept = self.kept.iter_mut().flatten();
        self.unsent.extend(kept.filter_map(|(number, mapping)| mapping.is_to_end().then_some(*number)));
    }

    /// Notifies the process of mappings that are to end; false where there was no room for all.
    pub(super) fn notify(&mut self) -> bool {
        while !self.unsent.is_empty() && self.answer.is_none() {
            let count = self.unsent.len().min(ENDED);
            let packet = numbers(self.unsent[..count].iter().copied());
            // After an error the connection is closed once what the process sent before has been read.
            if socket::send(&self.socket, &packet, &[]).unwrap_or(true) {
                self.unsent.drain(..count);
            } else {
                return false;
            }
        }
        true
    }

    /// Does what it can without waiting: sends, or receives if the socket is ready. False once the connection is over:
    /// closed, of a process that has ended, or of one that has taken too long.
    pub(super) fn go_on(&mut self, is_ready: bool, ended: &[i32]) -> bool {
        let goes_on = if self.is_answering() { self.send() } else { !is_ready || self.receive() };
        let has_ended = self.pidfd.is_some() && ended.contains(&self.process);
        goes_on && !has_ended && self.deadline.is_none_or(|deadline| deadline > Instant::now())
    }

    fn receive(&mut self) -> bool {
        match socket::receive(&self.socket) {
            Ok(None) => true,
            // Neither the end nor garbage is a message.
            Ok(Some(packet)) => Message::from_bytes(&packet.bytes).is_some_and(|message| self.handle(&message)),
            Err(_) => false,
        }
    }

    /// Handles a message; false if the connection is to be closed.
    fn handle(&mut self, message: &Message) -> bool {
        let block = shared::find(message.block).filter(|block| block.secret.is(&message.secret.0));
        let block = block.filter(|block| message.ask == Ask::Hold || holds(self.process, block.number));
        if block.is_some() {
            self.deadline = None;
        }
        let answer = match (message.ask, block) {
            // The process may hold no block in the region any more, so it shows no secret.
            (Ask::Unmapped, _) => return self.kept.as_mut().map(|kept| kept.remove(&message.from)).is_some(),
            (Ask::LetGo | Ask::Arrived, None) => return true,
            (Ask::LetGo, Some(block)) => return self.let_go(&block, message.from),
            (Ask::Arrived, Some(block)) => {
                block.arrived(message.from);
                return true;
            }
            (_, None) => Err(Error::invalid_value(FREED)),
            (Ask::Hold, Some(block)) => self.hold(&block, message.from),
            (Ask::Describe, Some(_)) => self.described(message),
            (Ask::Extents, Some(_)) => self.extents(message),
            (Ask::Events, Some(_)) => self.events(message),
            (Ask::Channel, Some(_)) => {
                self.pidfd = pidfd_of(self.process);
                self.kept.get_or_insert_default();
                Ok(Answer::new(numbers([])))
            }
        };
        self.answer = Some(answer.unwrap_or_else(|error| Answer::new(refusal(&error))));
        self.deadline = Some(Instant::now() + PATIENCE / 2);
        self.send()
    }

    /// Lets a block go; a mapping with a number other than 0 stays in the process.
    fn let_go(&mut self, block: &SharedBlock, mapping: u64) -> bool {
        self.current.take_if(|current| current.block == block.number);
        // First, as the region cannot end while the block is held.
        let is_noted = mapping == 0 || self.keep(block.known_place(), mapping);
        let_go(self.process, block.number);
        is_noted
    }

    /// Notes that a mapping stays; false if this is not the channel, or there are too many.
    fn keep(&mut self, place: Option<InRegion>, number: u64) -> bool {
        let Some(kept) = &mut self.kept else { return false };
        if let Some(InRegion { region, .. }) = place {
            // It is known already if it was used again since.
            let mapping = kept.entry(number).or_insert_with(|| KeptMapping::new(region));
            // It may have ended since then.
            if mapping.is_to_end() {
                self.unsent.push(number);
            }
        }
        kept.len() <= KEPT_MOST
    }

    /// Notes that the process holds a block, and returns the block's place.
    fn hold(&mut self, block: &Arc<SharedBlock>, in_flight: u64) -> Result<Answer> {
        let hold = block.hold(in_flight).ok_or_else(|| Error::invalid_value(FREED))?;
        // Either a pool that falls asleep sees this hold, or this sees that it is asleep: each looks after setting its
        // own.
        let InRegion { region, lead } = block.place()?;
        let device = KnownUuids::Devices.of(block.memory().device()?)?;
        let events = block.events();
        let held = HeldBlock {
            lead,
            bytes: block.bytes,
            region: region.number,
            extents: region.extents.len() as u64,
            events: events.len() as u64,
            device,
        };
        let answer = Answer { held: Some(block.number), ..Answer::new(held.to_bytes()) };
        let answer = answer.with_events(&events[..events.len().min(DESCRIPTORS)])?;
        self.pidfd = Some(add_hold(self.process, block.number, hold)?);
        self.current = Some(Current { block: block.number, region, events });
        Ok(answer)
    }

    fn described(&self, message: &Message) -> Result<Answer> {
        Ok(Answer::new(describe(part(&self.current(message)?.region.extents, message, DESCRIBED))))
    }

    fn extents(&self, message: &Message) -> Result<Answer> {
        let region = &self.current(message)?.region;
        let part = part(&region.extents, message, DESCRIPTORS);
        let exported = with_device(region.elsewhere.location, |runtime| {
            // SAFETY: the process holds a block in the region, which has not ended, so its extents are alive.
            part.iter().map(|each| unsafe { runtime.extent_export(each.extent) }).collect::<Result<_>>()
        });
        Ok(Answer { descriptors: exported?, ..Answer::new(vec![GIVEN]) })
    }

    fn events(&self, message: &Message) -> Result<Answer> {
        Answer::new(vec![GIVEN]).with_events(part(&self.current(message)?.events, message, DESCRIPTORS))
    }

    /// Returns the block that the process is attaching. The process holds it, so its extents are alive unless its
    /// region has ended: it may have been let go by another connection, and held again.
    fn current(&self, message: &Message) -> Result<&Current> {
        let current = self.current.as_ref().filter(|current| current.block == message.block);
        let current = current.ok_or_else(|| Error::invalid_value("nothing is being attached by this connection"))?;
        if current.region.has_ended() { Err(Error::invalid_value(MOVED)) } else { Ok(current) }
    }

    fn send(&mut self) -> bool {
        let Some(Answer { packet, descriptors, .. }) = &self.answer else { return true };
        match socket::send(&self.socket, packet, descriptors) {
            Ok(true) => {
                // The descriptors are closed here.
                self.answer = None;
                // A process that has shown no token has to do so in time.
                let is_known = self.current.is_some() || self.kept.is_some();
                self.deadline = (!is_known).then(|| Instant::now() + PATIENCE / 2);
                true
            }
            Ok(false) => true,
            Err(_) => false,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A process that never got the answer does not let the block go.
        if let Some(block) = self.answer.take().and_then(|answer| answer.held) {
            let_go(self.process, block);
        }
        // What it let go is not told again.
        while let Ok(Some(packet)) = socket::receive_last(&self.socket)
            && let Some(message) = Message::from_bytes(&packet.bytes)
        {
            if message.ask == Ask::LetGo {
                self.handle(&message);
            }
        }
    }
}

/// Returns the part of a list that a message asks for.
fn part<'a, T>(all: &'a [T], message: &Message, most: usize) -> &'a [T] {
    let from = usize::try_from(message.from).unwrap_or(usize::MAX).min(all.len());
    let count = (message.count as usize).min(most).min(all.len() - from);
    &all[from..from + count]
}
