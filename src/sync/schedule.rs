//! Random schedules of the real code, for tests, which is too large for loom to run in every interleaving.
//!
//! Of a few threads one runs at a time, and the next is chosen at every lock, atomic and call of the simulated driver.
//! So orders that come up once in a million runs come within some thousands, and a seed repeats one. A thread that
//! waits for another's lock or condition lets others run first. One that blocks in the operating system, such as
//! waiting for a thread of no schedule, is noticed after a while, and others go on. Threads of no schedule pay for one
//! load.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread may take between choices before others go on beside it.
const STUCK_AFTER: Duration = Duration::from_millis(50);
/// How long all threads may only wait for each other.
const DEADLOCK_AFTER: Duration = Duration::from_secs(60);
const NONE: usize = usize::MAX;

/// What a thread of a schedule runs.
pub type Body = Box<dyn FnOnce() + Send>;

static IS_ON: AtomicBool = AtomicBool::new(false);
/// The thread that may run.
static RUNNING: AtomicUsize = AtomicUsize::new(NONE);
/// How many choices there were.
static CHOICES: AtomicU64 = AtomicU64::new(0);
/// How many of them were made by threads that could go on.
static PROGRESS: AtomicU64 = AtomicU64::new(0);
static STATE: Mutex<Option<ScheduleState>> = Mutex::new(None);
/// Schedules run one after the other.
static ONE: Mutex<()> = Mutex::new(());

thread_local! {
    // Without a destructor, so that it can be read while the thread's locals are destroyed.
    static MEMBER: Cell<usize> = const { Cell::new(NONE) };
    static END: ThreadEnd = const { ThreadEnd };
}

/// Leaves the schedule when the thread's other locals are destroyed: what is made first goes last.
struct ThreadEnd;

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        let me = MEMBER.replace(NONE);
        let next = state().as_mut().and_then(|state| {
            state.members[me].is_over = true;
            state.watcher.unpark();
            state.choose(me, true)
        });
        if let Some((next, thread)) = next {
            RUNNING.store(next, Ordering::Release);
            thread.unpark();
        }
    }
}

struct Member {
    thread: Option<Thread>,
    is_over: bool,
    /// The progress at which it could not go on.
    waits_at: Option<u64>,
    /// In schedules by priority, the highest of the threads that can go on runs.
    priority: u64,
}

struct ScheduleState {
    random: Random,
    members: Vec<Member>,
    /// The thread that waits for the others' ends.
    watcher: Thread,
    way: ThreadChoice,
}

/// How the next thread is chosen.
enum ThreadChoice {
    /// Once in so many choices any other one.
    Dice(u64),
    /// The one of the highest priority; once in so many choices the running one gets the lowest.
    Priority(u64),
}

/// Numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

impl ScheduleState {
    fn new(seed: u64, threads: usize) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..8).for_each(|_| {
            random.below(1);
        });
        let way = match random.below(6) {
            0 => ThreadChoice::Dice(2),
            1 => ThreadChoice::Dice(8),
            2 => ThreadChoice::Dice(64),
            3 => ThreadChoice::Priority(30),
            4 => ThreadChoice::Priority(300),
            _ => ThreadChoice::Priority(3000),
        };
        let member =
            |_| Member { thread: None, is_over: false, waits_at: None, priority: (1 << 32) + random.below(1 << 32) };
        let members = (0..threads).map(member).collect();
        Self { random, members, watcher: thread::current(), way }
    }

    /// Returns the thread to run next; none if all are over.
    fn choose(&mut self, me: usize, must_leave: bool) -> Option<(usize, Thread)> {
        let progress = PROGRESS.load(Ordering::Relaxed);
        let can_go_on = |(_, member): &(usize, &Member)| {
            !member.is_over && member.thread.is_some() && member.waits_at.is_none_or(|at| at < progress)
        };
        let mut able: Vec<usize> = self.members.iter().enumerate().filter(can_go_on).map(|(at, _)| at).collect();
        if able.is_empty() {
            // All wait for each other, or for a thread of no schedule.
            let is_left = |(_, member): &(usize, &Member)| !member.is_over && member.thread.is_some();
            able = self.members.iter().enumerate().filter(is_left).map(|(at, _)| at).collect();
        }
        let any = *able.get(self.random.below(able.len().max(1) as u64) as usize)?;
        let stays = !must_leave && able.contains(&me);
        let next = match self.way {
            ThreadChoice::Dice(one_in) if stays && self.random.below(one_in) != 0 => me,
            ThreadChoice::Dice(_) => any,
            ThreadChoice::Priority(one_in) => {
                if self.random.below(one_in) == 0 {
                    let lowest = self.members.iter().map(|member| member.priority).min().unwrap_or(1);
                    self.members[me].priority = lowest.saturating_sub(1);
                }
                able.into_iter().max_by_key(|&at| self.members[at].priority).unwrap_or(any)
            }
        };
        self.members[next].thread.clone().map(|thread| (next, thread))
    }
}

fn state() -> MutexGuard<'static, Option<ScheduleState>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_for_turn(me: usize) {
    while RUNNING.load(Ordering::Acquire) != me {
        thread::park();
    }
}

/// Lets another thread of the schedule run, if one is chosen.
#[inline]
pub(crate) fn point() {
    if IS_ON.load(Ordering::Relaxed) {
        step(MEMBER.get(), false);
    }
}

/// Returns whether the calling thread is in a schedule, and so must not block.
#[inline]
pub(crate) fn is_member() -> bool {
    IS_ON.load(Ordering::Relaxed) && MEMBER.get() != NONE
}

/// Lets others run first, since the calling thread cannot go on by itself.
pub(crate) fn wait() {
    if IS_ON.load(Ordering::Relaxed) && MEMBER.get() != NONE {
        step(MEMBER.get(), true);
    } else {
        thread::yield_now();
    }
}

#[cold]
fn step(me: usize, waits: bool) {
    if me == NONE {
        return;
    }
    // Others go on beside a thread that took too long.
    wait_for_turn(me);
    CHOICES.fetch_add(1, Ordering::Relaxed);
    let next = {
        let mut state = state();
        let Some(state) = state.as_mut() else { return };
        if waits {
            state.members[me].waits_at = Some(PROGRESS.load(Ordering::Relaxed));
        } else {
            state.members[me].waits_at = None;
            PROGRESS.fetch_add(1, Ordering::Relaxed);
        }
        state.choose(me, waits)
    };
    match next {
        Some((next, thread)) if next != me => {
            RUNNING.store(next, Ordering::Release);
            thread.unpark();
            wait_for_turn(me);
        }
        // The only one left waits for a thread of no schedule.
        _ if waits => thread::yield_now(),
        _ => {}
    }
}

/// Pins the calling thread to one processor, where threads in turns hand over ten times as fast.
fn stay_on(cpu: i32) {
    // SAFETY: a set of processors is a plain array of bits, for which zeros are empty, and the call reads no more than its size;
    // a refusal costs time alone.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu.max(0) as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Runs the threads' functions in the schedule of this seed, and returns how many choices there were.
///
/// # Errors
/// The first panic of a thread.
///
/// # Panics
/// If the threads only wait for each other.
pub fn run(seed: u64, bodies: Vec<Body>) -> thread::Result<u64> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    *state() = Some(ScheduleState::new(seed, bodies.len()));
    let before = CHOICES.load(Ordering::Relaxed);
    RUNNING.store(NONE, Ordering::Release);
    IS_ON.store(true, Ordering::Relaxed);
    // SAFETY: the call takes nothing. Miri does not know it, and runs one thread at a time anyway.
    let cpu = if cfg!(miri) { 0 } else { unsafe { libc::sched_getcpu() } };
    let main = |me: usize, body: Body| {
        move || {
            END.with(|_| ());
            stay_on(cpu);
            MEMBER.set(me);
            wait_for_turn(me);
            catch_unwind(AssertUnwindSafe(body))
        }
    };
    let threads: Vec<_> = bodies.into_iter().enumerate().map(|(me, body)| thread::spawn(main(me, body))).collect();
    let first = {
        let mut state = state();
        state.as_mut().and_then(|state| {
            for (member, thread) in state.members.iter_mut().zip(&threads) {
                member.thread = Some(thread.thread().clone());
            }
            state.choose(0, true)
        })
    };
    if let Some((first, thread)) = first {
        RUNNING.store(first, Ordering::Release);
        thread.unpark();
    }
    watch(seed);
    let outcomes: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    IS_ON.store(false, Ordering::Relaxed);
    *state() = None;
    for outcome in outcomes {
        outcome??;
    }
    Ok(CHOICES.load(Ordering::Relaxed) - before)
}

/// Until all threads have ended, lets others go on when one blocks in the operating system.
fn watch(seed: u64) {
    let have_ended = || state().as_ref().is_none_or(|state| state.members.iter().all(|member| member.is_over));
    let (mut choices, mut chosen_at) = (0, Instant::now());
    let (mut progress, mut went_on_at) = (0, Instant::now());
    while !have_ended() {
        thread::park_timeout(STUCK_AFTER);
        let (choices_now, progress_now) = (CHOICES.load(Ordering::Relaxed), PROGRESS.load(Ordering::Relaxed));
        if progress_now != progress {
            (progress, went_on_at) = (progress_now, Instant::now());
        }
        assert!(went_on_at.elapsed() < DEADLOCK_AFTER, "the threads of schedule {seed} wait for each other");
        if choices_now != choices {
            (choices, chosen_at) = (choices_now, Instant::now());
        } else if chosen_at.elapsed() >= STUCK_AFTER && !have_ended() {
            chosen_at = Instant::now();
            let next = state().as_mut().and_then(|state| {
                let running = RUNNING.load(Ordering::Acquire);
                if let Some(member) = state.members.get_mut(running) {
                    member.waits_at = Some(progress_now);
                }
                state.choose(running.min(state.members.len() - 1), true)
            });
            if let Some((next, thread)) = next {
                RUNNING.store(next, Ordering::Release);
                thread.unpark();
            }
        }
    }
}
