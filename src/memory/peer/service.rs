//! The thread that talks to other processes, the only one of a process: it serves those that attach this one's blocks or are its
//! neighbours, and lets go of what this one has attached. It starts with the first block that is shared or attached, or with the
//! process's becoming a neighbour, and lives as long as the process. It waits only in one call of `poll`, for all descriptors: a
//! process that stalls, sends garbage or is another user's delays no other. Nor does one that asks for memory, as
//! another thread gives that (`giving.rs`): handing out descriptors takes microseconds, and giving may take seconds.
//!
//! It listens in two places. One is a random name in no file system, which only tokens tell, so that a process that shares
//! leaves no file behind, however it ends. The other is a file in a directory where neighbours look for each other
//! (`place.rs`). Whoever connects is served in the same way, but asks only for what that place is there for.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use std::{io, iter};

use log::debug;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read};

use super::connection::{Connection, Entrance, Stay};
use super::owner;
use super::place::{Listening, membership};
use super::socket::{self, Contact};
use super::{mapping_cache, sharing, tasks};
use crate::error::{Error, Result};
use crate::memory::device::{be_thread_for_others, end_where_asked, regions_ended, wakeup};
use crate::memory::shared_block::random;
use crate::memory::tuning::{MANY, PATIENCE, RETRY, RETRY_MOST};
use crate::observe::nvtx;
use crate::observe::target::MEMORY;
use crate::process::{self, ListeningFor, close_in_children, share_of_descriptors};
use crate::sync::lock;

/// The name of the thread; the system keeps 15 bytes.
const THREAD: &str = "gpupool-share";
/// The most processes that are connected at a time.
const CONNECTIONS_MOST: usize = 0x1000;
/// The most of them that hold no block, called strangers, or as many as there is a share of descriptors for. Those that connected
/// first are disconnected: whoever asks does so at once, and has its answer.
const STRANGERS_MOST: usize = 0x400;

/// The name that the thread listens under, once it runs.
static NAME: Mutex<Option<[u8; 16]>> = Mutex::new(None);

/// Starts the thread, if it does not run yet, and returns the name that it listens under.
///
/// # Errors
/// `ErrorKind::Unavailable` if the system has no thread or descriptor left.
pub(super) fn start() -> Result<[u8; 16]> {
    process::refuse_forked()?;
    let mut started = lock(&NAME);
    if let Some(name) = *started {
        return Ok(name);
    }
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        Error::unavailable(format!(
            "this process can neither share memory with others nor be their neighbour: {what}: {error}. Raise the limit of \
             threads (ulimit -u) or of open files (ulimit -n)"
        ))
    };
    let name = random()?;
    let wakeup = wakeup().map_err(|error| refused("no descriptor to wake a thread by", &error))?;
    let listener = socket::abstract_address(&name).and_then(|address| socket::listener(&address));
    let listener = listener.map_err(|error| refused("no socket to listen on", &error))?;
    let spare = spare().map_err(|error| refused("no descriptor to spare", &error))?;
    let descriptor = listener.as_raw_fd();
    let thread = PeerThread {
        wakeup,
        listener: Arc::new(listener),
        spare: Some(spare),
        connections: Vec::new(),
        ended: 0,
        pause: None,
    };
    thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || thread.run())
        .map_err(|error| refused("no thread could be started", &error))?;
    // Open as long as the thread runs.
    close_in_children(ListeningFor::SharedMemory, descriptor);
    *started = Some(name);
    // A logger is others' code, which may wait for a thread that waits for the lock.
    drop(started);
    debug!(target: MEMORY, "other processes: listening for those that attach memory, or are neighbours");
    Ok(name)
}

/// Returns a descriptor that is there to be closed, of something that forked children may keep open.
fn spare() -> io::Result<OwnedFd> {
    wakeup()?.try_clone()
}

fn readable(descriptor: &OwnedFd) -> PollFd<'_> {
    PollFd::new(descriptor, PollFlags::IN)
}

/// Waits, and returns for each descriptor whether it is ready.
fn poll_all(mut polled: Vec<PollFd<'_>>, wait: Option<Duration>) -> rustix::io::Result<Vec<bool>> {
    match poll(&mut polled, wait.map(socket::timespec).as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    Ok(polled.iter().map(|polled| !polled.revents().is_empty()).collect())
}

/// What only the thread uses.
#[derive(Debug)]
struct PeerThread {
    wakeup: &'static OwnedFd,
    /// The one that tokens tell of.
    listener: Arc<OwnedFd>,
    /// Closed where no other descriptor is left, for one connection at a time: a neighbour that asks must hear of claims.
    spare: Option<OwnedFd>,
    connections: Vec<Connection>,
    /// [`regions_ended`] when the connections last looked for mappings to end.
    ended: u64,
    /// How long until unfinished tasks are tried again: ever longer since the last wakeup.
    pause: Option<Duration>,
}

impl PeerThread {
    fn run(mut self) {
        nvtx::name_thread(THREAD);
        be_thread_for_others();
        loop {
            if let Err(error) = self.turn() {
                // The system has no memory left.
                debug!(target: MEMORY, "other processes: poll: {error}");
                thread::sleep(RETRY);
            }
        }
    }

    /// Waits until there is something to do, and does it.
    fn turn(&mut self) -> rustix::io::Result<()> {
        let (channels, processes) = (owner::channels(), sharing::watched());
        self.spare = self.spare.take().or_else(|| spare().ok());
        let listeners: Vec<_> = self.listeners().collect();
        let is_behind = !self.notify();
        let waited_for = iter::once(readable(self.wakeup))
            .chain(listeners.iter().map(|(_, listener)| readable(listener)))
            .chain(processes.iter().map(|(_, pidfd)| readable(pidfd)))
            .chain(channels.iter().flat_map(|channel| [channel.polled(), readable(&channel.pidfd)]))
            .chain(self.connections.iter().map(Connection::polled));
        let ready = poll_all(waited_for.collect(), self.wait(is_behind))?;
        let mut ready = ready.into_iter();
        let mut is_ready = || ready.next().unwrap_or(false);
        if is_ready() {
            // Takes the count of wakeups so far.
            let _ = read(self.wakeup, &mut [0; 8]);
            self.pause = None;
        }
        let connecting: Vec<_> = listeners.iter().filter(|_| is_ready()).collect();
        let ended: Vec<_> = processes.iter().filter(|_| is_ready()).map(|(process, _)| *process).collect();
        ended.iter().copied().for_each(sharing::end_process);
        for channel in &channels {
            let (has_messages, has_ended) = (is_ready(), is_ready());
            if has_messages || has_ended {
                mapping_cache::follow(channel, has_ended);
            }
        }
        self.connections.retain_mut(|connection| connection.go_on(is_ready(), &ended));
        connecting.into_iter().for_each(|(entrance, listener)| self.accept(*entrance, listener));
        if let Some(Err(error)) = membership().map(Listening::stay_to_be_found) {
            debug!(target: MEMORY, "neighbours do not find this process any more: {error}");
        }
        let pause = self.pause.map_or(RETRY / 10, |pause| (pause * 2).min(RETRY_MOST));
        self.pause = tasks::try_all().then_some(pause);
        // After the tasks, of which some leave an idle mapping.
        end_where_asked(mapping_cache::end_idle_on);
        Ok(())
    }

    /// Returns what it listens on; nothing while the only descriptor to spare is in use.
    fn listeners(&self) -> impl Iterator<Item = (Entrance, Arc<OwnedFd>)> {
        let of_neighbours = membership().map(|membership| (Entrance::Folder, membership.socket()));
        let all = [Some((Entrance::Name, Arc::clone(&self.listener))), of_neighbours];
        all.into_iter().flatten().filter(|_| self.spare.is_some())
    }

    /// Sends the notifications to other processes; false if there is no room for some.
    fn notify(&mut self) -> bool {
        let ended = regions_ended();
        if std::mem::replace(&mut self.ended, ended) != ended {
            self.connections.iter_mut().for_each(|connection| connection.borrower.look_for_ended());
        }
        let notify = |behind: usize, connection: &mut Connection| behind + usize::from(!connection.notify());
        self.connections.iter_mut().fold(0, notify) == 0
    }

    /// Returns how long to wait at most.
    fn wait(&self, is_behind: bool) -> Option<Duration> {
        let deadline = self.connections.iter().filter_map(Connection::deadline).min();
        let deadline = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let retry = self.connections.iter().any(Connection::is_answering).then_some(RETRY);
        // A neighbour looks from time to time whether others still find it.
        let look = membership().map(|_| PATIENCE);
        let is_late = is_behind || self.spare.is_none();
        [self.pause, deadline, retry, is_late.then_some(RETRY_MOST), look].into_iter().flatten().min()
    }

    /// Accepts connecting processes, and answers what they have asked by now, which is nearly always all. If there are too many
    /// strangers, those accepted first are disconnected.
    fn accept(&mut self, entrance: Entrance, listener: &OwnedFd) {
        for _ in 0..MANY {
            match Contact::accepted(listener) {
                Ok(Some(contact)) => self.add(contact, entrance, Stay::WhileKnown),
                Ok(None) => return,
                Err(error) => {
                    debug!(target: MEMORY, "other processes: one that connects could not be accepted: {error}");
                    return self.accept_without_descriptors(entrance, listener);
                }
            }
        }
    }

    fn add(&mut self, contact: Contact, entrance: Entrance, stay: Stay) {
        if self.connections.len() < CONNECTIONS_MOST
            && let Some(mut connection) = Connection::new(contact, entrance, stay)
            && connection.go_on(true, &[])
        {
            self.connections.push(connection);
            self.end_strangers(STRANGERS_MOST.min(share_of_descriptors() / 2));
        }
    }

    /// Accepts one where most likely no descriptor is left, by the one to spare. It has to ask at once, as have all strangers,
    /// and the next one is accepted when it is gone.
    fn accept_without_descriptors(&mut self, entrance: Entrance, listener: &OwnedFd) {
        self.spare = None;
        match Contact::accepted(listener) {
            Ok(Some(contact)) => self.add(contact, entrance, Stay::Shortly),
            // The listener stays ready, so the next look would come at once.
            _ => thread::sleep(RETRY),
        }
        let (soon, strangers) = (Instant::now() + RETRY_MOST, self.connections.iter_mut());
        strangers.filter(|connection| connection.is_of_a_stranger()).for_each(|stranger| stranger.hurry(soon));
    }

    /// Disconnects strangers until at most so many are left: those that were accepted first of those that wait for memory, if
    /// these are more than half of that, and else of the others. So who asks nothing takes no place of one that waits, nor
    /// do those that wait keep everybody else out.
    fn end_strangers(&mut self, most: usize) {
        loop {
            let strangers = (0..self.connections.len()).filter(|at| self.connections[*at].is_of_a_stranger());
            let (waiting, others): (Vec<_>, Vec<_>) =
                strangers.partition(|at| self.connections[*at].is_answered_elsewhere());
            if waiting.len() + others.len() <= most {
                return;
            }
            let first = if waiting.len() > most / 2 { waiting.first() } else { others.first() };
            first.map(|first| self.connections.remove(*first));
        }
    }
}
