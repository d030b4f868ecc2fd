//! What other processes have of this one's blocks: what each holds, and the answers to its questions. The holds of a process's
//! connections last until a message lets them go, or the process ends. A pidfd shows that end: a socket may be closed
//! while the process's GPU work goes on.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::codec::{Answer, BlockKey, BlockQuestion, DESCRIBED, DESCRIPTORS, ENDED, EventNames, HeldBlock, Question};
use super::connection::{Handled, Reply};
use super::socket;
use crate::error::{Error, Result};
use crate::memory::device::{KeptMapping, Region, with_device};
use crate::memory::shared_block::{Hold, InRegion, SharedBlock, find};
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
pub(super) fn let_go(process: i32, block: u64) {
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

/// The block that a connection is attaching.
#[derive(Debug)]
struct Current {
    block: u64,
    region: Arc<Region>,
    events: Vec<Arc<Event>>,
}

/// What a process has of this one's blocks by one connection.
#[derive(Debug)]
pub(super) struct Borrower {
    pub(super) process: i32,
    current: Option<Current>,
    /// Set once the process has held something by this connection: its end must be seen even if it holds nothing more.
    pidfd: Option<Arc<OwnedFd>>,
    /// On the process's channel, the mappings that it keeps, by its own numbers.
    kept: Option<BTreeMap<u64, KeptMapping>>,
    /// Mappings to end, whose numbers wait for room.
    unsent: Vec<u64>,
}

impl Borrower {
    pub(super) const fn new(process: i32) -> Self {
        Self { process, current: None, pidfd: None, kept: None, unsent: Vec::new() }
    }

    /// Returns whether the process has held something.
    pub(super) const fn is_known(&self) -> bool {
        self.pidfd.is_some()
    }

    pub(super) fn is_one_of(&self, ended: &[i32]) -> bool {
        self.is_known() && ended.contains(&self.process)
    }

    /// Looks for kept mappings whose regions have ended.
    pub(super) fn look_for_ended(&mut self) {
        let kept = self.kept.iter_mut().flatten();
        self.unsent.extend(kept.filter_map(|(number, mapping)| mapping.is_to_end().then_some(*number)));
    }

    /// Notifies the process of mappings that are to end; false where there was no room for all.
    pub(super) fn notify(&mut self, socket: &OwnedFd) -> bool {
        while !self.unsent.is_empty() {
            let count = self.unsent.len().min(ENDED);
            let to_end = Answer::ToEnd(self.unsent[..count].to_vec());
            // After an error the connection is closed once what the process sent before has been read.
            if !socket::send(socket, &to_end, &[]).unwrap_or(true) {
                return false;
            }
            self.unsent.drain(..count);
        }
        true
    }

    pub(super) fn handle(&mut self, BlockKey { block, secret }: BlockKey, question: BlockQuestion) -> Handled {
        let is_to_hold = matches!(question, BlockQuestion::Hold { .. });
        let shared = find(block).filter(|shared| shared.secret.is(&secret.0));
        let shared = shared.filter(|_| is_to_hold || holds(self.process, block));
        let reply = match (question, shared) {
            (BlockQuestion::LetGo { .. } | BlockQuestion::Arrived { .. }, None) => return Handled::Unanswered,
            (BlockQuestion::LetGo { mapping }, Some(shared)) => return self.let_go(&shared, mapping),
            (BlockQuestion::Arrived { in_flight }, Some(shared)) => {
                shared.arrived(in_flight);
                return Handled::Unanswered;
            }
            (_, None) => Err(Error::invalid_value(FREED)),
            (BlockQuestion::Hold { in_flight }, Some(shared)) => self.hold(&shared, in_flight),
            (BlockQuestion::Describe { from }, Some(_)) => self.described(block, from),
            (BlockQuestion::Extents { from, count }, Some(_)) => self.extents(block, from, count),
            (BlockQuestion::Events { from }, Some(_)) => self.events(block, from),
            (BlockQuestion::Channel, Some(_)) => {
                self.pidfd = pidfd_of(self.process);
                self.kept.get_or_insert_default();
                Ok(Answer::Channel.into())
            }
        };
        Handled::Reply(reply.unwrap_or_else(|error| Answer::of(&error).into()))
    }

    /// Handles what was sent before the connection ended, if it asks for nothing.
    pub(super) fn handle_last(&mut self, question: Question) {
        if let Question::OfBlock(key, question @ BlockQuestion::LetGo { .. }) = question {
            self.handle(key, question);
        }
    }

    /// Notes that a mapping has ended. The process may hold no block in its region any more, so it shows no secret.
    pub(super) fn unmapped(&mut self, mapping: u64) -> Handled {
        match &mut self.kept {
            Some(kept) => {
                kept.remove(&mapping);
                Handled::Unanswered
            }
            None => Handled::Wrong,
        }
    }

    /// Lets a block go; a mapping with a number other than 0 stays in the process.
    fn let_go(&mut self, shared: &SharedBlock, mapping: u64) -> Handled {
        self.current.take_if(|current| current.block == shared.number);
        // First, as the region cannot end while the block is held.
        let is_noted = mapping == 0 || self.keep(shared.known_place(), mapping);
        let_go(self.process, shared.number);
        if is_noted { Handled::Unanswered } else { Handled::Wrong }
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
    fn hold(&mut self, shared: &Arc<SharedBlock>, in_flight: u64) -> Result<Reply> {
        let hold = shared.hold(in_flight).ok_or_else(|| Error::invalid_value(FREED))?;
        // Either a pool that falls asleep sees this hold, or this sees that it is asleep: each looks after setting its
        // own.
        let InRegion { region, lead } = shared.place()?;
        let device = KnownUuids::Devices.of(shared.memory().device()?)?;
        let events = shared.events();
        let held = HeldBlock {
            lead,
            bytes: shared.bytes,
            region: region.number,
            extents: region.extents.len() as u64,
            events: events.len() as u64,
            device,
        };
        let (names, descriptors) = exported(&events[..events.len().min(DESCRIPTORS)])?;
        self.pidfd = Some(add_hold(self.process, shared.number, hold)?);
        self.current = Some(Current { block: shared.number, region, events });
        Ok(Reply { answer: Answer::Held(held, names), descriptors, held: Some(shared.number) })
    }

    fn described(&self, block: u64, from: u64) -> Result<Reply> {
        Ok(Answer::described(part(&self.current(block)?.region.extents, from, DESCRIBED)).into())
    }

    fn extents(&self, block: u64, from: u64, count: u32) -> Result<Reply> {
        let region = &self.current(block)?.region;
        let part = part(&region.extents, from, DESCRIPTORS.min(count as usize));
        let descriptors = with_device(region.elsewhere.location, |runtime| {
            // SAFETY: the process holds a block in the region, which has not ended, so its extents are alive.
            part.iter().map(|each| unsafe { runtime.extent_export(each.extent) }).collect::<Result<_>>()
        })?;
        Ok(Reply { descriptors, ..Answer::Extents.into() })
    }

    fn events(&self, block: u64, from: u64) -> Result<Reply> {
        let (names, descriptors) = exported(part(&self.current(block)?.events, from, DESCRIPTORS))?;
        Ok(Reply { descriptors, ..Answer::Events(names).into() })
    }

    /// Returns the block that the process is attaching. The process holds it, so its extents are alive unless its
    /// region has ended: it may have been let go by another connection, and held again.
    fn current(&self, block: u64) -> Result<&Current> {
        let current = self.current.as_ref().filter(|current| current.block == block);
        let current = current.ok_or_else(|| Error::invalid_value("nothing is being attached by this connection"))?;
        if current.region.has_ended() { Err(Error::invalid_value(MOVED)) } else { Ok(current) }
    }
}

/// Returns the names of events, and their descriptors if they have any.
fn exported(events: &[Arc<Event>]) -> Result<(EventNames, Vec<OwnedFd>)> {
    let (mut names, mut descriptors) = (Vec::new(), Vec::new());
    for event in events {
        let exported = event.export()?;
        names.extend(exported.name);
        descriptors.extend(exported.descriptor);
    }
    Ok((names, descriptors))
}

/// Returns the part of a list that a question asks for.
fn part<T>(all: &[T], from: u64, most: usize) -> &[T] {
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(all.len());
    &all[from..][..most.min(all.len() - from)]
}
