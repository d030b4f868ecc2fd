//! Memory under way: taken out of one place by a thread, and not yet in another. No search finds it, so a request that
//! finds nothing waits for it and searches again before it fails. A thread with memory under way holds an [`UnderWay`].
//! Requests search again one after another, each with one that repeats: a search has memory under way itself, so that many at
//! once would always find that some was. No request waits for either during [`call_out`]: a callback may take long, or wait
//! for the very thread whose request would wait.

use std::cell::Cell;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard};

use log::{Level, log, log_enabled};

use crate::ids::MemoryLocation;
use crate::observe::target::MEMORY;
use crate::process;
use crate::sync::{CallbackKind, ThisThread, ThreadNumber, in_callback, lock, wait_for_driver};

thread_local! {
    /// How many moves and repeats the calling thread is in: more than one repeat if it calls out in one.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// All moves of the process, since a thread may be in moves of several devices when it calls out.
static MOVES: Mutex<ProcessMoves> = Mutex::new(ProcessMoves { begun: 0, under_way: Vec::new() });
/// Notified when a move or a repeat ends, or calls out.
static CHANGED: Condvar = Condvar::new();

#[derive(Debug)]
struct ProcessMoves {
    begun: u64,
    under_way: Vec<Move>,
}

#[derive(Debug)]
struct Move {
    /// How many had begun with it.
    number: u64,
    location: MemoryLocation,
    thread: ThreadNumber,
    /// How many nested callbacks its thread is in.
    callbacks: u32,
    state: MoveState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MoveState {
    /// Its thread has memory under way.
    Moving,
    /// The same, and the thread waits for those of others.
    Waiting,
    /// It moves no memory: by repeats requests wait for each other.
    Repeating,
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

/// Marks that a thread has memory under way, or that a request searches once more, alone while its thread does not call
/// out; as long as this lives.
#[must_use = "it ends when this is dropped"]
#[derive(Debug)]
pub(in crate::memory) struct UnderWay {
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

    pub(in crate::memory) fn begin(&self) -> UnderWay {
        let thread = ThisThread::get().number();
        let mut moves = lock(&MOVES);
        let moving = moves.begin(self.location, thread, MoveState::Moving);
        let mut begun = lock(&self.begun);
        if begun.thread != Some(thread) {
            begun.last_of_others = begun.last;
        }
        (begun.last, begun.thread) = (moving.number, Some(thread));
        moving
    }

    /// Waits for the end of all moves that other threads have begun, but not for those that call out. None if the
    /// calling thread is in a move itself, since others may wait for that, unless it is in a callback of all its moves.
    pub(in crate::memory) fn wait(&self) -> Option<Moment> {
        let thread = ThisThread::get().number();
        let moves = lock(&MOVES);
        if moves.of(thread).any(|one| one.callbacks == 0) {
            return None;
        }
        Some(self.wait_for(moves, thread, Move::moves))
    }

    /// As [`MovesUnderWay::wait`], on a thread that is in one move and holds nothing that another mover waits for. Such
    /// threads do not wait for each other. None on any other thread.
    pub(in crate::memory) fn wait_with_own(&self) -> Option<Moment> {
        let thread = ThisThread::get().number();
        let mut moves = lock(&MOVES);
        if moves.of(thread).count() != 1 {
            return None;
        }
        moves.each_own(thread, |one| one.set_state(MoveState::Waiting));
        CHANGED.notify_all();
        let moment = self.wait_for(moves, thread, |one| one.state == MoveState::Moving);
        lock(&MOVES).each_own(thread, |one| one.set_state(MoveState::Moving));
        Some(moment)
    }

    /// Waits until those that are meant and have begun by now have ended, or call out: until then they wait for the driver
    /// alone.
    fn wait_for(
        &self,
        moves: MutexGuard<'_, ProcessMoves>,
        thread: ThreadNumber,
        is_meant: impl Fn(&Move) -> bool,
    ) -> Moment {
        let begun = moves.begun;
        let moves = self.wait_while(moves, |one| one.number <= begun && is_meant(one));
        let is_quiet = !moves.at(self.location).any(|one| one.thread != thread);
        Moment { last: self.last_of_others(), is_quiet }
    }

    fn wait_while<'a>(
        &self,
        mut moves: MutexGuard<'a, ProcessMoves>,
        is_meant: impl Fn(&Move) -> bool,
    ) -> MutexGuard<'a, ProcessMoves> {
        let is_waited_for = |one: &Move| one.location == self.location && one.callbacks == 0 && is_meant(one);
        while moves.under_way.iter().any(is_waited_for) {
            moves = wait_for_driver(&CHANGED, &MOVES, moves);
        }
        moves
    }

    /// Waits until no other request searches again on the device, but not for one that calls out. None if the calling
    /// thread is in a move, which others may wait for.
    pub(in crate::memory) fn repeat(&self) -> Option<UnderWay> {
        let thread = ThisThread::get().number();
        let moves = lock(&MOVES);
        if moves.of(thread).next().is_some() {
            return None;
        }
        let mut moves = self.wait_while(moves, |one| one.state == MoveState::Repeating);
        Some(moves.begin(self.location, thread, MoveState::Repeating))
    }

    /// Returns whether a thread that has memory under way has called out, which nobody waits for.
    pub(in crate::memory) fn has_called_out(&self) -> bool {
        lock(&MOVES).at(self.location).any(|one| one.callbacks > 0)
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

impl Move {
    /// Returns whether it is of memory.
    fn moves(&self) -> bool {
        self.state != MoveState::Repeating
    }

    /// Sets the state, unless it is a repeat.
    fn set_state(&mut self, state: MoveState) {
        if self.moves() {
            self.state = state;
        }
    }
}

impl ProcessMoves {
    fn begin(&mut self, location: MemoryLocation, thread: ThreadNumber, state: MoveState) -> UnderWay {
        OWN.set(OWN.get() + 1);
        self.begun += 1;
        self.under_way.push(Move { number: self.begun, location, thread, callbacks: 0, state });
        UnderWay { number: self.begun }
    }

    /// Returns the moves of a device's memory.
    fn at(&self, location: MemoryLocation) -> impl Iterator<Item = &Move> {
        self.under_way.iter().filter(move |one| one.moves() && one.location == location)
    }

    /// Returns the moves that a thread is in.
    fn of(&self, thread: ThreadNumber) -> impl Iterator<Item = &Move> {
        self.under_way.iter().filter(move |one| one.moves() && one.thread == thread)
    }

    /// Changes all that a thread is in, repeats too.
    fn each_own(&mut self, thread: ThreadNumber, change: impl Fn(&mut Move)) {
        self.under_way.iter_mut().filter(|one| one.thread == thread).for_each(change);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
        if process::is_forked() {
            // A callback has forked: in the child the lock may be held for ever.
            return;
        }
        lock(&MOVES).under_way.retain(|one| one.number != self.number);
        CHANGED.notify_all();
    }
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
                lock(&MOVES).each_own(self.0, |one| one.callbacks -= 1);
            }
        }
    }
    if OWN.get() == 0 {
        return in_callback(kind, call);
    }
    let called = Called(ThisThread::get().number());
    lock(&MOVES).each_own(called.0, |one| one.callbacks += 1);
    CHANGED.notify_all();
    in_callback(kind, call)
}
