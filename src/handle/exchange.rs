//! The exchange: who gets an idle handle, and who waits for one.
//!
//! Where nobody waits, a handle changes hands through a thread's own slot, whose lock no other thread wants. Where somebody
//! does, one lock keeps the order: the first to come is the first to be served. Knows nothing of handles but that they are
//! shared, so that every interleaving can be tried with numbers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, wait_until};

/// Slots of a device's exchange. Threads are spread over them, so that each mostly meets its own.
#[cfg(not(loom))]
const SLOTS: usize = 32;
#[cfg(loom)]
const SLOTS: usize = 1;

/// A slot alone in its cache lines, so that threads do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Slot<T>(Mutex<Place<T>>);

/// What is in a slot.
#[derive(Debug)]
struct Place<T> {
    item: Option<Arc<T>>,
    /// Whether a handle was given back here since a request last looked for a spare one: its thread is at work, and will
    /// want it again.
    is_active: bool,
}

/// What a request gets.
#[derive(Debug)]
pub(super) enum Turn<T> {
    /// An idle handle.
    Handle(Arc<T>),
    /// Room for a new one, which ends with [`Exchange::leave_room`] if none is made.
    Room,
}

/// A request that waits.
#[derive(Debug)]
struct Waiter<T> {
    turn: Mutex<Option<Turn<T>>>,
    is_served: Condvar,
}

#[derive(Debug)]
struct State<T> {
    idle: Vec<Arc<T>>,
    waiters: VecDeque<Arc<Waiter<T>>>,
    /// Handles that there are, and those being made.
    live: usize,
    /// The most that there may be.
    limit: Option<usize>,
}

impl<T> State<T> {
    /// Whether there may be no further handle.
    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.live >= limit)
    }
}

/// The idle handles of a device and the requests that wait for one.
#[derive(Debug)]
pub(super) struct Exchange<T> {
    slots: [Slot<T>; SLOTS],
    /// How many wait, for those that do not lock.
    waiting: AtomicUsize,
    state: Mutex<State<T>>,
}

impl<T> Default for Exchange<T> {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| Slot(Mutex::new(Place { item: None, is_active: false }))),
            waiting: AtomicUsize::new(0),
            state: Mutex::new(State { idle: Vec::new(), waiters: VecDeque::new(), live: 0, limit: None }),
        }
    }
}

impl<T> Exchange<T> {
    fn take_slot(&self, slot: usize) -> Option<Arc<T>> {
        lock(&self.slots[slot].0).item.take()
    }

    /// The idle handle of a thread's own slot, if nobody waits. Whoever does not want it puts it back.
    #[inline]
    pub(super) fn take_near(&self, near: usize) -> Option<Arc<T>> {
        // Relaxed: a request that begins to wait just now looks into the slots itself.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        self.take_slot(near % SLOTS)
    }

    /// Gives a handle back: to the first who waits, else to whoever comes.
    #[inline]
    pub(super) fn put_near(&self, near: usize, item: Arc<T>) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return self.put(item);
        }
        let other = {
            let mut place = lock(&self.slots[near % SLOTS].0);
            place.is_active = true;
            place.item.replace(item)
        };
        if let Some(other) = other {
            self.put(other);
        }
        // The slot's lock orders this after the look of a request that has found the slot empty, so its count is seen.
        if self.waiting.load(Ordering::Relaxed) > 0
            && let Some(item) = self.take_slot(near % SLOTS)
        {
            self.put(item);
        }
    }

    /// As [`Exchange::put_near`] for a thread that ends, or one that brings many.
    pub(super) fn put(&self, item: Arc<T>) {
        let mut state = self.lock();
        state.idle.push(item);
        self.serve(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }

    /// Takes a handle out of any slot, if it is a fit one. Only one: whoever loses its own has to come here too.
    fn take_any_slot(&self, is_fit: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.slots.iter().find_map(|slot| lock(&slot.0).item.take_if(|item| is_fit(item)))
    }

    /// Takes a handle out of a slot, best of a thread that is no longer at work: one that is would come here at once, and
    /// take another's.
    fn take_spare_slot(&self) -> Option<Arc<T>> {
        let take_unless_active = |slot: &Slot<T>| {
            let mut place = lock(&slot.0);
            if std::mem::take(&mut place.is_active) { None } else { place.item.take() }
        };
        self.slots.iter().find_map(take_unless_active).or_else(|| self.take_any_slot(|_| true))
    }

    /// Serves those who wait, in order, as far as there are handles or room.
    fn serve(&self, state: &mut State<T>) {
        while let Some(waiter) = state.waiters.front() {
            let turn = match state.idle.pop().or_else(|| self.take_spare_slot()) {
                Some(item) => Turn::Handle(item),
                None if !state.is_full() => {
                    state.live += 1;
                    Turn::Room
                }
                None => return,
            };
            *lock(&waiter.turn) = Some(turn);
            waiter.is_served.notify_one();
            state.waiters.pop_front();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// An idle handle, one that `prefers` if there is one; else room for a new one. With all that there may be in use, waits
    /// until the deadline, and answers none then.
    pub(super) fn take(&self, prefers: impl Fn(&T) -> bool, deadline: impl FnOnce() -> Instant) -> Option<Turn<T>> {
        let waiter = {
            let mut state = self.lock();
            if state.waiters.is_empty()
                && let Some(turn) = self.turn(&mut state, &prefers)
            {
                return Some(turn);
            }
            let waiter = Arc::new(Waiter { turn: Mutex::new(None), is_served: Condvar::new() });
            state.waiters.push_back(Arc::clone(&waiter));
            self.waiting.fetch_add(1, Ordering::Relaxed);
            // Looks once more, for what was given back between the search and the line above.
            self.serve(&mut state);
            waiter
        };
        self.wait(&waiter, deadline())
    }

    /// An idle handle, one that `prefers` if there is one; none where others wait.
    pub(super) fn take_idle(&self, prefers: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mut state = self.lock();
        if state.waiters.is_empty() { self.find(&mut state, &prefers) } else { None }
    }

    fn find(&self, state: &mut State<T>, prefers: &impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let preferred = state.idle.iter().rposition(|item| prefers(item)).map(|index| state.idle.remove(index));
        preferred
            .or_else(|| self.take_any_slot(prefers))
            .or_else(|| state.idle.pop())
            .or_else(|| self.take_spare_slot())
    }

    fn turn(&self, state: &mut State<T>, prefers: &impl Fn(&T) -> bool) -> Option<Turn<T>> {
        if let Some(item) = self.find(state, prefers) {
            return Some(Turn::Handle(item));
        }
        if state.is_full() {
            return None;
        }
        state.live += 1;
        Some(Turn::Room)
    }

    fn wait(&self, waiter: &Arc<Waiter<T>>, deadline: Instant) -> Option<Turn<T>> {
        let mut turn = lock(&waiter.turn);
        loop {
            if let Some(turn) = turn.take() {
                return Some(turn);
            }
            match wait_until(&waiter.is_served, turn, deadline) {
                Ok(woken) => turn = woken,
                Err(still) => {
                    drop(still);
                    break;
                }
            }
        }
        // Under the lock, so that nobody serves this request after it has left.
        let mut state = self.lock();
        let place = state.waiters.iter().position(|other| Arc::ptr_eq(other, waiter));
        if let Some(place) = place {
            state.waiters.remove(place);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        drop(state);
        // It may have been served in the last moment.
        lock(&waiter.turn).take()
    }

    /// Room for a new handle, if there is any and nobody waits for it.
    pub(super) fn make_room(&self) -> bool {
        let mut state = self.lock();
        let has_room = !state.is_full();
        state.live += usize::from(has_room);
        has_room
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    /// Gives up room: a handle was not made, or is no more.
    pub(super) fn leave_room(&self, count: usize) {
        let mut state = self.lock();
        state.live -= count;
        self.serve(&mut state);
    }

    /// Takes every idle handle out for good; room for others is left.
    pub(super) fn remove_idle(&self) -> Vec<Arc<T>> {
        let mut state = self.lock();
        let mut idle = std::mem::take(&mut state.idle);
        idle.extend((0..SLOTS).filter_map(|slot| self.take_slot(slot)));
        state.live -= idle.len();
        self.serve(&mut state);
        idle
    }

    pub(super) fn idle_count(&self) -> usize {
        let state = self.lock();
        state.idle.len() + self.slots.iter().filter(|slot| lock(&slot.0).item.is_some()).count()
    }

    pub(super) fn limit(&self) -> Option<usize> {
        self.lock().limit
    }

    pub(super) fn set_limit(&self, limit: Option<usize>) {
        let mut state = self.lock();
        state.limit = limit;
        self.serve(&mut state);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Arc, Exchange, SLOTS};

    /// A thread that leases again and again, a step at a time.
    #[derive(Default)]
    struct Worker {
        leased: Option<Arc<usize>>,
        /// Steps until a request that did not find its handle at once has reached the others' handles.
        away: usize,
    }

    /// One more step of a worker; whether it took a handle out of another's slot.
    fn step(exchange: &Exchange<usize>, worker: &mut Worker, near: usize) -> bool {
        if let Some(handle) = worker.leased.take() {
            exchange.put_near(near, handle);
            return false;
        }
        if worker.away == 0 {
            worker.leased = exchange.take_near(near);
            worker.away = if worker.leased.is_none() { 20 } else { 0 };
            return false;
        }
        worker.away -= 1;
        if worker.away == 0 {
            worker.leased = exchange.take_idle(|_| false);
        }
        worker.leased.is_some()
    }

    #[test]
    fn handles_of_threads_that_are_gone_are_taken_before_those_of_threads_at_work() {
        const WORKERS: usize = SLOTS / 2;
        let exchange = Exchange::default();
        (WORKERS..SLOTS).for_each(|gone| exchange.put_near(gone, Arc::new(gone)));
        let mut workers: [Worker; WORKERS] = std::array::from_fn(|_| Worker::default());
        let (mut random, mut taken) = (1_u64, 0);
        for turn in 0..200_000 {
            // Knuth's linear congruential generator, so that every run takes the same turns.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // They come one after another.
            let near = (random >> 33) as usize % WORKERS.min(1 + turn / 100);
            taken += usize::from(step(&exchange, &mut workers[near], near));
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

    use super::{Arc, Exchange, Turn};

    fn never() -> Instant {
        Instant::now() + Duration::from_secs(1 << 30)
    }

    fn at_once() -> Instant {
        Instant::now()
    }

    /// An exchange of one idle handle, and no more allowed.
    fn one_handle() -> LoomArc<Exchange<AtomicUsize>> {
        let exchange = Exchange::default();
        exchange.set_limit(Some(1));
        assert!(exchange.make_room());
        exchange.put(Arc::new(AtomicUsize::new(0)));
        LoomArc::new(exchange)
    }

    /// Uses a handle that nobody else may be using.
    fn use_alone(handle: &AtomicUsize) {
        assert_eq!(handle.swap(1, Ordering::Relaxed), 0);
        handle.store(0, Ordering::Relaxed);
    }

    fn lease(exchange: &Exchange<AtomicUsize>, near: usize, deadline: fn() -> Instant) -> bool {
        let taken = exchange.take_near(near).map(Turn::Handle).or_else(|| exchange.take(|_| false, deadline));
        match taken {
            Some(Turn::Handle(handle)) => {
                use_alone(&handle);
                exchange.put_near(near, handle);
                true
            }
            Some(Turn::Room) => panic!("there is one handle already"),
            None => false,
        }
    }

    #[test]
    fn no_wake_up_is_lost_and_no_handle_is_shared() {
        loom::model(|| {
            let exchange = one_handle();
            let other = LoomArc::clone(&exchange);
            let thread = thread::spawn(move || assert!(lease(&other, 0, never)));
            assert!(lease(&exchange, 0, never));
            thread.join().unwrap();
            assert_eq!(exchange.idle_count(), 1);
        });
    }

    #[test]
    fn a_request_that_gives_up_leaves_its_turn_to_nobody() {
        loom::model(|| {
            let exchange = one_handle();
            let other = LoomArc::clone(&exchange);
            let thread = thread::spawn(move || lease(&other, 0, at_once));
            assert!(lease(&exchange, 0, never));
            thread.join().unwrap();
            assert_eq!(exchange.idle_count(), 1);
        });
    }

    #[test]
    fn room_that_is_left_goes_to_who_waits() {
        loom::model(|| {
            let exchange = LoomArc::new(Exchange::<AtomicUsize>::default());
            exchange.set_limit(Some(1));
            assert!(exchange.make_room());
            let other = LoomArc::clone(&exchange);
            let thread = thread::spawn(move || {
                assert!(matches!(other.take(|_| false, never), Some(Turn::Room)));
                other.put(Arc::new(AtomicUsize::new(0)));
            });
            // A creation that failed.
            exchange.leave_room(1);
            thread.join().unwrap();
            assert_eq!(exchange.remove_idle().len(), 1);
        });
    }
}
