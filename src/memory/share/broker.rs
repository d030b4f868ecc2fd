//! The thread that serves the processes which attach this one's blocks, and that ends what this one has attached.
//!
//! It starts with the first block that is shared or attached and lives as long as the process. It waits for nothing but its
//! descriptors: a process that stalls, sends rubbish or is another user's holds up no other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, info};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};

use super::attached::{Soon, end_done};
use super::secret::random;
use super::sharing::{Connection, peers};
use super::socket;
use crate::error::{Error, Result};
use crate::observe::nvtx;
use crate::observe::target::MEMORY;
use crate::process;
use crate::sync::lock;

/// The name of the thread; the system keeps 15 bytes.
const THREAD: &str = "gpupool-share";
/// The most processes that are connected at a time.
const CONNECTIONS_MOST: usize = 4096;
/// How many are accepted before others are served again.
const ACCEPTED_AT_ONCE: usize = 16;
/// How long answers wait that the system had no room for, though the socket has.
const RETRY: Duration = Duration::from_millis(2);

/// What others need of the thread.
#[derive(Debug)]
struct Broker {
    /// Wakes it.
    bell: OwnedFd,
    name: [u8; 16],
}

static BROKER: OnceLock<Broker> = OnceLock::new();

/// Starts the thread, if it does not run yet, and returns the name that it listens under.
///
/// # Errors
/// `ErrorKind::Unavailable` if the system has no thread or descriptor left.
pub(super) fn start() -> Result<[u8; 16]> {
    static STARTING: Mutex<()> = Mutex::new(());
    process::refuse_forked()?;
    if let Some(broker) = BROKER.get() {
        return Ok(broker.name);
    }
    let _starting = lock(&STARTING);
    if let Some(broker) = BROKER.get() {
        return Ok(broker.name);
    }
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        Error::unavailable(format!(
            "memory cannot be shared with other processes: {what}: {error}. Raise the limit of threads (ulimit -u) or of open \
             files (ulimit -n)"
        ))
    };
    let name = random()?;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let bell = eventfd(0, flags).map_err(|error| refused("no descriptor to wake a thread by", &error))?;
    let listener = socket::listener(&name).map_err(|error| refused("no socket to listen on", &error))?;
    let heard = bell.try_clone().map_err(|error| refused("no descriptor to wake a thread by", &error))?;
    thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || Loop { bell: heard, listener, connections: Vec::new() }.run())
        .map_err(|error| refused("no thread could be started", &error))?;
    debug!(target: MEMORY, "shared memory: listening for processes that attach");
    Ok(BROKER.get_or_init(|| Broker { bell, name }).name)
}

/// Has the thread look at what was retired.
pub(super) fn ring() {
    if let Some(broker) = BROKER.get() {
        // It fails only where it has rung so often that nothing more is needed.
        let _ = write(&broker.bell, &1_u64.to_ne_bytes());
    }
}

/// The thread's own.
#[derive(Debug)]
struct Loop {
    bell: OwnedFd,
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
            let wait = self.wait(soon.next());
            let ready = match self.poll(wait) {
                Ok(ready) => ready,
                Err(error) => {
                    // For want of memory; what is asked waits.
                    debug!(target: MEMORY, "shared memory: poll: {error}");
                    thread::sleep(RETRY);
                    continue;
                }
            };
            if ready.bell {
                let _ = read(&self.bell, &mut [0; 8]);
                soon.begin();
            }
            for process in ready.ended {
                peers::end(process);
            }
            self.serve(&ready.connections);
            if ready.listener {
                self.accept();
            }
            if soon.is_due() {
                soon.note(end_done());
            }
        }
    }

    /// Returns how long to wait at most.
    fn wait(&self, soon: Option<Duration>) -> Option<Duration> {
        let now = Instant::now();
        let deadlines = self.connections.iter().filter_map(Connection::deadline);
        let deadline = deadlines.min().map(|deadline| deadline.saturating_duration_since(now));
        let retry = self.connections.iter().any(Connection::is_answering).then_some(RETRY);
        [soon, deadline, retry].into_iter().flatten().min()
    }

    fn poll(&self, wait: Option<Duration>) -> rustix::io::Result<Ready> {
        let watched = peers::watched();
        let mut polled = vec![PollFd::new(&self.bell, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        polled.extend(watched.iter().map(|(_, pidfd)| PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)));
        polled.extend(self.connections.iter().map(|connection| {
            let wanted = if connection.is_answering() { PollFlags::empty() } else { PollFlags::IN };
            PollFd::from_borrowed_fd(connection.socket(), wanted)
        }));
        match poll(&mut polled, wait.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let is_ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        let (processes, connections) = is_ready[2..].split_at(watched.len());
        let ended = watched.iter().zip(processes).filter(|(_, is_ready)| **is_ready).map(|((process, _), _)| *process);
        Ok(Ready {
            bell: is_ready[0],
            listener: is_ready[1],
            ended: ended.collect(),
            connections: connections.to_vec(),
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

    /// Accepts some of those that wait. Where there are too many, those are turned away.
    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match socket::accepted(&self.listener) {
                Ok(Some(socket)) if self.connections.len() < CONNECTIONS_MOST => {
                    self.connections.extend(Connection::new(socket));
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    info!(target: MEMORY, "shared memory: a process that attaches could not be accepted: {error}");
                    // It would be told of at once again: no descriptor is left.
                    thread::sleep(RETRY);
                    return;
                }
            }
        }
    }
}

/// What there is to do.
#[derive(Debug)]
struct Ready {
    bell: bool,
    listener: bool,
    ended: Vec<i32>,
    connections: Vec<bool>,
}
