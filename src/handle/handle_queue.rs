//! The handles of a pool on one device, and the requests that wait for one. A handle's own word says who has it, so
//! that a thread gives one back, and takes the same again, without a lock. While a request waits, one lock keeps the
//! order: first come, first served. The queue knows of handles only that they have such a word, so that every
//! interleaving can be tried with numbers.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::error::OneLine;
use crate::sync::{
    AtomicU64, AtomicUsize, Condvar, Interrupted, Interruption, Mutex, MutexGuard, Ordering, ThisThread, fence, lock,
    wait_until,
};

/// How a handle is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HoldKind {
    /// By a thread until it ends.
    Window = 1,
    /// By a lease until that ends.
    Lease = 2,
}

/// The holder of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holder {
    pub(super) hold: HoldKind,
    /// The thread that requested it, by its `gettid`.
    thread: u32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.hold {
            HoldKind::Window => "thread ",
            HoldKind::Lease => "a lease of thread ",
        })?;
        match std::fs::read_to_string(format!("/proc/self/task/{}/comm", self.thread)) {
            Ok(name) => write!(f, "{} ({})", self.thread, OneLine(name.trim_end())),
            Err(_) => write!(f, "{} (ended)", self.thread),
        }
    }
}

/// Nobody has it.
const IDLE: u64 = 0;
/// The same, and it was given back since a request last looked for one of an inactive thread: its thread probably takes
/// it again.
const IDLE_ACTIVE: u64 = 1;
/// A request has it, or who removed it. Above these values are the holders: the thread's number, and from bit 32 on
/// how.
const TAKEN: u64 = 2;

/// Who has a handle. Whoever has it writes it, and others only take it while it is idle.
#[derive(Debug)]
pub(super) struct HandleState {
    word: AtomicU64,
}

impl HandleState {
    /// That of a new handle, which its maker has.
    pub(super) fn new() -> Self {
        Self { word: AtomicU64::new(TAKEN) }
    }

    /// Takes the handle if it is idle, and returns whether it was.
    #[inline]
    pub(super) fn take(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word <= IDLE_ACTIVE && self.exchange(word, TAKEN)
    }

    /// Takes the handle if it is idle and its thread was not active since the last call.
    pub(super) fn take_unless_active(&self) -> bool {
        !self.exchange(IDLE_ACTIVE, IDLE) && self.exchange(IDLE, TAKEN)
    }

    #[inline]
    fn exchange(&self, current: u64, next: u64) -> bool {
        // Acquires what the former holder released.
        self.word.compare_exchange(current, next, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Makes the handle idle.
    pub(super) fn release(&self) {
        self.word.store(IDLE, Ordering::Release);
    }

    /// The same, by a thread that probably takes it again.
    #[inline]
    pub(super) fn release_active(&self) {
        self.word.store(IDLE_ACTIVE, Ordering::Release);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.word.load(Ordering::Relaxed) <= IDLE_ACTIVE
    }

    /// Notes that the calling thread holds the handle, which it has taken.
    #[inline]
    pub(super) fn hold(&self, hold: HoldKind) {
        let thread = u64::from(ThisThread::get().system_id());
        self.word.store((hold as u64) << 32 | thread, Ordering::Relaxed);
    }

    /// Returns the handle's holder; none while it is idle, or a request makes it ready.
    pub(super) fn holder(&self) -> Option<Holder> {
        let word = self.word.load(Ordering::Relaxed);
        let hold = if word >> 32 == HoldKind::Lease as u64 { HoldKind::Lease } else { HoldKind::Window };
        (word > TAKEN).then_some(Holder { hold, thread: word as u32 })
    }
}

/// What is in a queue.
pub(super) trait Queued {
    fn state(&self) -> &HandleState;
}

/// What a request that waited gets.
#[derive(Debug)]
pub(super) enum Turn<T> {
    /// A handle, taken.
    Handle(Arc<T>),
    /// Room for a new one, to be ended with [`HandleQueue::leave_room`] if none is made.
    Room,
}

#[derive(Debug)]
struct Waiter<T> {
    is_served: Arc<Condvar>,
    turn: Option<Turn<T>>,
}

#[derive(Debug)]
struct QueueState<T> {
    all: Vec<Arc<T>>,
    /// How many are being made.
    rooms: usize,
    /// The most of both; `usize::MAX` without a limit.
    limit: usize,
    /// In the order in which they came; also those that are served and have not noticed it.
    waiters: Vec<Waiter<T>>,
}

impl<T> QueueState<T> {
    fn is_full(&self) -> bool {
        self.all.len() + self.rooms >= self.limit
    }
}

#[derive(Debug)]
pub(super) struct HandleQueue<T> {
    /// How many requests wait, for readers without the lock.
    waiting: AtomicUsize,
    state: Mutex<QueueState<T>>,
}

impl<T: Queued> HandleQueue<T> {
    pub(super) fn new(limit: usize) -> Self {
        let state = QueueState { all: Vec::new(), rooms: 0, limit, waiters: Vec::new() };
        Self { waiting: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        lock(&self.state)
    }

    /// Takes a handle that the thread gave back, if it is idle still and no request waits.
    #[inline]
    pub(super) fn take_again(&self, item: &T) -> bool {
        // Relaxed: a request that just begins to wait looks at all handles itself.
        self.waiting.load(Ordering::Relaxed) == 0 && item.state().take()
    }

    /// Notes that a handle has become idle: the first waiting request gets it.
    #[inline]
    pub(super) fn note_idle(&self) {
        // Either this sees the request's count, or the request, which counts itself first, sees the idle handle.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.serve(&mut self.lock());
        }
    }

    /// Takes an idle handle, preferably of a thread that does not take its own again and again: that one would come
    /// here at once, and take another's.
    fn take_any(state: &QueueState<T>) -> Option<Arc<T>> {
        let is_of_inactive = |item: &&Arc<T>| item.state().take_unless_active();
        let inactive = state.all.iter().rfind(is_of_inactive);
        inactive.or_else(|| state.all.iter().rfind(|item| item.state().take())).cloned()
    }

    /// Serves waiting requests in order, while there are handles or room.
    fn serve(&self, state: &mut QueueState<T>) {
        while let Some(place) = state.waiters.iter().position(|waiter| waiter.turn.is_none()) {
            let turn = match Self::take_any(state) {
                Some(item) => Turn::Handle(item),
                None if !state.is_full() => {
                    state.rooms += 1;
                    Turn::Room
                }
                None => return,
            };
            let waiter = &mut state.waiters[place];
            waiter.turn = Some(turn);
            waiter.is_served.notify_one();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes an idle handle, one that it `prefers` if there is one; none if others wait for it.
    pub(super) fn take(&self, prefers: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let state = self.lock();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let preferred = state.all.iter().rfind(|item| prefers(item) && item.state().take());
        preferred.cloned().or_else(|| Self::take_any(&state))
    }

    /// Waits in the queue until the deadline, and returns what the request was given.
    ///
    /// # Errors
    /// [`Interrupted`] if the wait was, and the request has nothing.
    pub(super) fn wait(
        &self,
        deadline: Instant,
        mut interruption: Interruption<'_>,
    ) -> Result<Option<Turn<T>>, Interrupted> {
        let is_served = Arc::new(Condvar::new());
        let mut state = self.lock();
        state.waiters.push(Waiter { is_served: Arc::clone(&is_served), turn: None });
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // For what was given back since the request looked for it.
        self.serve(&mut state);
        let (mut is_interrupted, mut next_check) = (false, interruption.next(deadline));
        let turn = loop {
            let is_over = is_interrupted || Instant::now() >= deadline;
            let is_own = |waiter: &mut Waiter<T>| Arc::ptr_eq(&waiter.is_served, &is_served);
            let has_ended = |waiter: &mut Waiter<T>| is_own(waiter) && (is_over || waiter.turn.is_some());
            if let Some(ended) = state.waiters.extract_if(.., has_ended).next() {
                break ended.turn;
            }
            state = match wait_until(&is_served, state, next_check) {
                Ok(state) => state,
                Err(state) => {
                    // The request keeps its place during the check.
                    drop(state);
                    is_interrupted = interruption.is_due();
                    next_check = interruption.next(deadline);
                    self.lock()
                }
            };
        };
        if turn.is_none() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        if !is_interrupted {
            return Ok(turn);
        }
        match turn {
            Some(Turn::Handle(item)) => item.state().release(),
            Some(Turn::Room) => state.rooms -= 1,
            None => {}
        }
        self.serve(&mut state);
        Err(Interrupted)
    }

    /// Makes room for a new handle, and returns whether there was any.
    pub(super) fn make_room(&self) -> bool {
        let mut state = self.lock();
        let has_room = !state.is_full();
        state.rooms += usize::from(has_room);
        has_room
    }

    /// Gives up the room of a handle that was not made, or is gone.
    pub(super) fn leave_room(&self) {
        let mut state = self.lock();
        state.rooms -= 1;
        self.serve(&mut state);
    }

    /// Adds a handle that was made in the room for it. Who made it has it.
    pub(super) fn add(&self, item: Arc<T>) {
        let mut state = self.lock();
        state.rooms -= 1;
        state.all.push(item);
    }

    /// Removes a handle that the caller has, who has its room then.
    pub(super) fn remove(&self, item: &Arc<T>) {
        let mut state = self.lock();
        state.all.retain(|other| !Arc::ptr_eq(other, item));
        state.rooms += 1;
    }

    /// Removes every idle handle, and its room, but for those that a thread has in hand still as it gives them back.
    pub(super) fn remove_idle(&self) -> Vec<Arc<T>> {
        let mut state = self.lock();
        let idle = state.all.extract_if(.., |item| Arc::strong_count(item) == 1 && item.state().take()).collect();
        self.serve(&mut state);
        idle
    }

    /// Runs `look` on all handles.
    pub(super) fn with_all<R>(&self, look: impl FnOnce(&[Arc<T>]) -> R) -> R {
        look(&self.lock().all)
    }

    pub(super) fn idle_count(&self) -> usize {
        self.with_all(|all| all.iter().filter(|item| item.state().is_idle()).count())
    }

    /// Returns whether the limit allows no further handle.
    pub(super) fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    pub(super) fn limit(&self) -> usize {
        self.lock().limit
    }

    /// Sets the most handles there may be; `usize::MAX` for no limit.
    pub(super) fn set_limit(&self, limit: usize) {
        let mut state = self.lock();
        state.limit = limit;
        self.serve(&mut state);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Arc, HandleQueue, HandleState, Queued};

    impl Queued for HandleState {
        fn state(&self) -> &HandleState {
            self
        }
    }

    /// A thread that leases again and again, a step at a time.
    #[derive(Default)]
    struct Worker {
        leased: Option<Arc<HandleState>>,
        given_back: Option<Arc<HandleState>>,
        /// Steps until a request that did not find its handle at once has reached the others' handles.
        away: usize,
    }

    /// Does one step of a worker; returns whether it took a handle that another gave back.
    fn step(queue: &HandleQueue<HandleState>, worker: &mut Worker) -> bool {
        if let Some(handle) = worker.leased.take() {
            handle.release_active();
            queue.note_idle();
            worker.given_back = Some(handle);
            return false;
        }
        if worker.away == 0 {
            worker.leased = worker.given_back.clone().filter(|handle| queue.take_again(handle));
            worker.away = if worker.leased.is_none() { 20 } else { 0 };
            return false;
        }
        worker.away -= 1;
        if worker.away == 0 {
            worker.leased = queue.take(|_| false);
        }
        worker.leased.is_some()
    }

    #[test]
    #[cfg_attr(miri, ignore = "200,000 turns, and nothing unsafe")]
    fn handles_of_threads_that_are_gone_are_taken_before_those_of_threads_at_work() {
        const WORKERS: usize = 16;
        let queue = HandleQueue::new(usize::MAX);
        for _ in 0..WORKERS {
            assert!(queue.make_room());
            let of_gone = Arc::new(HandleState::new());
            queue.add(Arc::clone(&of_gone));
            of_gone.release_active();
        }
        let mut workers: [Worker; WORKERS] = std::array::from_fn(|_| Worker::default());
        let (mut random, mut taken) = (1_u64, 0);
        for turn in 0..200_000 {
            // Knuth's linear congruential generator, so that every run takes the same turns.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // They come one after another.
            let worker = (random >> 33) as usize % WORKERS.min(1 + turn / 100);
            taken += usize::from(step(&queue, &mut workers[worker]));
        }
        assert!((WORKERS..2 * WORKERS).contains(&taken), "{taken} handles were taken for {WORKERS} threads");
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::time::{Duration, Instant};

    use loom::sync::Arc as LoomArc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    use super::{Arc, HandleQueue, HandleState, Interruption, Queued, Turn};

    #[derive(Debug)]
    struct Numbered {
        state: HandleState,
        /// Written only by the thread that has it, without an order of its own.
        uses: AtomicUsize,
    }

    impl Queued for Numbered {
        fn state(&self) -> &HandleState {
            &self.state
        }
    }

    fn never() -> Instant {
        Instant::now() + Duration::from_secs(1 << 30)
    }

    fn at_once() -> Instant {
        Instant::now()
    }

    fn made() -> Arc<Numbered> {
        Arc::new(Numbered { state: HandleState::new(), uses: AtomicUsize::new(0) })
    }

    /// Returns a queue with one idle handle, which is its limit, and the handle.
    fn one_handle() -> (LoomArc<HandleQueue<Numbered>>, Arc<Numbered>) {
        let (queue, handle) = (HandleQueue::new(1), made());
        assert!(queue.make_room());
        queue.add(Arc::clone(&handle));
        give_back(&queue, &handle);
        (LoomArc::new(queue), handle)
    }

    fn give_back(queue: &HandleQueue<Numbered>, handle: &Numbered) {
        handle.state.release_active();
        queue.note_idle();
    }

    /// Uses a handle that no other thread may use: it sees all uses before.
    fn use_alone(handle: &Numbered, uses: &AtomicUsize) {
        let before = handle.uses.load(Ordering::Relaxed);
        assert_eq!(before, uses.fetch_add(1, Ordering::Relaxed), "a use is not seen, or at the same time");
        handle.uses.store(before + 1, Ordering::Relaxed);
    }

    fn take(queue: &HandleQueue<Numbered>, deadline: fn() -> Instant) -> Option<Turn<Numbered>> {
        let idle = queue.take(|_| false).map(Turn::Handle);
        idle.or_else(|| queue.wait(deadline(), Interruption::default()).unwrap())
    }

    /// Leases the thread's own handle if it is idle, or any.
    fn lease(
        queue: &HandleQueue<Numbered>,
        own: &Arc<Numbered>,
        uses: &AtomicUsize,
        deadline: fn() -> Instant,
    ) -> bool {
        let again = queue.take_again(own).then(|| Turn::Handle(Arc::clone(own)));
        match again.or_else(|| take(queue, deadline)) {
            Some(Turn::Handle(handle)) => {
                use_alone(&handle, uses);
                give_back(queue, &handle);
                true
            }
            Some(Turn::Room) => panic!("there is one handle already"),
            None => false,
        }
    }

    fn in_two_threads(deadline: fn() -> Instant) {
        let ((queue, own), uses) = (one_handle(), LoomArc::new(AtomicUsize::new(0)));
        let (other, its_own, its_uses) = (LoomArc::clone(&queue), Arc::clone(&own), LoomArc::clone(&uses));
        let thread = thread::spawn(move || lease(&other, &its_own, &its_uses, deadline));
        assert!(lease(&queue, &own, &uses, never));
        let was_served = thread.join().unwrap();
        assert!(was_served || deadline() < never());
        assert_eq!((queue.idle_count(), uses.load(Ordering::Relaxed)), (1, 1 + usize::from(was_served)));
    }

    #[test]
    fn no_wake_up_is_lost_and_no_handle_is_shared() {
        loom::model(|| in_two_threads(never));
    }

    #[test]
    fn a_request_that_gives_up_loses_no_handle() {
        loom::model(|| in_two_threads(at_once));
    }

    #[test]
    fn a_request_that_is_interrupted_loses_no_handle() {
        loom::model(|| {
            let ((queue, own), uses) = (one_handle(), AtomicUsize::new(0));
            let other = LoomArc::clone(&queue);
            let thread = thread::spawn(move || {
                let wait = || other.wait(never(), Interruption::when(&mut || true)).unwrap_or_default();
                match other.take(|_| false).map(Turn::Handle).or_else(wait) {
                    Some(Turn::Handle(handle)) => give_back(&other, &handle),
                    Some(Turn::Room) => panic!("there is one handle already"),
                    None => {}
                }
            });
            assert!(lease(&queue, &own, &uses, never));
            thread.join().unwrap();
            assert_eq!(queue.idle_count(), 1);
        });
    }

    #[test]
    fn room_that_is_left_goes_to_the_request_that_waits() {
        loom::model(|| {
            let queue = LoomArc::new(HandleQueue::<Numbered>::new(1));
            assert!(queue.make_room());
            let other = LoomArc::clone(&queue);
            let thread = thread::spawn(move || {
                assert!(matches!(take(&other, never), Some(Turn::Room)));
                let handle = made();
                other.add(Arc::clone(&handle));
                give_back(&other, &handle);
            });
            // A creation that failed.
            queue.leave_room();
            thread.join().unwrap();
            assert_eq!(queue.remove_idle().len(), 1);
        });
    }
}
