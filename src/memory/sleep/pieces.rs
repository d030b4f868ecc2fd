//! The pieces of pinned memory for a backup. Two threads make them while others are filled, so that one touches pages
//! while the driver registers the other's.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::error::{Error, Result};
use crate::memory::pinned::pinned_for_gpupool;
use crate::memory::pool::BackupPiece;
use crate::memory::tuning::{BACKUP_MOST, SIDE_BY_SIDE};
use crate::observe::nvtx;
use crate::sync::{AtomicU64, Ordering};

/// The name of the threads; the system keeps 15 bytes.
const THREAD: &str = "gpupool-backup";

/// Pieces of so many bytes together, on one NUMA node of the host.
#[derive(Debug)]
pub(super) struct BackupPieces {
    node: u32,
    /// The bytes that no piece was requested for yet.
    left: Arc<AtomicU64>,
    /// What the threads have made; none if the first piece is the last.
    made: Option<Receiver<Result<BackupPiece>>>,
}

impl BackupPieces {
    pub(super) fn begin(node: u32, bytes: u64) -> Self {
        let left = Arc::new(AtomicU64::new(bytes));
        let (sender, receiver) = channel();
        let makers = if bytes > BACKUP_MOST { SIDE_BY_SIDE } else { 0 };
        let started = (0..makers).filter(|_| start(node, &left, &sender)).count() > 0;
        Self { node, left, made: started.then_some(receiver) }
    }

    /// Returns the next piece, once it is made.
    pub(super) fn next(&self) -> Result<BackupPiece> {
        let gone = || Error::internal("a backup has no room for what it was made for");
        match &self.made {
            // The threads that make them wait for no other.
            Some(made) => made.recv().map_err(|_| gone())?,
            None => make(self.node, &self.left).ok_or_else(gone)?,
        }
    }
}

/// Makes one more piece; none if all are made.
fn make(node: u32, left: &AtomicU64) -> Option<Result<BackupPiece>> {
    let take = |left: u64| (left > 0).then(|| left - left.min(BACKUP_MOST));
    let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
    let buffer = pinned_for_gpupool(before.min(BACKUP_MOST), node);
    Some(buffer.map(|buffer| BackupPiece {
        address: buffer.address(),
        bytes: buffer.nbytes(),
        _memory: Box::new(buffer),
    }))
}

/// Starts a thread that makes pieces until there are enough, one fails, or no thread waits for more; false if the system
/// starts none.
fn start(node: u32, left: &Arc<AtomicU64>, made: &Sender<Result<BackupPiece>>) -> bool {
    let (left, made) = (Arc::clone(left), made.clone());
    let work = move || {
        nvtx::name_thread(THREAD);
        while let Some(piece) = make(node, &left) {
            let has_failed = piece.is_err();
            if made.send(piece).is_err() || has_failed {
                break;
            }
        }
    };
    thread::Builder::new().name(THREAD.to_owned()).spawn(work).is_ok()
}
