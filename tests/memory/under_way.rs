//! Requests that find no memory, while other threads have some in their hands.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use log::Record;

use crate::common::memory::{
    MADE_UP, MIB, PAGE, assert_all_back, builder, empty_in, made_up, out_of_memory, pool, pool_of, reserved, source,
};
use crate::common::{device, log_to, stream};
use gpupool::c_api::C_API;
use gpupool::runtime::host::{Call, before_call, complete_all, submit};
use gpupool::{
    Backup, CommitOptions, DeviceBuffer, MemPool, Pooled, Result, SegmentEvent, Simulated, Stream, empty, empty_cache,
    memory_stats, on_oom,
};

/// Longer than any request takes; a test that waits for it has failed.
const FOREVER: Duration = Duration::from_secs(20);
/// More often than a request searches.
const OFTEN: u32 = 2000;

/// What says, the first time, that a thread has come to it, and then waits to go on.
struct Meeting(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Meeting {
    fn new(called: Sender<()>, go_on: Receiver<()>) -> Self {
        Self(Mutex::new(Some((called, go_on))))
    }

    fn come(&self) {
        let first = self.0.lock().unwrap().take();
        if let Some((called, go_on)) = first {
            called.send(()).unwrap();
            go_on.recv().unwrap();
        }
    }
}

/// Fails, as there is not so much.
fn too_much(stream: &Stream) -> Result<u64> {
    empty(900 * MIB, stream).map(DeviceBuffer::into_ptr)
}

/// A request of more than there is ends while another thread is in `call`, which goes on only after that.
fn ends_beside(call: impl FnOnce(Sender<()>, Receiver<()>) + Send + 'static) {
    both_end(call, || {
        out_of_memory(empty(900 * MIB, &stream(0)));
    });
}

/// As [`ends_beside`], for another request.
fn both_end(call: impl FnOnce(Sender<()>, Receiver<()>) + Send + 'static, asks: impl FnOnce() + Send + 'static) {
    let ((called, is_called), (go_on, may_go_on)) = (channel(), channel());
    let other = thread::spawn(move || call(called, may_go_on));
    is_called.recv_timeout(FOREVER).unwrap();
    let (ended, has_ended) = channel();
    let request = thread::spawn(move || {
        asks();
        ended.send(()).unwrap();
    });
    let outcome = has_ended.recv_timeout(FOREVER);
    go_on.send(()).unwrap();
    request.join().unwrap();
    other.join().unwrap();
    assert!(outcome.is_ok(), "a request waits for another thread's callback, which may wait for it");
}

#[test]
fn no_request_waits_for_a_callback_of_another_thread() {
    memory!();
    let _held = empty(500 * MIB, &stream(0)).unwrap();
    ends_beside(|called, go_on| {
        let pool = builder().no_split(true).build().unwrap();
        let meeting = Meeting::new(called, go_on);
        let guard = pool.on_segment(move |_| meeting.come()).unwrap();
        drop(empty_in(&pool, PAGE, &stream(0)).unwrap());
        drop((pool, guard));
    });
    ends_beside(|called, go_on| {
        let meeting = Meeting::new(called, go_on);
        let allocate = move |_, stream: &Stream| {
            meeting.come();
            too_much(stream)
        };
        out_of_memory(empty_in(&pool_of(&source(allocate, |_, _, _| Ok(()))), PAGE, &stream(0)));
    });
}

/// Comes to the meeting as it ends: the end of what a program gives to a pool may wait for any lock, whose holder may allocate.
struct SlowEnd(Meeting);

impl Drop for SlowEnd {
    fn drop(&mut self) {
        self.0.come();
    }
}

#[test]
fn no_request_waits_for_the_end_of_what_a_program_gave_to_a_pool() {
    memory!();
    let _held = empty(500 * MIB, &stream(0)).unwrap();
    ends_beside(|called, go_on| {
        let (end, user) = (SlowEnd(Meeting::new(called, go_on)), stream(0));
        let allocate = move |_, _: &Stream| {
            let _ = &end;
            Ok(MADE_UP)
        };
        let pool = pool_of(&source(allocate, |_, _, _| Ok(())));
        let block = empty_in(&pool, PAGE, &user).unwrap();
        submit(&user).unwrap();
        drop(pool);
        // The segment is the last that has the allocator, and goes once the work is done.
        drop(block);
        complete_all().unwrap();
        empty_cache().unwrap();
    });
}

/// The awaited line, and where the logger comes to then.
type Line = (&'static str, Meeting);

static LINE: Mutex<Option<Line>> = Mutex::new(None);

/// A logger of the program's, which may wait for any lock, whose holder may allocate.
fn come_to_the_line(record: &Record<'_>) {
    let line = LINE.lock().unwrap().take_if(|line| record.args().to_string().contains(line.0));
    if let Some((_, meeting)) = line {
        meeting.come();
    }
}

#[test]
fn no_request_waits_for_a_logger_of_another_thread() {
    memory!();
    log_to(come_to_the_line);
    let _held = empty(500 * MIB, &stream(0)).unwrap();
    ends_beside(move |called, go_on| {
        *LINE.lock().unwrap() = Some(("of moved pages", Meeting::new(called, go_on)));
        drop(empty_in(&pool(), PAGE, &stream(0)).unwrap());
    });
    ends_beside(|called, go_on| {
        *LINE.lock().unwrap() = Some(("grew by a segment", Meeting::new(called, go_on)));
        let pool = pool_of(&made_up());
        drop(empty_in(&pool, PAGE, &stream(0)).unwrap());
    });
    ends_beside(|called, go_on| {
        let pool = builder().no_split(true).build().unwrap();
        let _guard = pool.on_segment(|_| panic!("of the test")).unwrap();
        *LINE.lock().unwrap() = Some(("a callback of on_segment panicked", Meeting::new(called, go_on)));
        drop(empty_in(&pool, PAGE, &stream(0)).unwrap());
    });
    // A pool that wakes has others give way before it says that there is not enough, and idle handles destroyed.
    ends_beside(move |called, go_on| {
        let (asleep, helper) = (pool(), builder().use_on_oom(true).build().unwrap());
        let _live = [200, 200].map(|mib| empty_in(&asleep, mib * MIB, &stream(0)).unwrap());
        asleep.sleep(Backup::None).unwrap();
        let beside = empty(300 * MIB, &stream(0)).unwrap();
        drop(empty_in(&helper, 10 * MIB, &stream(0)).unwrap());
        *LINE.lock().unwrap() = Some(("trimmed", Meeting::new(called, go_on)));
        out_of_memory(asleep.wake());
        drop(beside);
        asleep.wake().unwrap();
    });
    for line in ["idle handles destroyed", "waiting for streams and trimming"] {
        ends_beside(move |called, go_on| {
            let asleep = pool();
            let live = [200, 200].map(|mib| empty_in(&asleep, mib * MIB, &stream(0)).unwrap());
            asleep.sleep(Backup::None).unwrap();
            Simulated::pool().warm(1, device(0)).unwrap();
            let beside = empty(300 * MIB, &stream(0)).unwrap();
            *LINE.lock().unwrap() = Some((line, Meeting::new(called, go_on)));
            out_of_memory(asleep.wake());
            drop((beside, live));
        });
    }
}

#[test]
fn what_one_thread_has_in_hand_is_waited_for_however_often_others_move_memory() {
    memory!(1, 5 * PAGE);
    asked_while_held(
        || {
            drop(empty(4 * PAGE, &stream(0)).unwrap());
            empty_cache().unwrap();
        },
        (Call::MemoryUnmap, 0),
        || drop(empty(4 * PAGE, &stream(0)).unwrap()),
    );
}

/// A pool that has memory in hand at each trim, for a page of it waits for work; with the streams, which have that work.
fn busy_pool() -> (MemPool, [Stream; 2]) {
    let (used, other) = (stream(0), stream(0));
    let busy = pool();
    let waiting = empty_in(&busy, PAGE, &used).unwrap();
    waiting.record_stream(&other).unwrap();
    submit(&other).unwrap();
    drop(waiting);
    (busy, [used, other])
}

/// Holds the thread that makes such a call until it may go on. Returns what says that it is held, and what lets it go on.
fn hold_in((call, after): (Call, u32)) -> (Receiver<()>, Sender<()>) {
    let ((in_hand, is_in_hand), (go_on, may_go_on)) = (channel(), channel());
    before_call(call, after, move || {
        in_hand.send(()).unwrap();
        may_go_on.recv().unwrap();
    });
    (is_in_hand, go_on)
}

/// Has four of the five pages in the hands of a thread that gives them back, until others have moved memory often; meanwhile
/// asks for them.
fn asked_while_in_hand(ask: impl FnOnce() + Send + 'static) {
    let (busy, _streams) = busy_pool();
    let held = Mutex::new(Some(empty(4 * PAGE, &stream(0)).unwrap()));
    let trimming = Arc::new(Mutex::new(None));
    let trims = Arc::clone(&trimming);
    let (asked, is_asked) = channel();
    let callback = on_oom(move |_, _| {
        let Some(block) = held.lock().unwrap().take() else { return false };
        drop(block);
        let (is_in_hand, go_on) = hold_in((Call::MemoryUnmap, 0));
        *trims.lock().unwrap() = Some(thread::spawn(|| empty_cache().unwrap()));
        is_in_hand.recv_timeout(FOREVER).unwrap();
        asked.send(go_on).unwrap();
        true
    });
    let asking = thread::spawn(ask);
    let go_on = is_asked.recv_timeout(FOREVER).unwrap();
    (0..OFTEN).for_each(|_| {
        busy.trim().unwrap();
    });
    go_on.send(()).unwrap();
    let outcome = asking.join();
    trimming.lock().unwrap().take().unwrap().join().unwrap();
    assert!(outcome.is_ok(), "the four pages are free, in the hands of a thread that gives them back");
    drop((busy, callback));
    assert_all_back();
}

#[test]
fn what_a_callback_has_freed_is_found_also_in_the_hands_of_another_thread() {
    memory!(1, 5 * PAGE);
    asked_while_in_hand(|| drop(empty(4 * PAGE, &stream(0)).unwrap()));
    asked_while_in_hand(|| drop(builder().reserve(4 * PAGE).build().unwrap()));
}

/// Has four of the five pages freed before such a call of the thread that asks for them, and in the hands of another thread that
/// gives them back, until the first one has searched for them, or longer.
fn asked_as_another_frees(after: u32, ask: impl FnOnce() + Send + 'static) {
    let pool = builder().use_on_oom(true).build().unwrap();
    let held = empty_in(&pool, 4 * PAGE, &stream(0)).unwrap();
    let (freed, is_freed) = channel();
    before_call(Call::ExtentCreate, after, move || {
        drop(held);
        let (is_in_hand, go_on) = hold_in((Call::MemoryUnmap, 0));
        let trimming = thread::spawn(move || pool.trim().unwrap());
        is_in_hand.recv_timeout(FOREVER).unwrap();
        freed.send((go_on, trimming)).unwrap();
    });
    let asking = thread::spawn(ask);
    let (go_on, trimming) = is_freed.recv_timeout(FOREVER).unwrap();
    (0..OFTEN * 10).take_while(|_| !asking.is_finished()).for_each(|_| thread::yield_now());
    go_on.send(()).unwrap();
    let outcome = asking.join();
    trimming.join().unwrap();
    assert!(outcome.is_ok(), "the four pages are free, in the hands of a thread that gives them back");
    assert_all_back();
}

#[test]
fn what_others_free_during_the_search_is_found_for_a_block_a_commit_a_reserve_and_a_pool_that_wakes() {
    memory!(1, 5 * PAGE);
    // The second page is created in vain once at first, and once more when what is free has been given back.
    for after in [1, 3] {
        asked_as_another_frees(after, move || {
            let pool = pool();
            let range = pool.reserve_range(4 * PAGE, PAGE).unwrap();
            range.commit(&[0, 1, 2, 3], &stream(0), CommitOptions::default()).unwrap();
        });
    }
    asked_as_another_frees(1, || drop(builder().reserve(4 * PAGE).build().unwrap()));
    let (asleep, user) = (pool(), stream(0));
    let block = empty_in(&asleep, 4 * PAGE, &user).unwrap();
    asleep.sleep(Backup::None).unwrap();
    asked_as_another_frees(1, move || {
        asleep.wake().unwrap();
        drop((block, asleep));
    });
    asked_as_another_frees(1, || drop(empty(4 * PAGE, &stream(0)).unwrap()));
}

/// Does `begin` on a thread, which is held in the hook that it is given; meanwhile another thread does `ask`, and others move memory
/// often.
fn asked_while_held(begin: impl FnOnce() + Send + 'static, hook: (Call, u32), ask: impl FnOnce() + Send + 'static) {
    let (busy, _streams) = busy_pool();
    let (is_in_hand, go_on) = hold_in(hook);
    let begun = thread::spawn(begin);
    is_in_hand.recv_timeout(FOREVER).unwrap();
    let asking = thread::spawn(ask);
    for _ in 0..OFTEN {
        busy.trim().unwrap();
    }
    go_on.send(()).unwrap();
    let outcome = asking.join();
    begun.join().unwrap();
    drop(busy);
    assert!(outcome.is_ok(), "what is asked for is in the hands of a thread that gives it back");
}

#[test]
fn a_commit_in_a_callback_waits_for_what_another_thread_has_in_hand() {
    memory!();
    let (used, other) = (stream(0), stream(0));
    let pool = Arc::new(pool());
    let range = pool.reserve_range(4 * PAGE, PAGE).unwrap();
    range.commit(&[0], &used, CommitOptions::default()).unwrap();
    submit(&used).unwrap();
    range.decommit(&[0], None).unwrap();
    let range = Arc::new(range);
    let (trimmed, committed) = (Arc::clone(&pool), Arc::clone(&range));
    asked_while_held(
        move || {
            trimmed.trim().unwrap();
        },
        (Call::EventQuery, 0),
        move || {
            let fixed = builder().no_split(true).build().unwrap();
            let on = other.clone();
            let callback = move |_: &SegmentEvent| committed.commit(&[0], &on, CommitOptions::default()).unwrap();
            let guard = fixed.on_segment(callback).unwrap();
            let block = empty_in(&fixed, PAGE, &other).unwrap();
            drop((guard, block));
        },
    );
    assert_eq!(range.committed_bytes().unwrap(), PAGE);
}

#[test]
fn an_emptied_cache_that_is_waited_for_is_empty_also_where_another_thread_gives_it_back() {
    memory!();
    // SAFETY: the place for the bytes may be null.
    let empty_all = || assert_eq!(unsafe { (C_API.empty_cache)(-1, ptr::null_mut()) }, 0);
    let pool = pool();
    drop(empty_in(&pool, 4 * PAGE, &stream(0)).unwrap());
    let (is_in_hand, go_on) = hold_in((Call::MemoryUnmap, 0));
    let trimming = thread::spawn(move || pool.trim().unwrap());
    is_in_hand.recv_timeout(FOREVER).unwrap();
    let emptying = thread::spawn(move || {
        empty_all();
        reserved()
    });
    (0..OFTEN * 10).take_while(|_| !emptying.is_finished()).for_each(|_| thread::yield_now());
    go_on.send(()).unwrap();
    assert_eq!(emptying.join().unwrap(), 0);
    trimming.join().unwrap();
}

#[test]
fn what_a_pool_that_cannot_wake_has_taken_is_waited_for() {
    memory!(1, 6 * PAGE);
    let used = stream(0);
    let pool = Arc::new(pool());
    let [_first, between, _last] = [2, 1, 2].map(|pages| empty_in(&pool, pages * PAGE, &used).unwrap());
    drop(between);
    pool.sleep(Backup::None).unwrap();
    let held = empty(2 * PAGE, &used).unwrap();
    let waking = Arc::clone(&pool);
    asked_while_held(
        move || {
            out_of_memory(waking.wake());
        },
        (Call::ExtentCreate, 1),
        || drop(empty(3 * PAGE, &stream(0)).unwrap()),
    );
    drop(held);
    empty_cache().unwrap();
    pool.wake().unwrap();
}

#[test]
fn slabs_that_an_abandoned_cache_returns_are_waited_for() {
    memory!();
    let pool = Arc::new(pool());
    // With so many caches the next one borrows what it needs.
    let many: Vec<_> = (0..16).map(|_| stream(0)).collect();
    let _live: Vec<_> = many.iter().map(|stream| empty_in(&pool, 700, stream).unwrap()).collect();
    let (asked, asking) = (Arc::clone(&pool), Arc::clone(&pool));
    let user = many[0].clone();
    asked_while_held(
        move || {
            drop(empty_in(&asked, 700, &stream(0)).unwrap());
            asked.set_limit(Some(asked.stats().unwrap().reserved_bytes));
            // Some of the caches are looked at for each new one. These are another pool's, and leave the page to who asks.
            let other = builder().build().unwrap();
            drop([(); 4].map(|()| empty_in(&other, 700, &stream(0)).unwrap()));
        },
        (Call::EventRecord, 0),
        move || drop(empty_in(&asking, PAGE, &user).unwrap()),
    );
}

#[test]
fn threads_without_memory_do_not_have_each_other_search_again_and_again() {
    const THREADS: u64 = 8;
    memory!();
    let begin = Barrier::new(THREADS as usize);
    let retries = || memory_stats(device(0)).unwrap().retries;
    let before = retries();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let stream = stream(0);
                // Pages that each search has in its hands for a while.
                let held = [(); 20].map(|()| empty(5 * MIB, &stream).unwrap());
                let held: Vec<_> = held.into_iter().step_by(2).collect();
                begin.wait();
                out_of_memory(empty(900 * MIB, &stream));
                begin.wait();
                drop(held);
            });
        }
    });
    // Once, and once more alone; again beside the first search of another.
    let searched = retries() - before;
    assert!(searched <= 5 * THREADS, "{searched} searches of {THREADS} threads");
}

/// The requests of a search are three after the first one, so that this is one of the next search.
const AGAIN: u32 = 6;

/// Asks for memory by an allocator that has none but uses some, after which a request searches once more. It comes to the meeting,
/// if there is one, in the next search.
fn search_again(meeting: Option<Meeting>) {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let allocate = move |_, stream: &Stream| {
        drop(empty(MIB, stream)?);
        if counted.fetch_add(1, Ordering::Relaxed) + 1 == AGAIN {
            meeting.iter().for_each(Meeting::come);
        }
        too_much(stream)
    };
    out_of_memory(empty_in(&pool_of(&source(allocate, |_, _, _| Ok(()))), PAGE, &stream(0)));
    assert!(calls.load(Ordering::Relaxed) >= AGAIN);
}

#[test]
fn no_request_waits_for_one_that_searches_again_and_is_in_a_callback() {
    memory!();
    let _live = empty(500 * MIB, &stream(0)).unwrap();
    let searches_again = |called, go_on| search_again(Some(Meeting::new(called, go_on)));
    both_end(searches_again, || search_again(None));
}

#[test]
fn what_an_allocator_requests_as_it_frees_has_what_else_goes_back() {
    memory!(1, 5 * PAGE);
    let own = stream(0);
    let found = Arc::new(Mutex::new(None));
    let asked = Arc::clone(&found);
    let free = move |_, _, stream: &Stream| {
        *asked.lock().unwrap() = Some(empty(4 * PAGE, stream));
        Ok(())
    };
    let pages = pool();
    let segments = pool_of(&source(|_, _| Ok(MADE_UP), free));
    let blocks = [(&pages, 4 * PAGE), (&segments, PAGE)].map(|(pool, bytes)| empty_in(pool, bytes, &own).unwrap());
    submit(&own).unwrap();
    drop(blocks);
    assert_eq!([&pages, &segments].map(|pool| pool.trim().unwrap()), [0, 0]);
    complete_all().unwrap();
    segments.trim().unwrap();
    found.lock().unwrap().take().unwrap().unwrap();
}
