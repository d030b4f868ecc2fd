//! The owners of the blocks that this process attaches, and the connections to them. There are two kinds of connection.
//! One asks for a block: a thread has it for itself, waits for the answers, and leaves it to the next one. The other is
//! an owner's channel, open as long as anything of the owner is mapped here: by it the owner names mappings to end, and
//! this process reports mappings that it keeps or has unmapped. Nothing waits for an open channel.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};
use std::{io, iter};

use rustix::event::{PollFd, PollFlags};
use rustix::process::geteuid;

use super::codec::{Answer, BlockQuestion, Message, Question};
use super::socket::{self, Contact, Packet, abstract_address};
use super::token::TokenFields;
use crate::error::{Error, Result};
use crate::memory::device::wake;
use crate::memory::tuning::{A_FEW, PATIENCE, RETRY, RETRY_MOST};
use crate::sync::lock;

const SILENT: &str = "did not answer within 10 s: it is stopped, or the machine has no time for it";

/// A process that shares blocks.
#[derive(Debug)]
pub(super) struct OwnerProcess {
    /// The name that it listens under.
    pub(super) name: [u8; 16],
    process: u32,
    /// Idle connections. One is kept as long as something is attached.
    idle: Mutex<Vec<OwnedFd>>,
    channel: Mutex<Option<Arc<Channel>>>,
}

impl Drop for OwnerProcess {
    fn drop(&mut self) {
        // The thread waits for the channel, and keeps it open meanwhile.
        if lock(&self.channel).is_some() {
            wake();
        }
    }
}

/// By name.
static OWNERS: Mutex<BTreeMap<[u8; 16], Weak<OwnerProcess>>> = Mutex::new(BTreeMap::new());

pub(super) fn channels() -> Vec<Arc<Channel>> {
    // Dropped without the lock.
    let owners: Vec<_> = lock(&OWNERS).values().filter_map(Weak::upgrade).collect();
    owners.iter().filter_map(|owner| owner.channel()).collect()
}

/// Forgets an owner's channel, which is over.
pub(super) fn end_channel(channel: &Arc<Channel>) {
    let owner = lock(&OWNERS).get(&channel.owner).and_then(Weak::upgrade);
    if let Some(owner) = owner {
        lock(&owner.channel).take_if(|known| Arc::ptr_eq(known, channel));
    }
}

impl OwnerProcess {
    pub(super) fn of(token: &TokenFields) -> Arc<Self> {
        let mut owners = lock(&OWNERS);
        if let Some(owner) = owners.get(&token.name).and_then(Weak::upgrade) {
            return owner;
        }
        owners.retain(|_, owner| owner.strong_count() > 0);
        let TokenFields { name, process, .. } = *token;
        let owner = Arc::new(Self { name, process, idle: Mutex::default(), channel: Mutex::default() });
        owners.insert(name, Arc::downgrade(&owner));
        owner
    }

    /// Returns an unused connection, to ask for a token's block.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if the process has ended, or cannot be reached.
    pub(super) fn connect(self: &Arc<Self>, token: &TokenFields) -> Result<Link> {
        let socket = match self.take_idle() {
            Some(socket) => socket,
            None => self.connect_anew()?.socket,
        };
        Ok(Link { owner: Arc::clone(self), socket, token: *token })
    }

    /// Takes an idle connection. One that was closed meanwhile is ready to be read.
    fn take_idle(&self) -> Option<OwnedFd> {
        let mut idle = iter::from_fn(|| lock(&self.idle).pop());
        idle.find(|socket| !socket::is_ready(socket, Duration::ZERO))
    }

    fn contact(&self) -> io::Result<Contact> {
        Contact::to(&abstract_address(&self.name)?)
    }

    fn connect_anew(&self) -> Result<Contact> {
        let begun = Instant::now();
        let contact = loop {
            match self.contact() {
                Ok(contact) => break contact,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {
                    thread::sleep(RETRY)
                }
                Err(error) => return Err(self.unreachable(&error)),
            }
        };
        if contact.peer.is_of_own_user() {
            return Ok(contact);
        }
        let (other, own) = (contact.peer.user, geteuid().as_raw());
        Err(Error::invalid_value(format!(
            "the process that listens for this token is user {other}'s, and this one is user {own}'s: memory is shared between \
             processes of one user"
        )))
    }

    pub(super) fn channel(&self) -> Option<Arc<Channel>> {
        lock(&self.channel).clone()
    }

    /// Opens its channel, if there is none yet. The block of the token is held.
    ///
    /// # Errors
    /// As [`OwnerProcess::connect`], and those of its answer.
    pub(super) fn open_channel(self: &Arc<Self>, token: &TokenFields) -> Result<()> {
        if self.channel().is_some() {
            return Ok(());
        }
        let Contact { socket, peer } = self.connect_anew()?;
        let pidfd = socket::pidfd(peer.process)
            .map_err(|error| self.failed(&format!("cannot be watched (pidfd_open: {error})")))?;
        let link = Link { owner: Arc::clone(self), socket, token: *token };
        let _ = link.ask(BlockQuestion::Channel)?;
        let new = || Arc::new(Channel { owner: self.name, socket: link.socket, pidfd });
        lock(&self.channel).get_or_insert_with(new);
        wake();
        Ok(())
    }

    /// Sends a question that has no answer, without waiting; false if there is no room for it now. If the process has
    /// ended, nothing is to be sent.
    pub(super) fn notify(&self, question: &Question) -> bool {
        let socket = match self.take_idle() {
            Some(idle) => idle,
            None => match self.contact() {
                Ok(contact) if contact.peer.is_of_own_user() => contact.socket,
                // Another user has taken the name.
                Ok(_) => return self.has_ended(),
                Err(error) => return error.kind() == io::ErrorKind::ConnectionRefused || self.has_ended(),
            },
        };
        let Ok(is_sent) = socket::send(&socket, question, &[]) else { return self.has_ended() };
        lock(&self.idle).push(socket);
        is_sent
    }

    /// Returns whether the process is gone, as far as this one can see.
    fn has_ended(&self) -> bool {
        socket::has_ended(self.process.cast_signed())
    }

    #[cold]
    fn unreachable(&self, error: &io::Error) -> Error {
        if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            return Error::unavailable(format!(
                "process {} cannot be asked for its memory: this process may open no more files ({error}); raise the limit \
                 (ulimit -n)",
                self.process
            ));
        }
        if self.has_ended() {
            return self.ended();
        }
        Error::unavailable(format!(
            "process {} shares the buffer and cannot be reached ({error}): processes that share memory need the same network \
             namespace; let their containers share it (docker run --network)",
            self.process
        ))
    }

    #[cold]
    fn ended(&self) -> Error {
        Error::unavailable(format!(
            "process {}, which shared the buffer, has ended, or is in another PID namespace: attach buffers while the process \
             that shares them lives; what is attached stays after",
            self.process
        ))
    }

    #[cold]
    fn failed(&self, why: &str) -> Error {
        Error::unavailable(format!("process {}, which shares the buffer, {why}", self.process))
    }
}

/// What was asked for, with descriptors, or why there are none.
pub(super) type OwnerAnswer = (Answer, Result<Vec<OwnedFd>>);

/// A connection in use, to ask for the block of a token.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) owner: Arc<OwnerProcess>,
    pub(super) token: TokenFields,
    socket: OwnedFd,
}

impl Link {
    /// Sends a question about the block.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if the connection is over, or the owner does not take it.
    pub(super) fn send(&self, question: BlockQuestion) -> Result<()> {
        let (question, begun) = (Question::OfBlock(self.token.key, question), Instant::now());
        loop {
            match socket::send(&self.socket, &question, &[]) {
                Ok(true) => return Ok(()),
                Ok(false) if begun.elapsed() < PATIENCE => thread::sleep(RETRY),
                Ok(false) => return Err(self.owner.failed(SILENT)),
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }

    /// Receives an answer.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the owner refuses; `ErrorKind::Unavailable` if the connection is over, the owner
    /// has ended, is silent or cannot give it; `ErrorKind::Internal` if it is none.
    pub(super) fn answer(&self) -> Result<OwnerAnswer> {
        let begun = Instant::now();
        let Packet { bytes, descriptors, is_cut } = loop {
            match socket::receive(&self.socket) {
                Ok(Some(packet)) => break packet,
                Ok(None) => {}
                Err(error) => return Err(self.broken(&error)),
            }
            if !socket::is_ready(&self.socket, RETRY_MOST * 10) && self.owner.has_ended() {
                return Err(self.owner.ended());
            }
            if begun.elapsed() >= PATIENCE {
                // An answer that comes later the owner knows to be lost. One that came just now is taken.
                match socket::receive_last(&self.socket) {
                    Ok(Some(packet)) if !packet.bytes.is_empty() => break packet,
                    _ => return Err(self.owner.failed(SILENT)),
                }
            }
        };
        if bytes.is_empty() {
            return Err(self.broken(&io::ErrorKind::UnexpectedEof.into()));
        }
        let process = self.owner.process;
        match Answer::from_packet(&bytes) {
            None => Err(unknown()),
            Some(Answer::Refused(why)) => {
                Err(Error::invalid_value(format!("process {process} does not share the buffer: {why}")))
            }
            Some(Answer::Failed(why)) => {
                Err(Error::unavailable(format!("process {process} could not share the buffer: {why}")))
            }
            Some(answer) if is_cut => Ok((answer, Err(no_more_files()))),
            Some(answer) => Ok((answer, Ok(descriptors))),
        }
    }

    /// Sends a question, and receives the answer.
    pub(super) fn ask(&self, question: BlockQuestion) -> Result<OwnerAnswer> {
        self.send(question)?;
        self.answer()
    }

    #[cold]
    fn broken(&self, error: &io::Error) -> Error {
        if self.owner.has_ended() {
            return self.owner.ended();
        }
        self.owner.failed(&format!("broke off ({error}): try again"))
    }

    /// Leaves the connection to the next thread that attaches, and returns its owner.
    pub(super) fn put_back(self) -> Arc<OwnerProcess> {
        lock(&self.owner.idle).push(self.socket);
        self.owner
    }
}

/// Returns the error of an answer that no owner gives.
#[cold]
pub(super) fn unknown() -> Error {
    Error::internal("a process that shares memory describes it in a way that is not known")
}

#[cold]
fn no_more_files() -> Error {
    Error::unavailable("memory cannot be attached: this process may open no more files; raise the limit (ulimit -n)")
}

/// The connection by which an owner names mappings to end.
#[derive(Debug)]
pub(super) struct Channel {
    /// The owner's name.
    pub(super) owner: [u8; 16],
    socket: OwnedFd,
    /// Ready once the owner has ended, even if a child of it keeps the socket open.
    pub(super) pidfd: OwnedFd,
}

impl Channel {
    /// Returns what to wait for: its end alone while a task has something for the owner, as one that sends and takes nothing
    /// would have ever more of these wait.
    pub(super) fn polled(self: &Arc<Self>) -> PollFd<'_> {
        let wanted = if Arc::weak_count(self) > 0 { PollFlags::empty() } else { PollFlags::IN };
        PollFd::from_borrowed_fd(self.socket.as_fd(), wanted)
    }

    /// Sends a question at once; false if there is no room, and an error once the connection is over.
    pub(super) fn send(&self, question: &Question) -> io::Result<bool> {
        socket::send(&self.socket, question, &[])
    }

    /// Returns the numbers of mappings that are to end, of a few packets, as an owner may send them without an end; none once
    /// the connection is over.
    pub(super) fn receive(&self) -> Option<Vec<u64>> {
        let mut all = Vec::new();
        for _ in 0..A_FEW {
            let Some(packet) = socket::receive(&self.socket).ok()? else { break };
            // Neither the end nor garbage names mappings.
            let Some(Answer::ToEnd(numbers)) = Answer::from_packet(&packet.bytes) else { return None };
            all.extend(numbers);
        }
        Some(all)
    }
}
