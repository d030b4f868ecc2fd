//! Requests that threads leave for the holder of a lock that they wait for. With many threads most of the time goes to
//! fetching the guarded data from the core that had it last. So one of them, while it is there, answers the others too,
//! of which each then fetches only its answer.

use crate::sync::{AtomicU64, Ordering};

const PLACES: usize = if cfg!(loom) { 1 } else { 16 };

/// The low bits of a place: vacant, a request, an answer; the rest is the request's number or the answer.
const VACANT: u64 = 0;
const REQUEST: u64 = 1;
const ANSWER: u64 = 2;
const KIND: u64 = 3;
const KIND_BITS: u32 = 2;
/// The answer of no result.
const NOTHING: u64 = u64::MAX >> KIND_BITS;

/// A place for one request. It shares neither its cache line nor the next one, which processors fetch along.
#[derive(Debug, Default)]
#[repr(align(128))]
struct RequestSlot(AtomicU64);

/// Requests of a number each, with a number as the answer.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    places: [RequestSlot; PLACES],
}

#[derive(Debug)]
#[must_use = "a place is vacant again once the answer is taken"]
pub(crate) struct LeftRequest<'a>(&'a RequestSlot);

impl Requests {
    /// Leaves a request at a thread's place; none if another is there, or its number has too many bits.
    pub(crate) fn leave(&self, thread: u64, number: u64) -> Option<LeftRequest<'_>> {
        let place = &self.places[thread as usize % PLACES];
        if number > u64::MAX >> KIND_BITS {
            return None;
        }
        let request = number << KIND_BITS | REQUEST;
        // Acquire: pairs with the release of the place's last user.
        place.0.compare_exchange(VACANT, request, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(LeftRequest(place))
    }

    /// Answers each request with `answer` of its number. To be called with the lock that the requests wait for. Returns
    /// whether there were any.
    pub(crate) fn answer(&self, mut answer: impl FnMut(u64) -> Option<u64>) -> bool {
        // All are read before the first is answered, so that the cores that wrote them are queried in parallel. A
        // request stays unchanged while the lock is held.
        let states = self.places.each_ref().map(|place| place.0.load(Ordering::Acquire));
        let mut was_asked = false;
        for (place, state) in self.places.iter().zip(states).filter(|(_, state)| state & KIND == REQUEST) {
            was_asked = true;
            let answer = answer(state >> KIND_BITS);
            place.0.store(answer.unwrap_or(NOTHING) << KIND_BITS | ANSWER, Ordering::Release);
        }
        was_asked
    }
}

impl LeftRequest<'_> {
    /// Returns the answer, if there is one, which vacates the place.
    pub(crate) fn take_answer(&self) -> Option<Option<u64>> {
        let state = self.0.0.load(Ordering::Acquire);
        if state & KIND != ANSWER {
            return None;
        }
        self.0.0.store(VACANT, Ordering::Release);
        Some(Some(state >> KIND_BITS).filter(|&answer| answer != NOTHING))
    }

    /// Takes the answer, or withdraws the request. To be called with the lock that it waits for.
    pub(crate) fn take_back(self) -> Option<Option<u64>> {
        let answer = self.take_answer();
        if answer.is_none() {
            self.0.0.store(VACANT, Ordering::Release);
        }
        answer
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Requests;

    #[test]
    fn a_number_is_left_whole_or_not_at_all() {
        let requests = Requests::default();
        for number in [1 << 62, (1 << 62) + 512, u64::MAX] {
            assert!(requests.leave(1, number).is_none(), "{number}");
        }
        let request = requests.leave(1, (1 << 62) - 1);
        assert!(requests.answer(|number| Some(1).filter(|_| number == (1 << 62) - 1)));
        assert_eq!(request.and_then(|request| request.take_answer()), Some(Some(1)));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::model::Builder;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Arc, Mutex, MutexGuard};
    use loom::thread;

    use super::Requests;
    use crate::sync::lock;

    /// A lock, and requests to its holder: for the next number.
    #[derive(Default)]
    struct Numbers {
        next: Mutex<u64>,
        /// Whether a thread has the lock, since loom does not explore failures of `try_lock`.
        is_held: AtomicBool,
        requests: Requests,
    }

    impl Numbers {
        /// Takes the next number, and one for each request, and unlocks.
        fn take_and_answer(&self, mut next: MutexGuard<'_, u64>) -> u64 {
            self.is_held.store(true, Ordering::Relaxed);
            *next += 1;
            let taken = *next;
            self.requests.answer(|thread| {
                assert!((1..=3).contains(&thread));
                *next += 1;
                Some(*next)
            });
            self.is_held.store(false, Ordering::Relaxed);
            taken
        }

        fn take(&self, number: u64) -> u64 {
            if !self.is_held.load(Ordering::Relaxed) {
                return self.take_and_answer(lock(&self.next));
            }
            let request = self.requests.leave(number, number);
            if let Some(answer) = request.as_ref().and_then(|request| request.take_answer()) {
                return answer.unwrap();
            }
            let next = lock(&self.next);
            if let Some(answer) = request.and_then(|request| request.take_back()) {
                return answer.unwrap();
            }
            self.take_and_answer(next)
        }
    }

    #[test]
    fn each_of_three_threads_gets_a_number_of_its_own() {
        // All orders with three interruptions of threads take seconds; all others hours.
        let mut model = Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let numbers = Arc::new(Numbers::default());
            let others = [2, 3].map(|number| {
                let numbers = Arc::clone(&numbers);
                thread::spawn(move || numbers.take(number))
            });
            let mut taken = vec![numbers.take(1)];
            taken.extend(others.map(|thread| thread.join().unwrap()));
            taken.sort_unstable();
            assert_eq!(taken, [1, 2, 3]);
        });
    }
}
