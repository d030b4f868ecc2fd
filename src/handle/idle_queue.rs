//! The idle queue: idle handles, and the requests that wait for one. While no request waits, a handle is put into and taken
//! from a thread's own slot, whose lock no other thread wants. While one does, one lock keeps the order: first come, first
//! served. The queue knows of handles only that they are shared, so that every interleaving can be tried with numbers.

use std::sync::Arc;
use std::time::Instant;

use crate::sync::{
    AtomicUsize, Condvar, Interrupted, Interruption, Mutex, MutexGuard, Ordering, ThreadNumber, lock, wait_until,
};

/// Slots of a device's queue. Threads are spread over them, so that each mostly has its own: 16 busy threads, the most
/// in `lease, 16 threads` of benches/handle.rs, share none.
#[cfg(not(loom))]
const SLOTS: usize = 32;
#[cfg(loom)]
const SLOTS: usize = 1;

/// A slot alone in its cache lines, so that threads do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct IdleSlot<T> {
    content: Mutex<SlotContent<T>>,
}

#[derive(Debug)]
struct SlotContent<T> {
    item: Option<Arc<T>>,
    /// Whether a handle was returned here since a request last looked for an inactive slot: the slot's thread probably
    /// requests its handle again.
    is_active: bool,
}

/// What a request that waited gets.
#[derive(Debug)]
pub(super) enum Turn<T> {
    Handle(Arc<T>),
    /// Room for a new one, to be ended with [`IdleQueue::leave_room`] if none is made.
    Room,
}

/// A request that waits. It leaves the queue by itself, so that nothing given to it is lost.
#[derive(Debug)]
struct Waiter<T> {
    is_served: Arc<Condvar>,
    turn: Option<Turn<T>>,
}

#[derive(Debug)]
struct QueueState<T> {
    idle: Vec<Arc<T>>,
    /// In the order in which they came; also those that are served and have not noticed it.
    waiters: Vec<Waiter<T>>,
    /// Handles that exist, and those being made.
    live: usize,
    /// The most of them; `usize::MAX` without a limit.
    limit: usize,
}

#[derive(Debug)]
pub(super) struct IdleQueue<T> {
    slots: [IdleSlot<T>; SLOTS],
    /// How many requests wait, for readers without the lock.
    waiting: AtomicUsize,
    state: Mutex<QueueState<T>>,
}

impl<T> Default for IdleQueue<T> {
    fn default() -> Self {
        let empty = |_| IdleSlot { content: Mutex::new(SlotContent { item: None, is_active: false }) };
        Self {
            slots: std::array::from_fn(empty),
            waiting: AtomicUsize::new(0),
            state: Mutex::new(QueueState { idle: Vec::new(), waiters: Vec::new(), live: 0, limit: usize::MAX }),
        }
    }
}

impl<T> IdleQueue<T> {
    /// Returns the slot that the thread looks into first.
    #[inline]
    fn slot_of(&self, thread: ThreadNumber) -> &IdleSlot<T> {
        &self.slots[thread.get() as usize % SLOTS]
    }

    /// Returns the idle handle of the thread's own slot, if no request waits. A caller that does not want it puts it
    /// back.
    #[inline]
    pub(super) fn take_own(&self, thread: ThreadNumber) -> Option<Arc<T>> {
        // Relaxed: a request that just begins to wait looks into the slots itself.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        self.slot_of(thread).take()
    }

    /// Gives a handle back: to the first waiting request, else to the thread's own slot.
    #[inline]
    pub(super) fn put_own(&self, thread: ThreadNumber, item: Arc<T>) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return self.put(item);
        }
        let slot = self.slot_of(thread);
        let other = {
            let mut content = lock(&slot.content);
            content.is_active = true;
            content.item.replace(item)
        };
        if let Some(other) = other {
            self.put(other);
        }
        // The slot's lock orders this after the look of a request that has found the slot empty, so its count is seen.
        if self.waiting.load(Ordering::Relaxed) > 0
            && let Some(item) = slot.take()
        {
            self.put(item);
        }
    }

    /// As [`IdleQueue::put_own`], for a thread that ends, or one that brings many.
    pub(super) fn put(&self, item: Arc<T>) {
        let mut state = self.lock();
        state.idle.push(item);
        self.serve(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        lock(&self.state)
    }

    /// Takes a fit handle out of any slot. Only one: a thread that loses its own has to come here too.
    fn take_any_slot(&self, is_fit: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.slots.iter().find_map(|slot| lock(&slot.content).item.take_if(|item| is_fit(item)))
    }

    /// Takes a handle out of a slot, preferably of an inactive thread: an active one would come here at once, and take
    /// another's.
    fn take_inactive_slot(&self) -> Option<Arc<T>> {
        self.slots.iter().find_map(IdleSlot::take_unless_active).or_else(|| self.take_any_slot(|_| true))
    }

    /// Serves waiting requests in order, while there are handles or room.
    fn serve(&self, state: &mut QueueState<T>) {
        for waiter in state.waiters.iter_mut().filter(|waiter| waiter.turn.is_none()) {
            let turn = match state.idle.pop().or_else(|| self.take_inactive_slot()) {
                Some(item) => Turn::Handle(item),
                None if state.live < state.limit => {
                    state.live += 1;
                    Turn::Room
                }
                None => return,
            };
            waiter.turn = Some(turn);
            waiter.is_served.notify_one();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns an idle handle, one that it `prefers` if there is one; none if others wait for it.
    pub(super) fn take(&self, prefers: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mut state = self.lock();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let preferred = state.idle.iter().rposition(|item| prefers(item)).map(|index| state.idle.remove(index));
        preferred
            .or_else(|| self.take_any_slot(prefers))
            .or_else(|| state.idle.pop())
            .or_else(|| self.take_inactive_slot())
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
            Some(Turn::Handle(item)) => state.idle.push(item),
            Some(Turn::Room) => state.live -= 1,
            None => {}
        }
        self.serve(&mut state);
        Err(Interrupted)
    }

    /// Makes room for a new handle, and returns whether there was any.
    pub(super) fn make_room(&self) -> bool {
        let mut state = self.lock();
        let has_room = state.live < state.limit;
        state.live += usize::from(has_room);
        has_room
    }

    /// Gives up the room of a handle that was not made, or is gone.
    pub(super) fn leave_room(&self) {
        let mut state = self.lock();
        state.live -= 1;
        self.serve(&mut state);
    }

    /// Removes every idle handle, and its room.
    pub(super) fn remove_idle(&self) -> Vec<Arc<T>> {
        let mut state = self.lock();
        let mut idle = std::mem::take(&mut state.idle);
        idle.extend(self.slots.iter().filter_map(IdleSlot::take));
        state.live -= idle.len();
        self.serve(&mut state);
        idle
    }

    pub(super) fn idle_count(&self) -> usize {
        let state = self.lock();
        state.idle.len() + self.slots.iter().filter(|slot| lock(&slot.content).item.is_some()).count()
    }

    /// Returns whether the limit allows no further handle.
    pub(super) fn is_full(&self) -> bool {
        let state = self.lock();
        state.live >= state.limit
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

impl<T> IdleSlot<T> {
    #[inline]
    fn take(&self) -> Option<Arc<T>> {
        lock(&self.content).item.take()
    }

    /// Takes the handle out unless the slot's thread was active since the last call.
    fn take_unless_active(&self) -> Option<Arc<T>> {
        let mut content = lock(&self.content);
        if std::mem::take(&mut content.is_active) { None } else { content.item.take() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Arc, IdleQueue, SLOTS, ThreadNumber};

    /// A thread that leases again and again, a step at a time.
    #[derive(Default)]
    struct Worker {
        leased: Option<Arc<usize>>,
        /// Steps until a request that did not find its handle at once has reached the others' handles.
        away: usize,
    }

    fn thread(slot: usize) -> ThreadNumber {
        let number = (slot + SLOTS) as u64;
        ThreadNumber::from_word(number).unwrap_or_else(|| unreachable!("it is not 0"))
    }

    /// Does one step of a worker; returns whether it took a handle out of another's slot.
    fn step(queue: &IdleQueue<usize>, worker: &mut Worker, thread: ThreadNumber) -> bool {
        if let Some(handle) = worker.leased.take() {
            queue.put_own(thread, handle);
            return false;
        }
        if worker.away == 0 {
            worker.leased = queue.take_own(thread);
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
        const WORKERS: usize = SLOTS / 2;
        let queue = IdleQueue::default();
        (WORKERS..SLOTS).for_each(|gone| queue.put_own(thread(gone), Arc::new(gone)));
        let mut workers: [Worker; WORKERS] = std::array::from_fn(|_| Worker::default());
        let (mut random, mut taken) = (1_u64, 0);
        for turn in 0..200_000 {
            // Knuth's linear congruential generator, so that every run takes the same turns.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // They come one after another.
            let worker = (random >> 33) as usize % WORKERS.min(1 + turn / 100);
            taken += usize::from(step(&queue, &mut workers[worker], thread(worker)));
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

    use super::{Arc, IdleQueue, Interruption, ThreadNumber, Turn};

    fn first() -> ThreadNumber {
        ThreadNumber::from_word(1).unwrap()
    }

    fn never() -> Instant {
        Instant::now() + Duration::from_secs(1 << 30)
    }

    fn at_once() -> Instant {
        Instant::now()
    }

    /// Returns a queue with one idle handle, which is its limit.
    fn one_handle() -> LoomArc<IdleQueue<AtomicUsize>> {
        let queue = IdleQueue::default();
        queue.set_limit(1);
        assert!(queue.make_room());
        queue.put(Arc::new(AtomicUsize::new(0)));
        LoomArc::new(queue)
    }

    /// Uses a handle that no other thread may use.
    fn use_alone(handle: &AtomicUsize) {
        assert_eq!(handle.swap(1, Ordering::Relaxed), 0);
        handle.store(0, Ordering::Relaxed);
    }

    fn take(queue: &IdleQueue<AtomicUsize>, deadline: fn() -> Instant) -> Option<Turn<AtomicUsize>> {
        let idle = queue.take(|_| false).map(Turn::Handle);
        idle.or_else(|| queue.wait(deadline(), Interruption::default()).unwrap())
    }

    fn lease(queue: &IdleQueue<AtomicUsize>, thread: ThreadNumber, deadline: fn() -> Instant) -> bool {
        let taken = match queue.take_own(thread) {
            Some(handle) => Some(Turn::Handle(handle)),
            None => take(queue, deadline),
        };
        match taken {
            Some(Turn::Handle(handle)) => {
                use_alone(&handle);
                queue.put_own(thread, handle);
                true
            }
            Some(Turn::Room) => panic!("there is one handle already"),
            None => false,
        }
    }

    #[test]
    fn no_wake_up_is_lost_and_no_handle_is_shared() {
        loom::model(|| {
            let queue = one_handle();
            let other = LoomArc::clone(&queue);
            let thread = thread::spawn(move || assert!(lease(&other, first(), never)));
            assert!(lease(&queue, first(), never));
            thread.join().unwrap();
            assert_eq!(queue.idle_count(), 1);
        });
    }

    #[test]
    fn a_request_that_gives_up_loses_no_handle() {
        loom::model(|| {
            let queue = one_handle();
            let other = LoomArc::clone(&queue);
            let thread = thread::spawn(move || lease(&other, first(), at_once));
            assert!(lease(&queue, first(), never));
            thread.join().unwrap();
            assert_eq!(queue.idle_count(), 1);
        });
    }

    #[test]
    fn a_request_that_is_interrupted_loses_no_handle() {
        loom::model(|| {
            let queue = one_handle();
            let other = LoomArc::clone(&queue);
            let thread = thread::spawn(move || {
                let wait = || other.wait(never(), Interruption::when(&mut || true)).unwrap_or_default();
                match other.take(|_| false).map(Turn::Handle).or_else(wait) {
                    Some(Turn::Handle(handle)) => other.put(handle),
                    Some(Turn::Room) => panic!("there is one handle already"),
                    None => {}
                }
            });
            assert!(lease(&queue, first(), never));
            thread.join().unwrap();
            assert_eq!(queue.idle_count(), 1);
        });
    }

    #[test]
    fn room_that_is_left_goes_to_the_request_that_waits() {
        loom::model(|| {
            let queue = LoomArc::new(IdleQueue::<AtomicUsize>::default());
            queue.set_limit(1);
            assert!(queue.make_room());
            let other = LoomArc::clone(&queue);
            let thread = thread::spawn(move || {
                assert!(matches!(take(&other, never), Some(Turn::Room)));
                other.put(Arc::new(AtomicUsize::new(0)));
            });
            // A creation that failed.
            queue.leave_room();
            thread.join().unwrap();
            assert_eq!(queue.remove_idle().len(), 1);
        });
    }
}
