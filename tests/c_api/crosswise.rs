//! Two threads, each in a callback in the middle of a call, touch what the other one's call has in hand. Each call ends, with
//! success or an error, whichever callbacks and calls these are: no thread waits for one that waits for it.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::{NonNull, null, null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::c_pools::{INVALID_VALUE, end_observing, last_error, observe, options, succeeded};
use crate::common::memory::{MIB, PAGE, empty_in};
use crate::common::{MEMORY, device, log_to, stream, wait_until};
use gpupool::c_api::{C_API, Event, RangeHandle};
use gpupool::library::{Library, RawHandle};
use gpupool::memory::SegmentSource;
use gpupool::runtime::host::{Call, before_call, clear_before_call};
use gpupool::{Backup, CommitOptions, Device, DeviceBuffer, HandlePool, MemPool, MemoryRange, Result, Stream, on_oom};

/// Longer than any of the calls takes.
const FOREVER: Duration = Duration::from_secs(60);

/// The callbacks that a thread may be in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Oom,
    Discard,
    Segment,
    Allocator,
    Observer,
    Logger,
    Library,
}

type Act = Box<dyn FnOnce()>;

thread_local! {
    /// What this thread does in the next callback of a kind.
    static ACT: RefCell<Option<(Kind, Act)>> = const { RefCell::new(None) };
}

/// Every callback calls this.
fn called(kind: Kind) {
    let act = ACT.with(|act| act.try_borrow_mut().ok()?.take_if(|(meant, _)| *meant == kind));
    if let Some((_, act)) = act {
        act();
    }
}

/// Actions of events that calls deliver while they have pages in hand.
const OOM: i32 = 8;
const FREE_REQUESTED: i32 = 1;

unsafe extern "C" fn observer(_: *mut c_void, event: *const Event) {
    // SAFETY: gpupool passes an event that is alive.
    if [OOM, FREE_REQUESTED].contains(unsafe { &(*event).action }) {
        called(Kind::Observer);
    }
}

/// A library whose functions are the program's.
struct Own;

impl Library for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn create(&self, _device: Device) -> Result<RawHandle> {
        called(Kind::Library);
        // SAFETY: nothing reads what it points to.
        Ok(unsafe { RawHandle::from_ptr(NonNull::dangling()) })
    }

    fn destroy(&self, _handle: RawHandle) -> Result<()> {
        called(Kind::Library);
        Ok(())
    }

    fn set_stream(&self, _handle: &RawHandle, _stream: &Stream) -> Result<()> {
        Ok(())
    }
}

/// An allocator of addresses that nothing uses.
#[derive(Debug)]
struct MadeUp;

static NEXT: AtomicU64 = AtomicU64::new(1 << 44);

// SAFETY: the addresses are the test's own, and nothing reads or writes them.
unsafe impl SegmentSource for MadeUp {
    fn allocate(&self, bytes: u64, _stream: &Stream) -> Result<u64> {
        called(Kind::Allocator);
        Ok(NEXT.fetch_add(bytes.next_multiple_of(PAGE), Ordering::Relaxed))
    }

    unsafe fn free(&self, _address: u64, _bytes: u64, _stream: &Stream) -> Result<()> {
        called(Kind::Allocator);
        Ok(())
    }
}

/// What one of the two threads calls, and the other touches.
struct Party {
    stream: Stream,
    /// Of at most four pages, two of which are committed.
    ranges: MemPool,
    range: MemoryRange,
    /// Of two discardable pages, which are all that its pool may have.
    scarce: MemPool,
    discardable: MemoryRange,
    /// Asleep, and beyond its limit.
    sleeper: MemPool,
    _asleep: DeviceBuffer,
    /// Its segments are told of.
    fixed: MemPool,
    own: MemPool,
    handles: HandlePool,
}

impl Party {
    fn new(handles: HandlePool) -> Self {
        // One is idle, and none of an earlier case.
        handles.trim(None).unwrap();
        handles.warm(1, device(0)).unwrap();
        let stream = stream(0);
        let pool = |limit| MemPool::builder().device(device(0)).limit(limit).build().unwrap();
        let (ranges, scarce, sleeper) = (pool(4 * PAGE), pool(2 * PAGE), pool(MEMORY));
        let range = ranges.reserve_range(16 * PAGE, PAGE).unwrap();
        range.commit(0..2 * PAGE, &stream, CommitOptions::default()).unwrap();
        let discardable = scarce.reserve_range(16 * PAGE, PAGE).unwrap();
        let priority = CommitOptions { priority: Some(0), fill: None };
        discardable.commit(0..2 * PAGE, &stream, priority).unwrap();
        discardable.on_discard(|_| called(Kind::Discard)).keep();
        let asleep = empty_in(&sleeper, MIB, &stream).unwrap();
        sleeper.sleep(Backup::None).unwrap();
        sleeper.set_limit(Some(0));
        let fixed = MemPool::builder().device(device(0)).no_split(true).build().unwrap();
        fixed.on_segment(|_| called(Kind::Segment)).unwrap().keep();
        let own = MemPool::builder().device(device(0)).allocator(Arc::new(MadeUp)).build().unwrap();
        Self { stream, ranges, range, scarce, discardable, sleeper, _asleep: asleep, fixed, own, handles }
    }
}

/// A call, and the callback that it comes to.
type Context = (&'static str, Kind, fn(&Party) -> Result<()>);

/// Beyond the limit of its pool.
fn commit(party: &Party) -> Result<()> {
    party.range.commit(8 * PAGE..16 * PAGE, &party.stream, CommitOptions::default())
}

fn request(party: &Party) -> Result<()> {
    empty_in(&party.ranges, 16 * PAGE, &party.stream).map(drop)
}

/// Those whose call has something in hand that other threads wait for.
const HOLDERS: [Context; 3] = [
    ("on_oom of a commit", Kind::Oom, commit),
    ("on_oom of a pool that wakes", Kind::Oom, |party| party.sleeper.wake().map(drop)),
    ("a library's destroy", Kind::Library, |party| party.handles.trim(None).map(drop)),
];

const OTHERS: [Context; 8] = [
    ("on_oom of a request", Kind::Oom, request),
    ("on_discard of a request", Kind::Discard, |party| empty_in(&party.scarce, 2 * PAGE, &party.stream).map(drop)),
    ("on_discard of a commit", Kind::Discard, |party| {
        party.discardable.commit(2 * PAGE..4 * PAGE, &party.stream, CommitOptions::default())
    }),
    ("on_segment of a request", Kind::Segment, |party| empty_in(&party.fixed, PAGE, &party.stream).map(drop)),
    ("an allocator's malloc", Kind::Allocator, |party| empty_in(&party.own, PAGE, &party.stream).map(drop)),
    ("an observer of a commit", Kind::Observer, commit),
    ("a logger of a request", Kind::Logger, |party| empty_in(&party.ranges, 3 * PAGE, &party.stream).map(drop)),
    ("a library's create", Kind::Library, |party| party.handles.warm(2, device(0)).map(drop)),
];

/// Each beside itself, and beside each that has something in hand.
fn pairs() -> Vec<[Context; 2]> {
    let mut pairs: Vec<_> = OTHERS.iter().map(|one| [*one, *one]).collect();
    pairs.extend(OTHERS.iter().flat_map(|one| HOLDERS.map(|holder| [*one, holder])));
    pairs.extend(
        (0..HOLDERS.len()).flat_map(|number| HOLDERS[number..].iter().map(move |other| [HOLDERS[number], *other])),
    );
    pairs
}

/// What may wait for another thread, with what another thread may have in hand.
type Touch = (&'static str, fn(&Party) -> Result<()>);

const TOUCHES: [Touch; 18] = [
    ("commit", commit),
    ("commit of discardable pages", |party| {
        party.discardable.commit(0..4 * PAGE, &party.stream, CommitOptions::default())
    }),
    ("decommit", |party| party.range.decommit(0..16 * PAGE, Some(&party.stream))),
    ("pin", |party| party.range.pin(0..16 * PAGE, Some(&party.stream)).map(drop)),
    ("unpin", |party| party.range.unpin(0..16 * PAGE, Some(&party.stream))),
    ("free", |party| party.range.free(None)),
    ("free of discardable pages", |party| party.discardable.free(None)),
    ("sleep", |party| party.sleeper.sleep(Backup::None).map(drop)),
    ("sleep of a pool with a range", |party| party.ranges.sleep(Backup::None).map(drop)),
    ("wake", |party| party.sleeper.wake().map(drop)),
    ("commit and wake", |party| commit(party).and(party.sleeper.wake().map(drop))),
    ("sleep of all", |_| gpupool::sleep(device(0), Backup::None).map(drop)),
    ("wake of all", |_| gpupool::wake(device(0)).map(drop)),
    ("request", request),
    ("trim and close", |party| party.ranges.trim().and_then(|_| party.ranges.close()).map(drop)),
    ("capture", |party| party.ranges.capture(&party.stream).map(drop)),
    ("capture that is expected", |_| {
        // SAFETY: the functions take any number.
        unsafe {
            if (C_API.expect_captures)(0) == 0 {
                succeeded((C_API.end_expecting_captures)(0));
            } else {
                assert!(last_error().contains("may not wait"), "{}", last_error());
            }
        }
        Ok(())
    }),
    ("trim of handles", |party| party.handles.trim(None).map(drop)),
];

/// Calls in the one thread, and touches the other party there once both are in their callbacks.
fn call_and_touch(context: Context, own: &Arc<Party>, other: &Arc<Party>, touch: Touch, inside: &Arc<Barrier>) -> bool {
    let (touched, was_refused) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let act: Act = {
        let (other, inside) = (Arc::clone(other), Arc::clone(inside));
        let (touched, was_refused) = (Arc::clone(&touched), Arc::clone(&was_refused));
        Box::new(move || {
            inside.wait();
            let outcome = touch.1(&other);
            let is_refused = outcome.is_err_and(|error| error.to_string().contains("may not wait"));
            was_refused.store(u32::from(is_refused), Ordering::SeqCst);
            touched.store(1, Ordering::SeqCst);
        })
    };
    ACT.set(Some((context.1, act)));
    // With success or an error.
    let _ = context.2(own);
    assert_eq!(touched.load(Ordering::SeqCst), 1, "{} was not called", context.0);
    was_refused.load(Ordering::SeqCst) == 1
}

/// Returns how many of the two touches were refused.
fn cross(contexts: [Context; 2], touch: Touch, handles: [HandlePool; 2]) -> usize {
    let parties = handles.map(|handles| Arc::new(Party::new(handles)));
    let inside = Arc::new(Barrier::new(2));
    let (ended, ends) = channel();
    for (number, context) in contexts.into_iter().enumerate() {
        let (own, other) = (Arc::clone(&parties[number]), Arc::clone(&parties[1 - number]));
        let (inside, ended): (_, Sender<bool>) = (Arc::clone(&inside), ended.clone());
        thread::spawn(move || ended.send(call_and_touch(context, &own, &other, touch, &inside)).unwrap());
    }
    drop(ended);
    let names = contexts.map(|context| context.0);
    let outcomes = [0, 1].map(|_| {
        ends.recv_timeout(FOREVER)
            .unwrap_or_else(|_| panic!("in {names:?}, each thread's {} waits for the other", touch.0))
    });
    outcomes.into_iter().filter(|was_refused| *was_refused).count()
}

#[test]
fn threads_in_callbacks_do_not_wait_for_each_other() {
    host!();
    log_to(|_| called(Kind::Logger));
    let _guard = on_oom(|_, _| {
        called(Kind::Oom);
        false
    });
    observe(observer, null_mut());
    let handles = [0, 1].map(|_| HandlePool::new(Own).unwrap());
    let mut refused = Vec::new();
    for pair in pairs() {
        for touch in TOUCHES {
            if cross(pair, touch, handles) > 0 {
                refused.push((pair[0].0, pair[1].0, touch.0));
            }
        }
    }
    // What was refused would have waited for ever, or for the other call.
    for crosswise in [
        ("on_oom of a commit", "on_oom of a commit", "commit"),
        ("on_oom of a commit", "on_oom of a commit", "pin"),
        ("on_oom of a pool that wakes", "on_oom of a pool that wakes", "wake"),
        ("a library's destroy", "a library's destroy", "capture"),
    ] {
        assert!(refused.contains(&crosswise), "{crosswise:?} was not refused");
    }
    // Where a call has nothing in hand, its callbacks may wait.
    let names = ["on_oom of a request", "on_segment of a request", "an allocator's malloc", "a library's create"];
    let is_wrong = |(one, other, _): &&(&str, &str, &str)| names.contains(one) && names.contains(other);
    assert_eq!(refused.iter().find(is_wrong), None);
    end_observing();
}

#[test]
fn a_range_that_is_dropped_while_pages_of_it_are_taken_is_freed_by_who_takes_them() {
    memory!();
    observe(observer, null_mut());
    let stream = stream(0);
    let pool = Arc::new(MemPool::builder().device(device(0)).limit(2 * PAGE).build().unwrap());
    let range = pool.reserve_range(4 * PAGE, PAGE).unwrap();
    range.commit(0..2 * PAGE, &stream, CommitOptions { priority: Some(0), fill: None }).unwrap();
    let (inside, may_end) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let request = {
        let (pool, inside, may_end) = (Arc::clone(&pool), Arc::clone(&inside), Arc::clone(&may_end));
        thread::spawn(move || {
            let act: Act = Box::new(move || {
                inside.store(1, Ordering::SeqCst);
                wait_until("the range is dropped", || may_end.load(Ordering::SeqCst) == 1);
            });
            ACT.set(Some((Kind::Observer, act)));
            drop(empty_in(&pool, 2 * PAGE, &stream).unwrap());
        })
    };
    wait_until("pages are being taken", || inside.load(Ordering::SeqCst) == 1);
    let (ended, has_ended) = channel();
    thread::spawn(move || {
        drop(range);
        ended.send(()).unwrap();
    });
    has_ended.recv_timeout(FOREVER).expect("the end of a range waits for the thread that takes its pages");
    may_end.store(1, Ordering::SeqCst);
    request.join().unwrap();
    end_observing();
}

/// A range of all of a device, that the other thread's callback releases.
struct Released {
    range: usize,
    other: Mutex<Option<usize>>,
    inside: Arc<Barrier>,
    /// What the release of the other's said.
    said: Mutex<Option<(i32, String)>>,
}

unsafe extern "C" fn release_other(context: *mut c_void, _pages: *const u32, _count: u64) {
    // SAFETY: the context is the test's.
    let released = unsafe { &*context.cast::<Released>() };
    let Some(other) = released.other.lock().unwrap().take() else { return };
    released.inside.wait();
    // SAFETY: the range is the test's, and was not released.
    let status = unsafe { (C_API.range_release)(with_exposed_provenance_mut(other), -1, null_mut()) };
    *released.said.lock().unwrap() = Some((status, last_error()));
}

#[test]
fn callbacks_that_release_each_others_ranges_do_not_wait_for_each_other() {
    memory!();
    let inside = Arc::new(Barrier::new(2));
    let reserve = |ordinal: i32| {
        let (mut pool, mut range, mut address) = (null_mut(), null_mut(), null_mut());
        let of_any_kind = options();
        // SAFETY: the options say their size, and all places are those of pointers.
        unsafe {
            succeeded((C_API.pool_create)(ordinal, &raw const of_any_kind, &raw mut pool));
            succeeded((C_API.pool_reserve_range)(pool, MEMORY, PAGE, &raw mut range, &raw mut address));
            succeeded((C_API.pool_release)(pool));
        }
        range
    };
    let ranges: [*mut RangeHandle; 2] = [0, 1].map(reserve);
    let parties = [0, 1].map(|number: usize| {
        let other = Mutex::new(Some(ranges[1 - number].expose_provenance()));
        let (range, inside) = (ranges[number].expose_provenance(), Arc::clone(&inside));
        &*Box::leak(Box::new(Released { range, other, inside, said: Mutex::default() }))
    });
    let all: Vec<_> = (0..(MEMORY / PAGE) as u32).collect();
    for (party, number) in parties.iter().zip(0..) {
        let range = with_exposed_provenance_mut(party.range);
        let stream = stream(number);
        let context = std::ptr::from_ref(*party).cast_mut().cast();
        // SAFETY: the party is leaked, the stream is alive, and the pages are as many.
        unsafe {
            succeeded((C_API.range_on_discard)(range, Some(release_other), context));
            let (pages, count) = (all.as_ptr(), all.len() as u64);
            let stream = stream.raw().as_ptr();
            succeeded((C_API.range_commit)(range, pages, count, number as i32, stream, &raw const ZERO, -1));
        }
    }
    let (ended, ends) = channel();
    for number in 0..2 {
        let ended = ended.clone();
        thread::spawn(move || {
            drop(gpupool::empty(PAGE, &stream(number)).unwrap());
            ended.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        ends.recv_timeout(FOREVER).expect("each callback waits for the end of the other");
    }
    // The second to try may find that the other callback has ended.
    let mut refused = 0;
    for (party, other) in parties.iter().zip(parties.iter().rev()) {
        let (status, said) = other.said.lock().unwrap().take().unwrap();
        if status != 0 {
            assert_eq!(status, INVALID_VALUE, "{said}");
            assert!(said.contains("a callback of on_discard may not wait"), "{said}");
            refused += 1;
            // SAFETY: the range was not released: the refusal has changed nothing.
            succeeded(unsafe { (C_API.range_release)(with_exposed_provenance_mut(party.range), -1, null_mut()) });
        }
    }
    assert!(refused > 0);
}

static ZERO: i32 = 0;

static IS_RELEASING: AtomicU32 = AtomicU32::new(0);
static IS_TOLD: AtomicU32 = AtomicU32::new(0);
static HAS_GONE_ON: AtomicU32 = AtomicU32::new(0);
static MAY_RETURN: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn note_and_wait(_context: *mut c_void, _pages: *const u32, _count: u64) {
    IS_TOLD.store(1, Ordering::SeqCst);
    wait_until("the callback may return", || MAY_RETURN.load(Ordering::SeqCst) == 1);
}

/// Runs in a call of the release, as the first of all calls: lets the thread that has taken a page go on, until it tells of it
/// or has not done so.
fn let_the_other_tell() {
    if IS_RELEASING.swap(1, Ordering::SeqCst) == 0 {
        let goes_on = || [&IS_TOLD, &HAS_GONE_ON].into_iter().any(|at| at.load(Ordering::SeqCst) == 1);
        wait_until("the page is told of or not", goes_on);
    }
}

#[test]
fn a_release_in_a_callback_is_whole_though_another_thread_was_about_to_tell_of_a_page() {
    memory!(2, 4 * PAGE);
    let (own, other) = (stream(0), stream(1));
    let (mut pool, mut range, mut address) = (null_mut(), null_mut(), null_mut());
    let of_any_kind = options();
    // SAFETY: all places are those of pointers, the pages are as many, and the stream is alive.
    unsafe {
        succeeded((C_API.pool_create)(0, &raw const of_any_kind, &raw mut pool));
        succeeded((C_API.pool_reserve_range)(pool, 4 * PAGE, PAGE, &raw mut range, &raw mut address));
        succeeded((C_API.pool_release)(pool));
        succeeded((C_API.range_on_discard)(range, Some(note_and_wait), null_mut()));
        let stream = own.raw().as_ptr();
        succeeded((C_API.range_commit)(range, [0, 1, 2].as_ptr(), 3, 0, stream, null(), -1));
        succeeded((C_API.range_commit)(range, [3].as_ptr(), 1, 0, stream, &raw const ZERO, -1));
    }
    let fixed = MemPool::builder().device(device(1)).no_split(true).build().unwrap();
    fixed.on_segment(|_| called(Kind::Segment)).unwrap().keep();
    let (taken, is_taken) = channel();
    // When the page was taken, and nobody has been told yet.
    before_call(Call::MemoryUnmap, 0, move || {
        before_call(Call::ExtentCreate, 0, || HAS_GONE_ON.store(1, Ordering::SeqCst));
        Call::ALL.into_iter().for_each(|call| before_call(call, 0, let_the_other_tell));
        taken.send(()).unwrap();
        wait_until("the range is being released", || IS_RELEASING.load(Ordering::SeqCst) == 1);
    });
    let range = range.expose_provenance();
    let (released, outcome) = channel();
    let (begin, begun) = channel();
    let act: Act = Box::new(move || {
        begin.send(()).unwrap();
        is_taken.recv_timeout(FOREVER).unwrap();
        // SAFETY: the range is the test's, and not used after this.
        let status = unsafe { (C_API.range_release)(with_exposed_provenance_mut(range), -1, null_mut()) };
        let made_a_call = IS_RELEASING.swap(1, Ordering::SeqCst) == 1;
        released.send((status, last_error(), made_a_call)).unwrap();
        MAY_RETURN.store(1, Ordering::SeqCst);
    });
    thread::scope(|scope| {
        let request = scope.spawn(move || {
            begun.recv_timeout(FOREVER).unwrap();
            gpupool::empty(PAGE, &own).unwrap()
        });
        ACT.set(Some((Kind::Segment, act)));
        drop(empty_in(&fixed, PAGE, &other).unwrap());
        drop(request.join().unwrap());
    });
    clear_before_call();
    let (status, said, made_a_call) = outcome.recv_timeout(FOREVER).unwrap();
    assert!(made_a_call);
    assert_eq!(status, 0, "it has freed the range, and says: {said}");
}
