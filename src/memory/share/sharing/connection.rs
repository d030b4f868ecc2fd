//! A process that has connected: its requests are answered one after the other, and what takes too long ends it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::process::geteuid;

use super::events::Recorded;
use super::mappings::Listener;
use super::parcels;
use super::peers::{self, Known};
use super::regions::Region;
use super::shared::{self, Place, SharedBlock};
use crate::error::Result;
use crate::memory::device::with_device;
use crate::memory::share::devices::uuid_of;
use crate::memory::share::socket;
use crate::memory::share::wire::{Ask, DESCRIBED, DESCRIPTORS, Held, NAMES, Request, Status, describe, gone, refusal};
use crate::memory::tuning::PATIENCE;
use crate::process::{Peer, peer_of};

/// An answer that there was no room for yet.
#[derive(Debug)]
struct Answer {
    packet: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// The block that it tells the process it holds.
    held: Option<u64>,
}

impl Answer {
    const fn new(packet: Vec<u8>, descriptors: Vec<OwnedFd>) -> Self {
        Self { packet, descriptors, held: None }
    }
}

/// The block that a process is just taking up.
#[derive(Debug)]
struct Current {
    block: u64,
    region: Arc<Region>,
    events: Vec<Arc<Recorded>>,
}

/// A connection.
#[derive(Debug)]
pub(in crate::memory::share) struct Connection {
    socket: OwnedFd,
    process: i32,
    /// When it ends unless it goes on; none for one that has shown a token and has all that it asked for.
    deadline: Option<Instant>,
    answer: Option<Answer>,
    current: Option<Current>,
    /// Of a process that has shown a token: what is known of it stays as long as the connection.
    known: Option<Known>,
    /// Of a connection that is told of regions that have ended.
    listener: Option<Listener>,
    /// What it is just being told, and there was no room for.
    untold: Vec<u64>,
}

impl Connection {
    /// Takes a process in, if it is this user's.
    pub(in crate::memory::share) fn new(socket: OwnedFd) -> Option<Self> {
        let Peer { process, user } = peer_of(socket.as_fd()).ok()?;
        is_welcome(user, geteuid().as_raw()).then(|| Self {
            socket,
            process,
            deadline: Some(Instant::now() + PATIENCE / 2),
            answer: None,
            current: None,
            known: None,
            listener: None,
            untold: Vec::new(),
        })
    }

    pub(in crate::memory::share) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(in crate::memory::share) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns whether the process has not shown a token yet.
    pub(in crate::memory::share) const fn is_of_a_stranger(&self) -> bool {
        self.known.is_none()
    }

    /// Returns whether an answer waits for room.
    pub(in crate::memory::share) const fn is_answering(&self) -> bool {
        self.answer.is_some()
    }

    /// Returns whether there was no room for what it is to be told.
    pub(in crate::memory::share) const fn is_behind(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Returns whether it is of one of these processes, whose ends were seen.
    pub(in crate::memory::share) fn is_of(&self, ended: &[i32]) -> bool {
        self.known.is_some() && ended.contains(&self.process)
    }

    /// Tells which mappings are to end, as far as there is room.
    pub(in crate::memory::share) fn tell(&mut self) {
        let Some(listener) = self.listener.as_ref().filter(|_| self.answer.is_none()) else { return };
        loop {
            if self.untold.is_empty() {
                self.untold = listener.take_untold();
            }
            if self.untold.is_empty() {
                return;
            }
            match socket::send(self.socket.as_fd(), &gone(&self.untold), &[]) {
                Ok(true) => self.untold.clear(),
                Ok(false) => return,
                // It is over once all is read that the process said before.
                Err(_) => self.untold.clear(),
            }
        }
    }

    /// Does what can be done without waiting; false once the connection is over.
    pub(in crate::memory::share) fn go_on(&mut self) -> bool {
        if self.answer.is_some() {
            return self.send();
        }
        match socket::receive(self.socket.as_fd()) {
            Ok(None) => true,
            Ok(Some(packet)) => match Request::from_bytes(&packet.bytes) {
                Some(request) => self.answer(&request),
                // Its end, or rubbish.
                None => false,
            },
            Err(_) => false,
        }
    }

    fn answer(&mut self, request: &Request) -> bool {
        if request.ask == Ask::Unmapped {
            // Of a region that it holds no block of any more, so that its connection tells whose it is.
            if let Some(listener) = &self.listener {
                listener.has_ended(request.from);
            }
            return self.listener.is_some();
        }
        let is_known = match request.ask {
            Ask::Hold => shared::find(request.block),
            _ => peers::held(self.process, request.block),
        };
        let block = match is_known.filter(|block| block.secret.is(&request.secret.0)) {
            Some(block) => block,
            None if matches!(request.ask, Ask::LetGo | Ask::Arrived) => return true,
            None => return self.put(Answer::new(refusal(Status::Refused, FREED), Vec::new())),
        };
        self.deadline = None;
        let answer = match request.ask {
            Ask::Hold => self.hold(&block, request.from),
            Ask::Describe => self.described(request),
            Ask::Extents => self.extents(&block, request),
            Ask::Events => self.events(request),
            Ask::LetGo => {
                self.current = self.current.take().filter(|current| current.block != request.block);
                // Before it has let go: its region cannot end sooner.
                let is_noted = match (&self.listener, request.from) {
                    (_, 0) => true,
                    (Some(listener), mapping) => {
                        block.known_place().is_none_or(|place| listener.stays(&place.region, mapping))
                    }
                    (None, _) => false,
                };
                peers::let_go(self.process, request.block);
                return is_noted;
            }
            Ask::Arrived => {
                parcels::arrived(request.from, &block);
                return true;
            }
            Ask::News => {
                if self.listener.is_none() {
                    self.know();
                    self.listener = self.known.as_ref().map(|_| Listener::new());
                }
                Ok(Answer::new(gone(&[]), Vec::new()))
            }
            // Answered above.
            Ask::Unmapped => return true,
        };
        self.put(answer.unwrap_or_else(|packet| Answer::new(packet, Vec::new())))
    }

    fn hold(&mut self, block: &Arc<SharedBlock>, parcel: u64) -> std::result::Result<Answer, Vec<u8>> {
        if !parcels::hold_for_another(block, parcel) {
            return Err(refusal(Status::Refused, FREED));
        }
        // A pool that falls asleep asks for holders after it says so, and this asks for that after it holds.
        let placed = block.place().and_then(|place| Ok((place, uuid_of(block.memory().device)?)));
        let (Place { region, lead }, device) = match placed {
            Ok(placed) => placed,
            Err(error) => {
                block.sharing.let_go();
                return Err(refusal(Status::Failed, &error.to_string()));
            }
        };
        if let Err(why) = peers::add(self.process, block) {
            block.sharing.let_go();
            return Err(refusal(Status::Failed, &why));
        }
        self.know();
        let events = block.events();
        let held = Held {
            lead,
            bytes: block.bytes,
            region: region.number,
            extents: region.extents.len() as u32,
            events: events.len() as u32,
            device,
        };
        let names: Vec<_> = events.iter().take(NAMES).map_while(|recorded| recorded.name()).collect();
        self.current = Some(Current { block: block.number, region, events });
        Ok(Answer { held: Some(block.number), ..Answer::new(held.to_bytes(&names), Vec::new()) })
    }

    /// Keeps what is known of the process, which holds something, as long as the connection.
    fn know(&mut self) {
        if self.known.is_none() {
            self.known = Known::new(self.process);
        }
    }

    /// Returns the part of a list that a request asks for.
    fn part<'a, T>(all: &'a [T], request: &Request, most: usize) -> &'a [T] {
        let from = usize::try_from(request.from).unwrap_or(usize::MAX).min(all.len());
        let count = (request.count as usize).min(most).min(all.len() - from);
        &all[from..from + count]
    }

    /// Returns the block that the process is taking up, which it holds: so its extents are alive, unless its region has ended.
    /// That happens where the process has let it go by another connection, and holds it again since.
    fn current(&self, request: &Request) -> std::result::Result<&Current, Vec<u8>> {
        let current = self.current.as_ref().filter(|current| current.block == request.block);
        let current = current.ok_or("nothing is being attached by this connection");
        let current = current.and_then(|current| if current.region.is_ended() { Err(MOVED) } else { Ok(current) });
        current.map_err(|why| refusal(Status::Refused, why))
    }

    fn described(&self, request: &Request) -> std::result::Result<Answer, Vec<u8>> {
        let packet = describe(Self::part(&self.current(request)?.region.extents, request, DESCRIBED));
        Ok(Answer::new(packet, Vec::new()))
    }

    fn extents(&self, block: &SharedBlock, request: &Request) -> std::result::Result<Answer, Vec<u8>> {
        let part = Self::part(&self.current(request)?.region.extents, request, DESCRIPTORS);
        let device = block.block.cache.memory.device;
        let exported = with_device(device, |runtime| {
            // SAFETY: the process holds the block, so those of a region that has not ended are its extents, and alive.
            part.iter().map(|each| unsafe { runtime.extent_export(each.extent) }).collect::<Result<Vec<_>>>()
        });
        match exported {
            Ok(descriptors) => Ok(Answer::new(vec![Status::Given as u8], descriptors)),
            Err(error) => Err(refusal(Status::Failed, &error.to_string())),
        }
    }

    fn events(&self, request: &Request) -> std::result::Result<Answer, Vec<u8>> {
        let part = Self::part(&self.current(request)?.events, request, DESCRIPTORS);
        let (mut packet, mut descriptors) = (vec![Status::Given as u8], Vec::new());
        for event in part.iter().filter_map(|recorded| recorded.event()) {
            match event.export() {
                Ok(exported) => {
                    packet.extend(exported.name);
                    descriptors.extend(exported.descriptor);
                }
                Err(error) => return Err(refusal(Status::Failed, &error.to_string())),
            }
        }
        Ok(Answer::new(packet, descriptors))
    }

    fn put(&mut self, answer: Answer) -> bool {
        self.answer = Some(answer);
        self.deadline = Some(Instant::now() + PATIENCE / 2);
        self.send()
    }

    fn send(&mut self) -> bool {
        let Some(Answer { packet, descriptors, .. }) = &self.answer else { return true };
        match socket::send(self.socket.as_fd(), packet, descriptors) {
            Ok(true) => {
                // The descriptors are closed here.
                self.answer = None;
                // Who has shown no token is to do so in time.
                let is_known = self.current.is_some() || self.listener.is_some();
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
        // A process that was never told of a hold does not let it go.
        if let Some(block) = self.answer.take().and_then(|answer| answer.held) {
            peers::let_go(self.process, block);
        }
    }
}

const FREED: &str =
    "the buffer was freed, or never shared: keep it in the process that shares it until it was attached";

const MOVED: &str =
    "the buffer was let go while it was attached, and lies in other memory since: attach it from the beginning";

/// Returns whether a process of a user may connect to one of `own`.
const fn is_welcome(user: u32, own: u32) -> bool {
    user == own
}

#[cfg(test)]
mod tests {
    use super::is_welcome;

    #[test]
    fn a_process_of_another_user_is_not_welcome() {
        assert!(is_welcome(1000, 1000));
        assert!(!is_welcome(1001, 1000) && !is_welcome(0, 1000) && !is_welcome(1000, 0));
    }
}
