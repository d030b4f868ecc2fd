//! A bounded list of events that many threads write at once and that are seldom read. Each thread writes to a buffer of
//! its own, whose lock only a reader contends for, and hands it over when it is full. Beyond the limit the oldest full
//! buffers are forgotten, and with them older events in slower threads' buffers, so that a reader's list has no gaps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::LocalKey;

use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// Events that a thread writes before it takes the lock that all share.
const CHUNK: usize = if cfg!(loom) { 2 } else { 256 };

/// An item of a ring.
pub(crate) trait Timed {
    /// Returns when it happened, on one clock for all.
    fn time(&self) -> u64;
}

/// One thread's buffer, alone in its cache lines, so that threads do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Writer<T>(Mutex<Vec<T>>);

#[derive(Debug)]
struct Full<T> {
    chunks: VecDeque<Vec<T>>,
    /// Events in them.
    len: usize,
    /// The time of the newest forgotten event.
    forgotten: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Ring<T> {
    writers: Mutex<Vec<Arc<Writer<T>>>>,
    most_writers: AtomicUsize,
    full: Mutex<Full<T>>,
    /// For threads whose locals are gone.
    last: Arc<Writer<T>>,
}

impl<T: Timed + Clone> Ring<T> {
    pub(crate) fn new() -> Self {
        let last = Arc::new(Writer(Mutex::new(Vec::new())));
        Self {
            writers: Mutex::new(vec![Arc::clone(&last)]),
            most_writers: AtomicUsize::new(1),
            full: Mutex::new(Full { chunks: VecDeque::new(), len: 0, forgotten: None }),
            last,
        }
    }

    fn writer(&self) -> Arc<Writer<T>> {
        let writer = Arc::new(Writer(Mutex::new(Vec::new())));
        let mut writers = lock(&self.writers);
        writers.push(Arc::clone(&writer));
        self.most_writers.fetch_max(writers.len(), Ordering::Relaxed);
        drop(writers);
        writer
    }

    /// Writes an event of this thread, whose buffer is behind the key; keeps at least the newest `most` events.
    #[inline]
    pub(crate) fn note(&'static self, own: &'static LocalKey<OwnBuffer<T>>, event: T, most: usize) {
        // Also while the thread's locals are destroyed, when handles go back to their pools.
        let mut event = Some(event);
        let _ = own.try_with(|own| event.take().map(|event| self.push(&own.writer, event, most)));
        if let Some(event) = event {
            self.push(&self.last, event, most);
        }
    }

    #[inline]
    fn push(&self, writer: &Writer<T>, event: T, most: usize) {
        let mut events = lock(&writer.0);
        if events.capacity() == 0 {
            events.reserve_exact(CHUNK);
        }
        events.push(event);
        if events.len() >= CHUNK {
            // Under the writer's lock, so that a reader finds each event once.
            self.hand_over(&mut events, most);
        }
    }

    #[cold]
    fn hand_over(&self, events: &mut Vec<T>, most: usize) {
        // At a hand-over each thread was in the midst of a buffer, whose events up to that moment may be left out.
        let most = most.saturating_add(self.most_writers.load(Ordering::Relaxed) * CHUNK);
        let mut full = lock(&self.full);
        full.len += events.len();
        let mut spare = Vec::new();
        full.chunks.push_back(std::mem::take(events));
        while let Some(first) = full.chunks.front().map(Vec::len).filter(|first| full.len - first >= most) {
            full.len -= first;
            spare = full.chunks.pop_front().unwrap_or_default();
            full.forgotten = full.forgotten.max(spare.iter().map(Timed::time).max());
        }
        drop(full);
        spare.clear();
        *events = spare;
    }

    /// Ends a thread's buffer; its events stay.
    fn end(&self, writer: &Arc<Writer<T>>, most: usize) {
        let mut writers = lock(&self.writers);
        let mut events = lock(&writer.0);
        if !events.is_empty() {
            events.shrink_to_fit();
            self.hand_over(&mut events, most);
        }
        writers.retain(|other| !Arc::ptr_eq(other, writer));
    }

    /// Returns every kept event, unordered, and the time up to which events were forgotten.
    fn all(&self) -> (Vec<T>, Option<u64>) {
        let writers = lock(&self.writers);
        // All at once, so that no buffer is handed over between two locks.
        let buffers: Vec<_> = writers.iter().map(|writer| lock(&writer.0)).collect();
        let full = lock(&self.full);
        let events = full.chunks.iter().chain(buffers.iter().map(|buffer| &**buffer)).flatten().cloned();
        (events.collect(), full.forgotten)
    }

    /// Returns the newest events, at most so many, by time.
    pub(crate) fn newest(&self, most: usize) -> Vec<T> {
        let (mut events, forgotten) = self.all();
        events.retain(|event| forgotten.is_none_or(|forgotten| event.time() > forgotten));
        // Stable: a thread's events of one moment stay in their order.
        events.sort_by_key(Timed::time);
        let surplus = events.len().saturating_sub(most);
        events.drain(..surplus);
        events
    }

    pub(crate) fn for_each(&self, see: impl FnMut(&T)) {
        self.all().0.iter().for_each(see);
    }

    pub(crate) fn clear(&self) {
        let writers = lock(&self.writers);
        writers.iter().for_each(|writer| *lock(&writer.0) = Vec::new());
        *lock(&self.full) = Full { chunks: VecDeque::new(), len: 0, forgotten: None };
    }
}

/// A thread's hold on its buffer. Its end takes no lock that is held for long, and calls no other code.
#[derive(Debug)]
pub(crate) struct OwnBuffer<T: Timed + Clone + 'static> {
    ring: &'static Ring<T>,
    writer: Arc<Writer<T>>,
}

impl<T: Timed + Clone> OwnBuffer<T> {
    pub(crate) fn new(ring: &'static Ring<T>) -> Self {
        Self { ring, writer: ring.writer() }
    }
}

impl<T: Timed + Clone> Drop for OwnBuffer<T> {
    fn drop(&mut self) {
        // In a forked child any of the locks may be held for ever.
        if !crate::process::is_forked() {
            self.ring.end(&self.writer, super::recording::most());
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::{Ring, Timed};

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Event {
        time: u64,
        writer: u64,
    }

    impl Timed for Event {
        fn time(&self) -> u64 {
            self.time
        }
    }

    /// A thread writes these times and ends; what a reader sees meanwhile has none twice and is in order.
    fn model(times: [&'static [u64]; 2], most: usize, check: fn(&[u64])) {
        loom::model(move || {
            let ring = Arc::new(Ring::new());
            let threads = times.map(|times| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    let writer = ring.writer();
                    for &time in times {
                        ring.push(&writer, Event { time, writer: times[0] }, most);
                    }
                    ring.end(&writer, most);
                })
            });
            let seen = ring.newest(most);
            assert!(seen.windows(2).all(|pair| pair[0].time < pair[1].time), "{seen:?}");
            for times in times {
                let own: Vec<_> =
                    seen.iter().filter(|event| event.writer == times[0]).map(|event| event.time).collect();
                // No event is missing between two of a thread.
                assert!(times.windows(own.len().max(1)).any(|window| own.is_empty() || *window == *own), "{own:?}");
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            check(&ring.newest(most).iter().map(|event| event.time).collect::<Vec<_>>());
        });
    }

    #[test]
    fn nothing_is_lost_while_there_is_room() {
        model([&[1, 3, 4], &[2]], 4, |times| assert_eq!(times, [1, 2, 3, 4]));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{CHUNK, Ring, Timed, Writer, lock};

    impl Timed for u64 {
        fn time(&self) -> u64 {
            *self
        }
    }

    fn push(ring: &Ring<u64>, writer: &Writer<u64>, times: impl IntoIterator<Item = u64>, most: usize) {
        times.into_iter().for_each(|time| ring.push(writer, time, most));
    }

    #[test]
    fn the_newest_are_kept_also_where_there_is_room_for_less_than_a_buffer() {
        let ring = Ring::new();
        let writer = ring.writer();
        for end in [1, 9, 10, 11, CHUNK as u64 - 1, CHUNK as u64, CHUNK as u64 + 1, 10 * CHUNK as u64] {
            ring.clear();
            push(&ring, &writer, 0..end, 10);
            assert_eq!(ring.newest(10), (end.saturating_sub(10)..end).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_slower_threads_wrote_before_the_forgotten_is_left_out() {
        let ring = Ring::new();
        let (slow, quick) = (ring.writer(), ring.writer());
        push(&ring, &slow, [0, 1, 2], 300);
        push(&ring, &quick, 3..2000, 300);
        push(&ring, &slow, [2000], 300);
        assert_eq!(ring.newest(300), (1701..=2000).collect::<Vec<_>>());
        assert_eq!(ring.newest(usize::MAX)[0] % CHUNK as u64, 3, "as far back as whole buffers are kept");
    }

    #[test]
    #[cfg_attr(miri, ignore = "50,000 events, and nothing unsafe")]
    fn it_holds_as_many_as_was_said_and_a_little_more_for_each_thread() {
        let ring = Ring::new();
        let writers: Vec<_> = (0..10).map(|_| ring.writer()).collect();
        for time in 0..50_000_u64 {
            // In turns, for a while, and one of them by itself now and then.
            let turn = if time % 3000 < 300 { 0 } else { time % 10 };
            push(&ring, &writers[turn as usize], [time], 1000);
            if time % 97 == 0 {
                let (first, held) = ((time + 1).saturating_sub(1000), ring.all().0.len());
                assert_eq!(ring.newest(1000), (first..=time).collect::<Vec<_>>());
                assert!(held <= 1000 + 2 * 11 * CHUNK, "{held}");
            }
        }
        writers.iter().for_each(|writer| ring.end(writer, 1000));
        assert_eq!(lock(&ring.writers).len(), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "20,000 threads, and nothing unsafe")]
    fn threads_that_wrote_little_leave_no_more_than_others() {
        let ring = Ring::new();
        for time in 0..20_000 {
            let writer = ring.writer();
            push(&ring, &writer, [time], 100);
            ring.end(&writer, 100);
        }
        assert_eq!(ring.newest(100), (19_900..20_000).collect::<Vec<_>>());
        let full = lock(&ring.full);
        assert!(full.len <= 100 + 2 * CHUNK);
        assert!(full.chunks.iter().map(Vec::capacity).sum::<usize>() <= 2 * full.len);
    }
}
