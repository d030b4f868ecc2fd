//! A process whose blocks this one attaches, and the connections to it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use super::news::News;
use crate::error::{Error, Result};
use crate::memory::share::bell::ring;
use crate::memory::share::socket::{self, Packet};
use crate::memory::share::token::Told;
use crate::memory::share::wire::{PACKET, Request, read_gone};
use crate::memory::tuning::{PATIENCE, RETRY, RETRY_MOST};
use crate::process::{Peer, peer_of};
use crate::sync::lock;

/// A process that shares blocks.
#[derive(Debug)]
pub(in crate::memory::share) struct Owner {
    pub(in crate::memory::share) name: [u8; 16],
    process: u32,
    /// Connections that are not in use. One is kept as long as something is attached.
    idle: Mutex<Vec<OwnedFd>>,
    /// Where it tells of blocks that are gone.
    news: Mutex<Option<Arc<News>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // The thread may be waiting for news, and has the connection.
        if lock(&self.news).is_some() {
            ring();
        }
    }
}

/// By name.
static OWNERS: Mutex<Option<HashMap<[u8; 16], Weak<Owner>>>> = Mutex::new(None);

/// A connection in use.
#[derive(Debug)]
pub(in crate::memory::share) struct Link<'a> {
    owner: &'a Owner,
    socket: OwnedFd,
}

impl Owner {
    /// Returns the process that a token names.
    pub(in crate::memory::share) fn of(told: &Told) -> Arc<Self> {
        let mut owners = lock(&OWNERS);
        let owners = owners.get_or_insert_default();
        if let Some(owner) = owners.get(&told.name).and_then(Weak::upgrade) {
            return owner;
        }
        owners.retain(|_, owner| owner.strong_count() > 0);
        let owner =
            Arc::new(Self { name: told.name, process: told.process, idle: Mutex::default(), news: Mutex::default() });
        owners.insert(told.name, Arc::downgrade(&owner));
        owner
    }

    /// Returns a connection.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if the process has ended, or cannot be reached.
    pub(in crate::memory::share) fn connect(&self) -> Result<Link<'_>> {
        let idle = lock(&self.idle).pop();
        idle.map_or_else(|| self.connect_anew(), |socket| Ok(Link { owner: self, socket }))
    }

    /// Returns the connection by which it tells of blocks that are gone, if there is one.
    pub(super) fn news(&self) -> Option<Arc<News>> {
        lock(&self.news).clone()
    }

    /// Has it tell of blocks that are gone, if it does not yet. The request names a block that is held.
    ///
    /// # Errors
    /// As [`Owner::connect`], and those of its answer. Then what is attached does not stay mapped.
    pub(super) fn listen(&self, request: &Request) -> Result<()> {
        if self.news().is_some() {
            return Ok(());
        }
        let link = self.connect_anew()?;
        let unwatched =
            |error: &dyn std::fmt::Display| self.failed(&format!("cannot be watched (pidfd_open: {error})"));
        let Peer { process, .. } = peer_of(link.socket.as_fd()).map_err(|error| unwatched(&error))?;
        let pid = Pid::from_raw(process).ok_or_else(|| self.failed("is in another PID namespace"))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| unwatched(&error))?;
        link.send(request)?;
        if read_gone(&link.receive()?.bytes).is_none() {
            return Err(self.failed("does not tell of blocks that are gone"));
        }
        lock(&self.news).get_or_insert_with(|| Arc::new(News::new(self.name, link.socket, pidfd)));
        ring();
        Ok(())
    }

    /// Gives up the connection by which it told of blocks that are gone.
    pub(super) fn end_news(&self, news: &Arc<News>) {
        lock(&self.news).take_if(|known| Arc::ptr_eq(known, news));
    }

    fn connect_anew(&self) -> Result<Link<'_>> {
        let begun = Instant::now();
        loop {
            match socket::connected(&self.name) {
                Ok(socket) => return self.checked(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {
                    thread::sleep(RETRY)
                }
                Err(error) => return Err(self.unreachable(&error)),
            }
        }
    }

    /// Sends a request that is answered by nothing, and waits for nothing; false where there is no room for it now. Where the
    /// process has ended there is nothing to say.
    pub(in crate::memory::share) fn tell(&self, request: &Request) -> bool {
        let idle = lock(&self.idle).pop();
        let socket = match idle.map_or_else(|| socket::connected(&self.name), Ok) {
            Ok(socket) => socket,
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        };
        match socket::send(socket.as_fd(), &request.to_bytes(), &[]) {
            Ok(is_sent) => {
                lock(&self.idle).push(socket);
                is_sent
            }
            // Of an old connection: a new one tells whether the process is there.
            Err(_) => {
                socket::connected(&self.name).is_ok_and(|socket| {
                    let is_sent = socket::send(socket.as_fd(), &request.to_bytes(), &[]).unwrap_or(true);
                    lock(&self.idle).push(socket);
                    is_sent
                }) || self.has_ended()
            }
        }
    }

    fn checked(&self, socket: OwnedFd) -> Result<Link<'_>> {
        let peer = peer_of(socket.as_fd()).map_err(|error| self.unreachable(&error))?;
        let own = geteuid().as_raw();
        if peer.user != own {
            return Err(Error::invalid_value(format!(
                "the process that listens for this token is user {}'s, and this one is user {own}'s: memory is shared between \
                 processes of one user",
                peer.user
            )));
        }
        Ok(Link { owner: self, socket })
    }

    /// Returns whether the process is gone, as far as this one can see.
    fn has_ended(&self) -> bool {
        let Some(pid) = i32::try_from(self.process).ok().and_then(Pid::from_raw) else { return true };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
                poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
            }
            Err(error) => error == rustix::io::Errno::SRCH,
        }
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

/// Why a request has no answer.
#[derive(Debug)]
pub(in crate::memory::share) enum Unanswered {
    /// The connection is over, though the owner lives: a new one may do.
    Broken(Error),
    /// Anything else.
    Failed(Error),
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Unanswered> for Error {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Broken(error) | Unanswered::Failed(error) => error,
        }
    }
}

/// Returns the connections by which owners tell of blocks that are gone.
pub(super) fn all_news() -> Vec<Arc<News>> {
    owners().iter().filter_map(|owner| owner.news()).collect()
}

/// Returns the process with this name, if anything of it is attached.
pub(super) fn known(name: [u8; 16]) -> Option<Arc<Owner>> {
    lock(&OWNERS).as_ref()?.get(&name)?.upgrade()
}

/// Returns every process of which something is attached. They are dropped without the lock.
fn owners() -> Vec<Arc<Owner>> {
    lock(&OWNERS).iter().flat_map(HashMap::values).filter_map(Weak::upgrade).collect()
}

impl Link<'_> {
    /// Sends a request.
    ///
    /// # Errors
    /// [`Unanswered::Broken`] if the connection is over; [`Unanswered::Failed`] if the owner does not take it.
    pub(in crate::memory::share) fn send(&self, request: &Request) -> Result<(), Unanswered> {
        let begun = Instant::now();
        loop {
            match socket::send(self.socket.as_fd(), &request.to_bytes(), &[]) {
                Ok(true) => return Ok(()),
                Ok(false) if begun.elapsed() < PATIENCE => thread::sleep(RETRY),
                Ok(false) => return Err(self.owner.failed(SILENT).into()),
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }

    /// Receives an answer.
    ///
    /// # Errors
    /// [`Unanswered::Broken`] if the connection is over; [`Unanswered::Failed`] if the owner has ended or is silent, or this
    /// process may open no more files.
    pub(in crate::memory::share) fn receive(&self) -> Result<Packet, Unanswered> {
        let begun = Instant::now();
        loop {
            match socket::receive(self.socket.as_fd()) {
                Ok(Some(packet)) if packet.bytes.is_empty() => {
                    return Err(self.broken(&io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(Some(packet)) if packet.is_cut => {
                    return Err(Error::unavailable(
                        "memory cannot be attached: this process may open no more files; raise the limit (ulimit -n)",
                    )
                    .into());
                }
                Ok(Some(packet)) if packet.bytes.len() <= PACKET => return Ok(packet),
                Ok(Some(_)) => return Err(self.owner.failed("sent what gpupool does not know").into()),
                Ok(None) => {}
                Err(error) => return Err(self.broken(&error)),
            }
            let look = Timespec { tv_sec: 0, tv_nsec: (RETRY_MOST * 10).subsec_nanos().into() };
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            let is_ready = poll(&mut polled, Some(&look)).is_ok_and(|ready| ready > 0);
            if !is_ready && self.owner.has_ended() {
                return Err(self.owner.ended().into());
            }
            if begun.elapsed() >= PATIENCE {
                return Err(self.owner.failed(SILENT).into());
            }
        }
    }

    #[cold]
    fn broken(&self, error: &io::Error) -> Unanswered {
        if self.owner.has_ended() {
            Unanswered::Failed(self.owner.ended())
        } else {
            Unanswered::Broken(self.owner.failed(&format!("broke off ({error}): try again")))
        }
    }

    /// Keeps the connection for the next one.
    pub(in crate::memory::share) fn put_back(self) {
        lock(&self.owner.idle).push(self.socket);
    }
}

const SILENT: &str = "did not answer within 10 s: it is stopped, or the machine has no time for it";
