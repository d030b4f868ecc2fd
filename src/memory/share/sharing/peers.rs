//! The processes that hold blocks of this one, and what each holds: it is let go by a word, or by the end of the process.
//!
//! A process's GPU work is over when the process is, which its pidfd tells; a closed socket does not.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::shared::SharedBlock;
use crate::sync::lock;

/// A process.
#[derive(Debug)]
struct Peer {
    pidfd: Arc<OwnedFd>,
    /// What it holds, and how often, by number.
    held: HashMap<u64, (Arc<SharedBlock>, u64)>,
    /// Its connections by which it has held something.
    connections: usize,
}

impl Peer {
    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.connections == 0
    }
}

/// All of them, by id.
static PEERS: Mutex<Option<HashMap<i32, Peer>>> = Mutex::new(None);

/// Notes that a process holds a block once more, or why it cannot: its end must be seen.
pub(in crate::memory::share) fn add(process: i32, block: &Arc<SharedBlock>) -> Result<(), String> {
    let held = |peer: &mut Peer| {
        peer.held.entry(block.number).or_insert_with(|| (Arc::clone(block), 0)).1 += 1;
    };
    if has_ended(process) {
        // Another process has its id by now.
        end(process);
    }
    if let Some(peer) = lock(&PEERS).get_or_insert_default().get_mut(&process) {
        held(peer);
        return Ok(());
    }
    let Some(pid) = Pid::from_raw(process) else {
        return Err(
            "the process that attaches cannot be seen by the one that shares, as it is in another PID namespace: run \
                    both in one (docker run --pid)"
                .to_owned(),
        );
    };
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| {
        format!("the process that attaches cannot be watched (pidfd_open: {error}); Linux 5.3 is needed")
    })?;
    let mut peer = Peer { pidfd: Arc::new(pidfd), held: HashMap::new(), connections: 0 };
    held(&mut peer);
    lock(&PEERS).get_or_insert_default().insert(process, peer);
    Ok(())
}

/// Returns whether a process that is known is gone.
fn has_ended(process: i32) -> bool {
    let Some(pidfd) = lock(&PEERS).as_ref().and_then(|peers| Some(Arc::clone(&peers.get(&process)?.pidfd))) else {
        return false;
    };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&*pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Returns a block that a process holds.
pub(in crate::memory::share) fn held(process: i32, block: u64) -> Option<Arc<SharedBlock>> {
    let peers = lock(&PEERS);
    peers.as_ref()?.get(&process)?.held.get(&block).map(|(block, _)| Arc::clone(block))
}

/// Takes away one hold of a process.
pub(in crate::memory::share) fn let_go(process: i32, block: u64) {
    let gone = {
        let mut peers = lock(&PEERS);
        let Some(peer) = peers.as_mut().and_then(|peers| peers.get_mut(&process)) else { return };
        let Some((held, count)) = peer.held.get_mut(&block) else { return };
        held.sharing.let_go();
        *count -= 1;
        let block = if *count == 0 { peer.held.remove(&block) } else { None };
        let is_idle = peer.is_idle();
        (block, if is_idle { peers.as_mut().and_then(|peers| peers.remove(&process)) } else { None })
    };
    // Outside of the lock: the last of a block's events go with it.
    drop(gone);
}

/// A connection of a process that has held something: its end is seen also when it holds nothing more.
#[derive(Debug)]
pub(super) struct Known {
    process: i32,
    pidfd: Arc<OwnedFd>,
}

impl Known {
    /// Notes a connection of a process that holds something; none otherwise.
    pub(super) fn new(process: i32) -> Option<Self> {
        let mut peers = lock(&PEERS);
        let peer = peers.as_mut()?.get_mut(&process)?;
        peer.connections += 1;
        Some(Self { process, pidfd: Arc::clone(&peer.pidfd) })
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let mut peers = lock(&PEERS);
        let Some(peers) = peers.as_mut() else { return };
        // Unless the process has ended, and another one has its id.
        let Some(peer) = peers.get_mut(&self.process).filter(|peer| Arc::ptr_eq(&peer.pidfd, &self.pidfd)) else {
            return;
        };
        peer.connections -= 1;
        if peer.is_idle() {
            peers.remove(&self.process);
        }
    }
}

/// Takes away all that a process holds, which has ended.
pub(in crate::memory::share) fn end(process: i32) {
    let ended = lock(&PEERS).as_mut().and_then(|peers| peers.remove(&process));
    let Some(ended) = ended else { return };
    for (block, count) in ended.held.values() {
        (0..*count).for_each(|_| block.sharing.let_go());
    }
}

/// Returns what tells of the end of each process.
pub(in crate::memory::share) fn watched() -> Vec<(i32, Arc<OwnedFd>)> {
    let peers = lock(&PEERS);
    peers.iter().flatten().map(|(&process, peer)| (process, Arc::clone(&peer.pidfd))).collect()
}

/// Returns the processes that hold a block.
pub(in crate::memory::share) fn holders(block: u64) -> Vec<i32> {
    let peers = lock(&PEERS);
    let holds = |(process, peer): (&i32, &Peer)| peer.held.contains_key(&block).then_some(*process);
    let mut holders: Vec<_> = peers.iter().flatten().filter_map(holds).collect();
    holders.sort_unstable();
    holders
}
