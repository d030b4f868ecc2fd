//! Memory under way: taken out of one place by a thread, and not yet in another. No search finds it, so a request that
//! finds nothing waits for it and searches again before it fails. A thread with memory under way holds a [`Moving`].
//! Requests search again one after another, each with a [`Repeat`]: a search has memory under way itself, so that many at
//! once would always find that some was. No request waits for either during [`call_out`]: a callback may take long, or
//! wait for the very thread whose request would wait.

use std::cell::Cell;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard};

use log::{Level, log, log_enabled};

use crate::ids::MemoryLocation;
use crate::observe::target::MEMORY;
use crate::process;
use crate::sync::{CallbackKind, ThisThread, ThreadNumber, in_callback, lock, wait_for_driver};

thread_local! {
    /// How many moves the calling thread is in.
    static OWN: Cell<u32> = const { Cell::new(0) };
    /// How many repeats the calling thread is in: more than one if it calls out in one.
    static OWN_REPEATS: Cell<u32> = const { Cell::new(0) };
}

/// All moves of the process, since a thread may be in moves of several devices when it calls out.
static MOVES: Mutex<ProcessMoves> = Mutex::new(ProcessMoves { begun: 0, under_way: Vec::new(), repeats: Vec::new() });
/// Notified when a move or a repeat ends, or calls out.
static CHANGED: Condvar = Condvar::new();

#[derive(Debug)]
struct ProcessMoves {
    begun: u64,
    under_way: Vec<Move>,
    /// Moves of no memory, by which requests wait for each other.
    repeats: Vec<Move>,
}

#[derive(Debug)]
struct Move {
    /// How many had begun with it.
    number: u64,
    location: MemoryLocation,
    thread: ThreadNumber,
    /// How many nested callbacks its thread is in.
    callbacks: u32,
    /// Whether its thread waits for those of others.
    waits: bool,
}

#[derive(Debug)]
pub(in crate::memory) struct MovesUnderWay {
    location: MemoryLocation,
    begun: Mutex<LastMoves>,
}

/// The numbers of the newest moves.
#[derive(Clone, Copy, Default, Debug)]
struct LastMoves {
    last: u64,
    /// The thread that began the newest.
    thread: Option<ThreadNumber>,
    /// The newest of any other thread.
    last_of_others: u64,
}

/// Marks that a thread has memory under way, as long as this lives.
#[derive(Debug)]
pub(in crate::memory) struct Moving {
    number: u64,
}

/// Marks that a request searches once more, alone as long as this lives and its thread does not call out.
#[must_use = "it ends when this is dropped"]
#[derive(Debug)]
pub(in crate::memory) struct Repeat {
    number: u64,
}

/// What was under way at a moment.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Moment {
    /// The newest move of another thread.
    last: u64,
    is_quiet: bool,
}

impl MovesUnderWay {
    pub(in crate::memory) fn new(location: MemoryLocation) -> Self {
        Self { location, begun: Mutex::default() }
    }

    pub(in crate::memory) fn begin(&self) -> Moving {
        let thread = ThisThread::get().number();
        OWN.set(OWN.get() + 1);
        let mut moves = lock(&MOVES);
        let begins = moves.next(self.location, thread);
        let number = begins.number;
        moves.under_way.push(begins);
        let mut begun = lock(&self.begun);
        if begun.thread != Some(thread) {
            begun.last_of_others = begun.last;
        }
        (begun.last, begun.thread) = (number, Some(thread));
        Moving { number }
    }

    /// Waits for the end of all moves that other threads have begun, but not for those that call out. None if the
    /// calling thread is in a move itself, since others may wait for that, unless it is in a callback of all its moves.
    pub(in crate::memory) fn wait(&self) -> Option<Moment> {
        let thread = ThisThread::get().number();
        let moves = lock(&MOVES);
        if OWN.get() > 0 && moves.under_way.iter().any(|one| one.thread == thread && one.callbacks == 0) {
            return None;
        }
        let moves = self.wait_for(moves, |_| true);
        Some(self.moment(&moves, thread))
    }

    fn moment(&self, moves: &ProcessMoves, thread: ThreadNumber) -> Moment {
        let is_quiet = !moves.under_way.iter().any(|one| one.location == self.location && one.thread != thread);
        Moment { last: self.last_of_others(), is_quiet }
    }

    /// Returns whether a thread that has memory under way has called out, which nobody waits for.
    pub(in crate::memory) fn has_called_out(&self) -> bool {
        lock(&MOVES).under_way.iter().any(|one| one.location == self.location && one.callbacks > 0)
    }

    /// As [`MovesUnderWay::wait`], on a thread that is in one move and holds nothing that another mover waits for. Such
    /// threads do not wait for each other. None on any other thread.
    pub(in crate::memory) fn wait_with_own(&self) -> Option<Moment> {
        if OWN.get() != 1 {
            return None;
        }
        let thread = ThisThread::get().number();
        own_moves(thread, |one| one.waits = true);
        CHANGED.notify_all();
        let moment = self.moment(&self.wait_for(lock(&MOVES), |one| !one.waits), thread);
        own_moves(thread, |one| one.waits = false);
        Some(moment)
    }

    /// Waits until no other request searches again on the device, but not for one that calls out. None if the calling
    /// thread is in a move, which others may wait for.
    pub(in crate::memory) fn repeat(&self) -> Option<Repeat> {
        if OWN.get() > 0 {
            return None;
        }
        let mut moves = lock(&MOVES);
        while moves.repeats.iter().any(|one| one.location == self.location && one.callbacks == 0) {
            moves = wait_for_driver(&CHANGED, &MOVES, moves);
        }
        let begins = moves.next(self.location, ThisThread::get().number());
        let number = begins.number;
        moves.repeats.push(begins);
        OWN_REPEATS.set(OWN_REPEATS.get() + 1);
        Some(Repeat { number })
    }

    /// Waits until the selected moves that have begun by now have ended, or call out: until then they wait for the driver
    /// alone.
    fn wait_for<'a>(
        &self,
        mut moves: MutexGuard<'a, ProcessMoves>,
        is_meant: impl Fn(&Move) -> bool,
    ) -> MutexGuard<'a, ProcessMoves> {
        let begun = moves.begun;
        let is_waited_for =
            |one: &Move| one.location == self.location && one.number <= begun && one.callbacks == 0 && is_meant(one);
        while moves.under_way.iter().any(is_waited_for) {
            moves = wait_for_driver(&CHANGED, &MOVES, moves);
        }
        moves
    }

    /// Returns whether nothing has been under way in other threads since a moment.
    pub(in crate::memory) fn was_quiet_since(&self, moment: Moment) -> bool {
        moment.is_quiet && self.last_of_others() == moment.last
    }

    /// Returns the newest move of another thread than the calling one.
    fn last_of_others(&self) -> u64 {
        let begun = *lock(&self.begun);
        if begun.thread == Some(ThisThread::get().number()) { begun.last_of_others } else { begun.last }
    }
}

impl ProcessMoves {
    fn next(&mut self, location: MemoryLocation, thread: ThreadNumber) -> Move {
        self.begun += 1;
        Move { number: self.begun, location, thread, callbacks: 0, waits: false }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
        end(|moves| &mut moves.under_way, self.number);
    }
}

impl Drop for Repeat {
    fn drop(&mut self) {
        OWN_REPEATS.set(OWN_REPEATS.get() - 1);
        end(|moves| &mut moves.repeats, self.number);
    }
}

fn end(list: impl FnOnce(&mut ProcessMoves) -> &mut Vec<Move>, number: u64) {
    if process::is_forked() {
        // A callback has forked: in the child the lock may be held for ever.
        return;
    }
    list(&mut lock(&MOVES)).retain(|one| one.number != number);
    CHANGED.notify_all();
}

/// Logs a line, in [`call_out`]: a logger is others' code, and may wait for a lock whose holder allocates.
pub(in crate::memory) fn log_out(level: Level, line: fmt::Arguments<'_>) {
    if log_enabled!(target: MEMORY, level) {
        call_out(CallbackKind::Logger, || log!(target: MEMORY, level, "{line}"));
    }
}

/// Calls others' code: a callback, an observer or an allocator. No thread waits meanwhile for this one's moves or repeat.
pub(crate) fn call_out<R>(kind: CallbackKind, call: impl FnOnce() -> R) -> R {
    /// Ends the call, also after a panic.
    struct Called(ThreadNumber);
    impl Drop for Called {
        fn drop(&mut self) {
            if !process::is_forked() {
                own_moves(self.0, |one| one.callbacks -= 1);
            }
        }
    }
    if OWN.get() == 0 && OWN_REPEATS.get() == 0 {
        return in_callback(kind, call);
    }
    let thread = ThisThread::get().number();
    own_moves(thread, |one| one.callbacks += 1);
    CHANGED.notify_all();
    let _called = Called(thread);
    in_callback(kind, call)
}

fn own_moves(thread: ThreadNumber, change: impl FnMut(&mut Move)) {
    let moves = &mut *lock(&MOVES);
    moves.under_way.iter_mut().chain(&mut moves.repeats).filter(|one| one.thread == thread).for_each(change);
}
