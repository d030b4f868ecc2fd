//! Every rule about the end of threads and processes, and about forks.
//!
//! - A thread ends: its [`window`](crate::handle) moves its handles to their pools. No driver call, no library call, no
//!   Python, no panic.
//! - The process ends: nothing is destroyed. Pools are `static` or leaked, so nothing of theirs is dropped.
//! - The process forks: a child made after the first use of a runtime gets `ErrorKind::Forked` from every call. The flag
//!   is set by a `pthread_atfork` handler and read before any lock is taken, for a lock may be held for ever there. The
//!   handler closes what the process listened on.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::{Once, OnceLock};

use log::info;
use rustix::process::{Resource, geteuid, getrlimit};

use crate::error::{Error, ErrorKind, Result};
use crate::observe::target::RUNTIME;

const FORKED: u8 = 1;
const RECORDED: u8 = 2;
const REROUTED: u8 = 4;
const OBSERVED: u8 = 8;

static STATE: AtomicU8 = AtomicU8::new(0);

/// What is out of the ordinary in this process, read at once, so that a hit path does one check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessState(u8);

impl ProcessState {
    /// Returns whether nothing is out of the ordinary.
    #[inline]
    pub(crate) const fn is_plain(self) -> bool {
        self.0 == 0
    }

    /// Returns whether nothing is out of the ordinary for a call that frees.
    #[inline]
    pub(crate) const fn is_plain_for_frees(self) -> bool {
        self.0 & !REROUTED == 0
    }

    /// Returns whether other threads, or contexts, may have routed requests for memory.
    #[inline]
    pub(crate) const fn is_rerouted(self) -> bool {
        self.0 & REROUTED != 0
    }

    /// Returns whether this is the forked child of a process that had used a GPU.
    #[inline]
    pub(crate) const fn is_forked(self) -> bool {
        self.0 & FORKED != 0
    }

    /// Returns whether events are recorded, see [`crate::observe::recording`], or observed, see
    /// [`crate::observe::delivery`].
    #[inline]
    pub(crate) const fn is_recorded(self) -> bool {
        self.0 & (RECORDED | OBSERVED) != 0
    }

    #[inline]
    pub(crate) const fn is_observed(self) -> bool {
        self.0 & OBSERVED != 0
    }

    pub(crate) const fn is_only_observed(self) -> bool {
        self.0 & (RECORDED | OBSERVED) == OBSERVED
    }
}

#[inline]
pub(crate) fn state() -> ProcessState {
    ProcessState(STATE.load(Ordering::Relaxed))
}

/// Installs the handler of forks, once. Called when a runtime is chosen, so a child forked earlier may use the GPU.
pub(crate) fn watch_forks() {
    static INSTALLED: Once = Once::new();
    // Miri knows no forks.
    if cfg!(miri) {
        return;
    }
    // SAFETY: the child handler only uses atomics and closes descriptors, which is allowed between fork and exec.
    INSTALLED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// Marks this process as the child of one that had used a GPU. Nothing is recorded any more: a recording's locks may be
/// held for ever.
extern "C" fn in_child() {
    STATE.store(FORKED, Ordering::Relaxed);
    for listener in &LISTENERS {
        let descriptor = listener.swap(CLOSED, Ordering::Relaxed);
        if descriptor != CLOSED {
            // SAFETY: the child uses no listener of its parent's, and never drops what owns it there.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// What this process listens for. A forked child answers nobody, so it must not keep that open after its parent's end: whoever
/// connects would wait for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListeningFor {
    SharedMemory,
    Neighbours,
}

const CLOSED: i32 = -1;
static LISTENERS: [AtomicI32; 2] = [const { AtomicI32::new(CLOSED) }; 2];

/// Has forked children close this listener, which stays open, and no longer the one before.
pub(crate) fn close_in_children(purpose: ListeningFor, socket: RawFd) {
    LISTENERS[purpose as usize].store(socket, Ordering::Relaxed);
}

fn set(bit: u8, is_set: bool) {
    if is_set {
        STATE.fetch_or(bit, Ordering::Relaxed);
    } else {
        STATE.fetch_and(!bit, Ordering::Relaxed);
    }
}

pub(crate) fn set_recorded(is_recorded: bool) {
    set(RECORDED, is_recorded);
}

pub(crate) fn set_observed(is_observed: bool) {
    set(OBSERVED, is_observed);
}

/// Sets whether other threads, or contexts, may have routed requests for memory.
pub(crate) fn set_rerouted(is_rerouted: bool) {
    set(REROUTED, is_rerouted);
}

/// Another process, as the system reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    /// 0 for one that this process cannot see, in another PID namespace.
    pub(crate) process: i32,
    pub(crate) user: u32,
}

impl Peer {
    /// Returns whether it is a process of this one's user.
    pub(crate) fn is_of_own_user(&self) -> bool {
        is_own_user(self.user)
    }
}

/// Returns whether this number of a user, as the system reports it here, is that of this process's user.
pub(crate) fn is_own_user(user: u32) -> bool {
    // Hundreds of neighbours are compared with it, and the system does not change it.
    static OVERFLOW: OnceLock<u32> = OnceLock::new();
    let read = || std::fs::read_to_string(OVERFLOW_USER).ok()?.trim().parse().ok();
    is_same_user(user, geteuid().as_raw(), *OVERFLOW.get_or_init(|| read().unwrap_or(OVERFLOW_USER_BY_DEFAULT)))
}

/// In a user namespace the system reports all users outside as this one, and so a process of one that is not mapped
/// itself. It names no user.
const OVERFLOW_USER: &str = "/proc/sys/kernel/overflowuid";
const OVERFLOW_USER_BY_DEFAULT: u32 = 0xfffe;

const fn is_same_user(peer: u32, own: u32, overflow: u32) -> bool {
    peer == own && own != overflow
}

/// Returns the process at the other end of a Unix socket: the one that connected, or that listened.
pub(crate) fn peer_of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let place = (&raw mut peer).cast();
    // SAFETY: the socket is open, and `peer` is a place of so many bytes.
    let status =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut bytes) };
    if status == 0 { Ok(Peer { process: peer.pid, user: peer.uid }) } else { Err(io::Error::last_os_error()) }
}

/// Returns how many descriptors any one use may take that others can drive up: a quarter of those that the process may have.
pub(crate) fn share_of_descriptors() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| (most as usize / 4).max(1))
}

/// Returns whether this process is such a child.
#[inline]
pub(crate) fn is_forked() -> bool {
    state().is_forked()
}

#[inline]
pub(crate) fn refuse_forked() -> Result<()> {
    if is_forked() { Err(forked()) } else { Ok(()) }
}

/// Returns the error of a forked child. Separate, to keep it out of the paths that check.
#[cold]
fn forked() -> Error {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    let error = Error::from(ErrorKind::Forked);
    if !IS_LOGGED.swap(true, Ordering::Relaxed) {
        info!(target: RUNTIME, "this call and later ones are refused: {error}");
    }
    error
}

#[cfg(test)]
mod tests {
    use super::is_same_user;

    #[test]
    fn a_process_of_another_user_or_of_nobody_is_not_of_ones_own() {
        assert!(is_same_user(1000, 1000, 65_534) && is_same_user(0, 0, 65_534));
        assert!(!is_same_user(1001, 1000, 65_534) && !is_same_user(0, 1000, 65_534) && !is_same_user(1000, 0, 65_534));
        assert!(!is_same_user(65_534, 65_534, 65_534) && is_same_user(65_534, 65_534, 5));
    }
}
