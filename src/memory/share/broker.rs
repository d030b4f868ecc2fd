//! The thread that serves the processes which attach this one's blocks, and that ends what this one has attached.
//!
//! It starts with the first block that is shared or attached and lives as long as the process. It waits for nothing but its
//! descriptors: a process that stalls, sends rubbish or is another user's holds up no other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, info};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::attached::{News, Soon, end_done, end_idle_on, hear, listening};
use super::bell::{bell, hush};
use super::secret::random;
use super::sharing::{Connection, mappings, peers};
use super::socket;
use crate::error::{Error, Result};
use crate::memory::device::{set_end_idle, set_on_release};
use crate::memory::tuning::{A_FEW, RETRY, RETRY_MOST};
use crate::observe::nvtx;
use crate::observe::target::MEMORY;
use crate::process;
use crate::sync::lock;

/// The name of the thread; the system keeps 15 bytes.
const THREAD: &str = "gpupool-share";
/// The most processes that are connected at a time.
const CONNECTIONS_MOST: usize = 0x1000;
/// The most of them that have shown no token. What they want is said at once, so that who says nothing may go, and leaves the
/// process its descriptors.
const STRANGERS_MOST: usize = 0x40;

/// The name that the thread listens under.
static NAME: OnceLock<[u8; 16]> = OnceLock::new();

/// Starts the thread, if it does not run yet, and returns the name that it listens under.
///
/// # Errors
/// `ErrorKind::Unavailable` if the system has no thread or descriptor left.
pub(super) fn start() -> Result<[u8; 16]> {
    static STARTING: Mutex<()> = Mutex::new(());
    process::refuse_forked()?;
    if let Some(name) = NAME.get() {
        return Ok(*name);
    }
    let _starting = lock(&STARTING);
    if let Some(name) = NAME.get() {
        return Ok(*name);
    }
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        Error::unavailable(format!(
            "memory cannot be shared with other processes: {what}: {error}. Raise the limit of threads (ulimit -u) or of open \
             files (ulimit -n)"
        ))
    };
    let name = random()?;
    let bell = bell().map_err(|error| refused("no descriptor to wake a thread by", &error))?;
    let listener = socket::listener(&name).map_err(|error| refused("no socket to listen on", &error))?;
    set_on_release(mappings::end_with);
    set_end_idle(end_idle_on);
    thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || Loop { bell, listener, connections: Vec::new() }.run())
        .map_err(|error| refused("no thread could be started", &error))?;
    debug!(target: MEMORY, "shared memory: listening for processes that attach");
    Ok(*NAME.get_or_init(|| name))
}

/// The thread's own.
#[derive(Debug)]
struct Loop {
    bell: &'static OwnedFd,
    listener: OwnedFd,
    connections: Vec<Connection>,
}

/// Returns a duration as `poll` takes it.
fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

impl Loop {
    fn run(mut self) {
        nvtx::name_thread(THREAD);
        let mut soon = Soon::default();
        loop {
            let owners = listening();
            self.connections.iter_mut().for_each(Connection::tell);
            owners.iter().for_each(|news| news.go_on());
            let wait = self.wait(soon.next(), &owners);
            let ready = match self.poll(wait, &owners) {
                Ok(ready) => ready,
                Err(error) => {
                    // For want of memory; what is asked waits.
                    debug!(target: MEMORY, "shared memory: poll: {error}");
                    thread::sleep(RETRY);
                    continue;
                }
            };
            if ready.bell {
                hush(self.bell);
                soon.begin();
            }
            ready.ended.iter().copied().for_each(peers::end);
            self.serve(&ready.connections);
            self.connections.retain(|connection| !connection.is_of(&ready.ended));
            for (news, has_ended) in ready.news {
                hear(&news, has_ended);
            }
            if ready.listener {
                self.accept();
            }
            if soon.is_due() {
                soon.note(end_done());
            }
        }
    }

    /// Returns how long to wait at most.
    fn wait(&self, soon: Option<Duration>, owners: &[Arc<News>]) -> Option<Duration> {
        let now = Instant::now();
        let deadlines = self.connections.iter().filter_map(Connection::deadline);
        let deadline = deadlines.min().map(|deadline| deadline.saturating_duration_since(now));
        let retry = self.connections.iter().any(Connection::is_answering).then_some(RETRY);
        let is_behind =
            self.connections.iter().any(Connection::is_behind) || owners.iter().any(|news| news.is_behind());
        let retry_news = is_behind.then_some(RETRY_MOST);
        [soon, deadline, retry, retry_news].into_iter().flatten().min()
    }

    fn poll(&self, wait: Option<Duration>, owners: &[Arc<News>]) -> rustix::io::Result<Ready> {
        let watched = peers::watched();
        let mut polled = vec![PollFd::new(self.bell, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        polled.extend(watched.iter().map(|(_, pidfd)| PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)));
        polled.extend(self.connections.iter().map(|connection| {
            let wanted = if connection.is_answering() { PollFlags::empty() } else { PollFlags::IN };
            PollFd::from_borrowed_fd(connection.socket(), wanted)
        }));
        polled.extend(owners.iter().flat_map(|news| {
            [news.socket(), news.pidfd()].map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
        }));
        match poll(&mut polled, wait.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let is_ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        let (processes, rest) = is_ready[2..].split_at(watched.len());
        let (connections, news) = rest.split_at(self.connections.len());
        let news = owners.iter().zip(news.as_chunks::<2>().0).filter(|(_, is_ready)| **is_ready != [false; 2]);
        let ended = watched.iter().zip(processes).filter(|(_, is_ready)| **is_ready).map(|((process, _), _)| *process);
        Ok(Ready {
            bell: is_ready[0],
            listener: is_ready[1],
            ended: ended.collect(),
            connections: connections.to_vec(),
            news: news.map(|(news, [_, has_ended])| (Arc::clone(news), *has_ended)).collect(),
        })
    }

    /// Goes on with those that are ready, and ends those that take too long.
    fn serve(&mut self, is_ready: &[bool]) {
        let now = Instant::now();
        let mut is_ready = is_ready.iter();
        self.connections.retain_mut(|connection| {
            let is_ready = is_ready.next().is_some_and(|is_ready| *is_ready) || connection.is_answering();
            let goes_on = !is_ready || connection.go_on();
            goes_on && connection.deadline().is_none_or(|deadline| now < deadline)
        });
    }

    /// Accepts some of those that wait. Where there are too many strangers, the one goes that was accepted first.
    fn accept(&mut self) {
        for _ in 0..A_FEW {
            match socket::accepted(&self.listener) {
                Ok(Some(socket)) if self.connections.len() < CONNECTIONS_MOST => {
                    self.connections.extend(Connection::new(socket));
                    self.end_strangers(STRANGERS_MOST);
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    info!(target: MEMORY, "shared memory: a process that attaches could not be accepted: {error}");
                    // Most likely no descriptor is left. It would be told of at once again.
                    self.end_strangers(0);
                    thread::sleep(RETRY);
                    return;
                }
            }
        }
    }

    /// Ends the connections of strangers that were accepted first, but for so many.
    fn end_strangers(&mut self, most: usize) {
        let strangers = self.connections.iter().filter(|connection| connection.is_of_a_stranger()).count();
        let mut gone = strangers.saturating_sub(most);
        self.connections.retain(|connection| {
            let goes = gone > 0 && connection.is_of_a_stranger();
            gone -= usize::from(goes);
            !goes
        });
    }
}

/// What there is to do.
#[derive(Debug)]
struct Ready {
    bell: bool,
    listener: bool,
    ended: Vec<i32>,
    connections: Vec<bool>,
    /// Owners that tell something, and whether they have ended.
    news: Vec<(Arc<News>, bool)>,
}
