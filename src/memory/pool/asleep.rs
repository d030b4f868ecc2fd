//! Whether a pool is asleep, its backup, and the memory that was not given back. A pool is awake, asleep, or changing.
//! The thread that changes it calls the driver without a lock; others that would change it wait. Requests only check
//! whether the pool is awake, on a miss. Work with the pool's memory is submitted behind a door, which is closed from
//! the beginning of a sleep to the end of waking.
//!
//! A pool may have been offered to other processes: it is put to sleep when one of them has no memory, but not while a
//! thread has a scope of it, or copies or commits what is the pool's, since that may be about to use what it holds.

use std::fmt::Debug;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::state::{Pool, Rules, closed};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::device::{Mapping, Run, run_of};
use crate::runtime::Stream;
use crate::sync::{AtomicU32, Door, InHand, MayWait, Ordering, ThisThread, ThreadNumber, lock, wait};

/// Pinned memory with a part of a backup. Freed when dropped.
#[derive(Debug)]
pub(in crate::memory) struct BackupPiece {
    pub(in crate::memory) address: u64,
    pub(in crate::memory) bytes: u64,
    pub(in crate::memory) _memory: Box<dyn Debug + Send + Sync>,
}

/// A part of a pool's memory, and where it is backed up.
#[derive(Debug)]
pub(in crate::memory) struct BackedUp {
    /// The offsets in the device's memory.
    pub(in crate::memory) range: Range<u64>,
    pub(in crate::memory) piece: Arc<BackupPiece>,
    /// The offset in the piece.
    pub(in crate::memory) at: u64,
}

/// Extents in a row that a pool has when it falls asleep, and keeps, with their content, if the driver refuses them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::memory) struct KeptExtents {
    pub(in crate::memory) extents: Vec<Mapping>,
    pub(in crate::memory) is_mapped: bool,
    pub(in crate::memory) is_open: bool,
}

impl KeptExtents {
    pub(in crate::memory) fn run(&self) -> Run {
        run_of(&self.extents)
    }
}

/// What is kept of a sleeping pool.
#[derive(Debug, Default)]
pub(in crate::memory) struct Record {
    /// Ordered by start; parts with a common piece follow one another.
    pub(in crate::memory) backed_up: Vec<BackedUp>,
    pub(in crate::memory) kept: Vec<KeptExtents>,
    /// In an unfinished sleep, the stream with pending copies of what is kept.
    pub(in crate::memory) copies: Option<Stream>,
    /// Whether memory taken in vain goes only once its work is done, which the next attempt must await.
    pub(in crate::memory) is_in_the_way: bool,
}

impl Record {
    pub(in crate::memory) fn backup_bytes(&self) -> u64 {
        let pieces = self.backed_up.chunk_by(|one, next| Arc::ptr_eq(&one.piece, &next.piece));
        pieces.map(|parts| parts[0].piece.bytes).sum()
    }

    /// Keeps the backup of these ordered pages alone. Returns the rest, with the pieces that nothing needs, to be
    /// dropped without a lock.
    #[must_use]
    pub(in crate::memory) fn keep_only(&mut self, runs: &[Run]) -> Vec<BackedUp> {
        let is_needed = |part: &BackedUp| {
            let place = runs.partition_point(|run| run.end() <= part.range.start);
            runs.get(place).is_some_and(|run| run.start() < part.range.end)
        };
        self.backed_up.extract_if(.., |part| !is_needed(part)).collect()
    }
}

/// Whether the pool is asleep.
#[derive(Debug, Default)]
enum Phase {
    #[default]
    Awake,
    /// A thread is putting it to sleep, or waking it.
    Changing {
        thread: ThreadNumber,
        /// Whether other pools may still take free blocks of it.
        may_serve_others: bool,
        /// Whether another thread wants to let go of what is kept.
        is_to_let_go: bool,
    },
    Asleep {
        record: Record,
        is_to_let_go: bool,
    },
}

/// A pool's offer to other processes. What changes is one number: who begins to use the pool sees that the offer is taken
/// up, or who takes it up sees the use.
#[derive(Debug, Default)]
pub(in crate::memory) struct Offer {
    pub(in crate::memory) is_made: bool,
    /// Whether the pool wakes by its next request, scope, copy or commit.
    pub(in crate::memory) wakes_on_use: bool,
    /// How many scopes of the pool there are, and calls that use it; and [`TAKEN`].
    uses: AtomicU32,
}

/// The bit of an offer that is taken up: the pool sleeps for another process, or is about to.
const TAKEN: u32 = 1 << 0x1f;

impl Offer {
    /// Notes a use, and returns whether the offer is taken up, which is then to be waited for.
    pub(in crate::memory) fn begin_use(&self) -> bool {
        self.uses.fetch_add(1, Ordering::AcqRel) & TAKEN != 0
    }

    pub(in crate::memory) fn end_use(&self) {
        self.uses.fetch_sub(1, Ordering::AcqRel);
    }

    pub(in crate::memory) fn is_in_use(&self) -> bool {
        self.uses.load(Ordering::Acquire) & !TAKEN != 0
    }

    /// Takes the offer up until the pool is awake again; false if the pool is in use.
    pub(in crate::memory) fn take(&self) -> bool {
        let free = |uses: u32| (uses & !TAKEN == 0).then_some(TAKEN);
        self.uses.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).is_ok()
    }

    pub(in crate::memory) fn is_taken(&self) -> bool {
        self.uses.load(Ordering::Acquire) & TAKEN != 0
    }

    fn let_go(&self) {
        self.uses.fetch_and(!TAKEN, Ordering::AcqRel);
    }
}

/// The pool's sleeps so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct SleepTimes {
    /// How often it fell asleep.
    pub(in crate::memory) count: u64,
    /// How long the last falling asleep took.
    pub(in crate::memory) asleep_in: Duration,
    /// How long the last waking took.
    pub(in crate::memory) awake_in: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Sleep {
    /// Closed from the beginning of a sleep to the end of waking, so that the pool serves no request. A thread that submits
    /// work with the pool's memory is inside meanwhile.
    pub(in crate::memory) door: Door,
    phase: Mutex<Phase>,
    /// Notified when a change is over.
    changed: Condvar,
    pub(in crate::memory) offer: Offer,
    pub(in crate::memory) times: Mutex<SleepTimes>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum SleepChange {
    Sleep,
    Wake,
}

/// A change under way. Dropped before its end, it leaves the pool as it was.
#[derive(Debug)]
pub(in crate::memory) struct Change<'a> {
    sleep: &'a Sleep,
    /// Other threads wait for the end of the change, in the course of which callbacks are called.
    _in_hand: InHand,
    /// What is kept of the pool; none if it is to be awake.
    pub(in crate::memory) record: Option<Record>,
}

impl Sleep {
    pub(super) fn new(rules: &Rules) -> Self {
        let (is_made, wakes_on_use) = (rules.sleeps_for_others, rules.wakes_on_use);
        let offer = Offer { is_made, wakes_on_use, uses: AtomicU32::new(0) };
        Self { offer, ..Self::default() }
    }

    /// Returns whether the pool serves no request since it is asleep, falling asleep or waking.
    pub(crate) fn is_asleep(&self) -> bool {
        self.door.is_closed()
    }

    /// Returns whether other pools may take its free blocks: not if it is asleep, about to sleep or waking. The heap
    /// with the block is locked.
    pub(in crate::memory) fn may_serve_others(&self) -> bool {
        matches!(*lock(&self.phase), Phase::Awake | Phase::Changing { may_serve_others: true, .. })
    }

    /// Begins a change after any other; none if there is nothing to change. A pool about to sleep serves requests until
    /// [`Change::close`].
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if this thread is changing it already, or is in a callback and may not wait.
    pub(in crate::memory) fn begin(&self, wanted: SleepChange, thread: ThisThread) -> Result<Option<Change<'_>>> {
        let mut phase = self.lock_unchanging(thread)?;
        match (&*phase, wanted) {
            (Phase::Changing { .. }, _) => Err(within_itself()),
            (Phase::Awake, SleepChange::Wake) | (Phase::Asleep { .. }, SleepChange::Sleep) => Ok(None),
            _ => Ok(Some(self.change(&mut phase, wanted, thread))),
        }
    }

    fn change(&self, phase: &mut Phase, wanted: SleepChange, thread: ThisThread) -> Change<'_> {
        let may_serve_others = wanted == SleepChange::Sleep;
        let changing = Phase::Changing { thread: thread.number(), may_serve_others, is_to_let_go: false };
        let record = match mem::replace(phase, changing) {
            Phase::Asleep { record, .. } => Some(record),
            Phase::Awake | Phase::Changing { .. } => None,
        };
        Change { sleep: self, _in_hand: InHand::begin(), record }
    }

    /// Waits until no thread changes it, unless that is this one.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` in a callback that may not wait.
    pub(in crate::memory) fn wait_for_change(&self, thread: ThisThread) -> Result<()> {
        self.lock_unchanging(thread).map(drop)
    }

    /// Locks the phase once no other thread changes it.
    fn lock_unchanging(&self, thread: ThisThread) -> Result<MutexGuard<'_, Phase>> {
        let may_wait = MayWait::until("another thread has put the pool to sleep or woken it");
        let mut phase = lock(&self.phase);
        while matches!(&*phase, Phase::Changing { thread: changing, .. } if *changing != thread.number()) {
            phase = wait(&self.changed, &self.phase, phase, may_wait)?;
        }
        Ok(phase)
    }

    /// Takes what is kept of a pool that is asleep and not changing. Otherwise the thread that changes it finds
    /// [`Sleep::is_to_let_go`] once it has ended its change.
    pub(in crate::memory) fn try_change(&self, thread: ThisThread) -> Option<Change<'_>> {
        let mut phase = lock(&self.phase);
        match &mut *phase {
            Phase::Asleep { .. } => return Some(self.change(&mut phase, SleepChange::Wake, thread)),
            Phase::Changing { is_to_let_go, .. } => *is_to_let_go = true,
            Phase::Awake => {}
        }
        None
    }

    /// Returns whether a thread wanted to let go of what is kept while another one changed the pool, which is asleep.
    pub(in crate::memory) fn is_to_let_go(&self) -> bool {
        matches!(*lock(&self.phase), Phase::Asleep { is_to_let_go: true, .. })
    }

    /// Returns the bytes of its backup in pinned memory; none while it changes.
    pub(in crate::memory) fn backup_bytes(&self) -> u64 {
        match &*lock(&self.phase) {
            Phase::Asleep { record, .. } => record.backup_bytes(),
            Phase::Awake | Phase::Changing { .. } => 0,
        }
    }

    /// Returns whether the pool may have memory outside of caches, which the driver refused or which is coming back.
    pub(in crate::memory) fn keeps_memory(&self) -> bool {
        match &*lock(&self.phase) {
            Phase::Asleep { record, .. } => !record.kept.is_empty(),
            Phase::Changing { .. } => true,
            Phase::Awake => false,
        }
    }
}

impl Change<'_> {
    /// Allows or forbids other pools to take the pool's free blocks.
    pub(in crate::memory) fn let_serve_others(&self, may: bool) {
        if let Phase::Changing { may_serve_others, .. } = &mut *lock(&self.sleep.phase) {
            *may_serve_others = may;
        }
    }

    /// Makes the pool serve no request from now on.
    pub(in crate::memory) fn close(&self) {
        self.let_serve_others(false);
        // Sequentially consistent: a block is held for another process before this is read; holders are read after it
        // is set.
        self.sleep.door.close();
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        {
            let mut phase = lock(&self.sleep.phase);
            let is_to_let_go = matches!(*phase, Phase::Changing { is_to_let_go: true, .. });
            *phase = match self.record.take() {
                Some(record) => Phase::Asleep { record, is_to_let_go },
                None => {
                    self.sleep.door.open();
                    self.sleep.offer.let_go();
                    Phase::Awake
                }
            };
        }
        self.sleep.changed.notify_all();
    }
}

/// Returns the error of a call on a pool that was closed or put to sleep.
#[cold]
pub(in crate::memory) fn out_of_service(pool: &Pool) -> Error {
    if pool.is_closed() { closed(pool) } else { asleep(pool) }
}

#[cold]
pub(in crate::memory) fn asleep(pool: &Pool) -> Error {
    let device = pool.memory.location;
    let (name, wake) = if pool.is_default() {
        ("the default memory pool".to_owned(), "")
    } else {
        (format!("memory pool {}", pool.label()), "the pool's wake(), or ")
    };
    let number = device.number();
    ErrorKind::Asleep(format!(
        "{name} on {device} is asleep and serves no request: wake it first, by {wake}gpupool.wake({number})"
    ))
    .into()
}

#[cold]
fn within_itself() -> Error {
    Error::invalid_value(
        "a callback that was asked for memory to wake a pool puts the same pool to sleep, or wakes it: leave that pool alone \
         there",
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pool_in_use_is_not_taken_and_one_that_is_taken_says_so() {
        let offer = Offer::default();
        assert!(!offer.begin_use() && offer.is_in_use());
        assert!(!offer.take() && !offer.is_taken());
        offer.end_use();
        assert!(offer.take() && offer.begin_use());
        offer.let_go();
        assert!(!offer.is_taken() && offer.is_in_use());
    }
}
