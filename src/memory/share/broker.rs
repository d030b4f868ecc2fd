//! The thread that serves the processes that attach this one's blocks, and lets go of what this one has attached. It
//! starts with the first block that is shared or attached and lives as long as the process. It waits only in one call
//! of `poll`, for all descriptors: a process that stalls, sends garbage or is another user's delays no other.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, info};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read};

use super::client::{self, Channel};
use super::guest::guest;
use super::server::{self, Connection};
use super::token::random;
use super::{background, mapping_cache, socket};
use crate::error::{Error, Result};
use crate::memory::device::{be_thread_for_others, end_where_asked, regions_ended, wakeup};
use crate::memory::tuning::{A_FEW, RETRY, RETRY_MOST};
use crate::observe::nvtx;
use crate::observe::target::MEMORY;
use crate::process::{self, ListeningFor, close_in_children};
use crate::sync::lock;

/// The name of the thread; the system keeps 15 bytes.
const THREAD: &str = "gpupool-share";
/// The most processes that are connected at a time.
const CONNECTIONS_MOST: usize = 0x1000;
/// The most of them that have shown no token, called strangers. A process that attaches shows its token at once, so
/// only others are disconnected, and descriptors are left for this process.
const STRANGERS_MOST: usize = 0x40;

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
            "memory cannot be shared with other processes: {what}: {error}. Raise the limit of threads (ulimit -u) or of open \
             files (ulimit -n)"
        ))
    };
    let name = random()?;
    let wakeup = wakeup().map_err(|error| refused("no descriptor to wake a thread by", &error))?;
    let listener = socket::listener(&name).map_err(|error| refused("no socket to listen on", &error))?;
    let descriptor = listener.as_raw_fd();
    thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || Broker { wakeup, listener, connections: Vec::new(), ended: 0, pause: None }.run())
        .map_err(|error| refused("no thread could be started", &error))?;
    // Open as long as the thread runs.
    close_in_children(ListeningFor::SharedMemory, descriptor);
    *started = Some(name);
    // A logger is others' code, which may wait for a thread that waits for the lock.
    drop(started);
    debug!(target: MEMORY, "shared memory: listening for processes that attach");
    Ok(name)
}

/// What only the thread uses.
#[derive(Debug)]
struct Broker {
    wakeup: &'static OwnedFd,
    listener: OwnedFd,
    connections: Vec<Connection>,
    /// [`regions_ended`] when the connections last looked for mappings to end.
    ended: u64,
    /// How long until unfinished tasks are tried again: ever longer since the last wakeup.
    pause: Option<Duration>,
}

impl Broker {
    fn run(mut self) {
        nvtx::name_thread(THREAD);
        be_thread_for_others();
        loop {
            if let Err(error) = self.turn() {
                // The system has no memory left.
                debug!(target: MEMORY, "shared memory: poll: {error}");
                thread::sleep(RETRY);
            }
        }
    }

    /// Waits until there is something to do, and does it.
    fn turn(&mut self) -> rustix::io::Result<()> {
        let (channels, processes) = (client::channels(), server::watched());
        let is_behind = !self.notify(&channels);
        let guest = guest();
        let of_guest = guest.map(|guest| guest.descriptors()).unwrap_or_default();
        let ready = self.poll(self.wait(is_behind), &channels, &processes, &of_guest)?;
        let mut ready = ready.into_iter();
        let mut is_ready = || ready.next().unwrap_or(false);
        if is_ready() {
            // Takes the count of wakeups so far.
            let _ = read(self.wakeup, &mut [0; 8]);
            self.pause = None;
        }
        let is_listener_ready = is_ready();
        let ended: Vec<_> = processes.iter().filter(|_| is_ready()).map(|(process, _)| *process).collect();
        ended.iter().copied().for_each(server::end_process);
        self.connections.retain_mut(|connection| connection.go_on(is_ready(), &ended));
        for channel in &channels {
            let (has_messages, has_ended) = (is_ready(), is_ready());
            if has_messages || has_ended {
                mapping_cache::follow(channel, has_ended);
            }
        }
        if is_listener_ready {
            self.accept();
        }
        if let Some(guest) = guest {
            let ready: Vec<_> = of_guest.iter().map(|_| is_ready()).collect();
            guest.go_on(&ready);
        }
        let pause = self.pause.map_or(RETRY / 10, |pause| (pause * 2).min(RETRY_MOST));
        self.pause = background::try_tasks().then_some(pause);
        // After the tasks, of which some leave an idle mapping.
        end_where_asked(mapping_cache::end_idle_on);
        Ok(())
    }

    /// Sends the notifications to other processes; false if there is no room for some.
    fn notify(&mut self, channels: &[Arc<Channel>]) -> bool {
        let ended = regions_ended();
        if std::mem::replace(&mut self.ended, ended) != ended {
            self.connections.iter_mut().for_each(Connection::look_for_ended);
        }
        let mut is_all_sent = true;
        self.connections.iter_mut().for_each(|connection| is_all_sent &= connection.notify());
        channels.iter().for_each(|channel| is_all_sent &= channel.go_on());
        is_all_sent
    }

    /// Returns how long to wait at most.
    fn wait(&self, is_behind: bool) -> Option<Duration> {
        let deadline = self.connections.iter().filter_map(|connection| connection.deadline).min();
        let deadline = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let retry = self.connections.iter().any(Connection::is_answering).then_some(RETRY);
        let of_guest = guest().and_then(|guest| guest.wait());
        [self.pause, deadline, retry, is_behind.then_some(RETRY_MOST), of_guest].into_iter().flatten().min()
    }

    /// Waits, and returns for each descriptor whether it is ready: the wakeup, the listener, each process's, each
    /// connection's, two of each channel, and the guest's.
    fn poll(
        &self,
        wait: Option<Duration>,
        channels: &[Arc<Channel>],
        processes: &[(i32, Arc<OwnedFd>)],
        of_guest: &[Arc<OwnedFd>],
    ) -> rustix::io::Result<Vec<bool>> {
        let readable = |descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN);
        let mut polled = vec![readable(self.wakeup.as_fd()), readable(self.listener.as_fd())];
        polled.extend(processes.iter().map(|(_, pidfd)| readable(pidfd.as_fd())));
        polled.extend(self.connections.iter().map(|connection| {
            let wanted = if connection.is_answering() { PollFlags::empty() } else { PollFlags::IN };
            PollFd::new(&connection.socket, wanted)
        }));
        let of_channels = channels.iter().flat_map(|channel| [channel.socket.as_fd(), channel.pidfd.as_fd()]);
        polled.extend(of_channels.map(readable));
        polled.extend(of_guest.iter().map(|descriptor| readable(descriptor.as_fd())));
        match poll(&mut polled, wait.map(socket::timespec).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(polled.iter().map(|polled| !polled.revents().is_empty()).collect())
    }

    /// Accepts a few connecting processes. If there are too many strangers, those accepted first are disconnected.
    fn accept(&mut self) {
        for _ in 0..A_FEW {
            match socket::accepted(&self.listener) {
                Ok(Some(socket)) => {
                    let connection = Connection::new(socket);
                    if self.connections.len() < CONNECTIONS_MOST {
                        self.connections.extend(connection);
                        self.end_strangers(STRANGERS_MOST);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    info!(target: MEMORY, "shared memory: a process that attaches could not be accepted: {error}");
                    // Most likely no descriptor is left. The listener stays ready, so `poll` would return at once.
                    self.end_strangers(0);
                    thread::sleep(RETRY);
                    return;
                }
            }
        }
    }

    /// Disconnects the strangers that were accepted first, until at most so many are left.
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
