//! What threads did, kept while there is a recording: the switch, the clock, and the events' stacks. The allocator and
//! the handle pools write events to a [`Ring`] of their own. Without a recording they skip this module: the switch is a
//! bit of a state that hit paths of [`process`] read anyway.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::process;
use crate::sync::{lock, read, write};

/// A call stack, which events and blocks name by its number; 0 is none. Those taken by a plug have the highest bit set.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Stack(pub(crate) u32);

impl Stack {
    pub(crate) const NONE: Self = Self(0);
    /// The highest number of a stack of the program's language.
    #[cfg(feature = "python")]
    pub(crate) const LAST: u32 = u32::MAX >> 1;

    pub(crate) const fn is_of_plug(self) -> bool {
        self.0 >> 31 == 1
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// Events, not only the stacks of what is live.
    pub(crate) has_events: bool,
    /// The stack of each live block.
    pub(crate) has_live_stacks: bool,
    /// The stack of each allocation, and that of each free.
    pub(crate) has_alloc_stacks: bool,
    pub(crate) has_free_stacks: bool,
    /// A bit for each action of the allocator that is left out.
    pub(crate) skipped: u16,
}

static SETTINGS: AtomicU32 = AtomicU32::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

impl Settings {
    /// Returns the settings in use.
    #[inline]
    pub(crate) fn get() -> Self {
        let bits = SETTINGS.load(Ordering::Relaxed);
        Self {
            has_events: bits & 1 != 0,
            has_live_stacks: bits & 2 != 0,
            has_alloc_stacks: bits & 4 != 0,
            has_free_stacks: bits & 8 != 0,
            skipped: (bits >> 16) as u16,
        }
    }

    fn bits(self) -> u32 {
        let bit = |is_set, bit: u32| if is_set { bit } else { 0 };
        bit(self.has_events, 1)
            | bit(self.has_live_stacks, 2)
            | bit(self.has_alloc_stacks, 4)
            | bit(self.has_free_stacks, 8)
            | u32::from(self.skipped) << 16
    }
}

/// Starts to record, with room for so many events of a kind.
pub(crate) fn start(settings: Settings, most: usize) {
    SETTINGS.store(settings.bits(), Ordering::Relaxed);
    MOST.store(most, Ordering::Relaxed);
    start_clock();
    process::set_recorded(true);
}

pub(crate) fn start_clock() {
    LazyLock::force(&CLOCK);
}

pub(crate) fn stop() {
    process::set_recorded(false);
    SETTINGS.store(0, Ordering::Relaxed);
    set_stack_callback(None);
}

/// Locks out other starts and ends of a recording or observation.
pub(crate) fn lock_changes() -> MutexGuard<'static, ()> {
    static CHANGES: Mutex<()> = Mutex::new(());
    lock(&CHANGES)
}

pub(crate) type Forget = fn();

static FORGETS: Mutex<Vec<Forget>> = Mutex::new(Vec::new());

/// Adds a kind of events, when its first is written.
pub(crate) fn add_kind(forget: Forget) {
    lock(&FORGETS).push(forget);
}

pub(crate) fn forget_events() {
    let forgets = lock(&FORGETS).clone();
    forgets.into_iter().for_each(|forget| forget());
}

#[inline]
pub(crate) fn most() -> usize {
    MOST.load(Ordering::Relaxed)
}

struct Clock {
    start: Instant,
    /// Nanoseconds since 1970 at the start.
    unix: u64,
}

static CLOCK: LazyLock<Clock> = LazyLock::new(|| Clock {
    start: Instant::now(),
    unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64),
});

/// Returns the nanoseconds of a clock that never goes back and is the same for all threads.
#[inline]
pub(crate) fn now() -> u64 {
    CLOCK.start.elapsed().as_nanos() as u64
}

/// Returns the microseconds since 1970 of such a time.
pub(crate) fn unix_micros(time: u64) -> u64 {
    (CLOCK.unix + time) / 1000
}

thread_local! {
    /// The stack of the thread's events, once it was taken; none if it is yet to be taken.
    static STACK: Cell<Option<Stack>> = const { Cell::new(None) };
}

/// A program's function that takes the calling thread's stack, unless there is none, or it may not be taken now.
pub(crate) type StackCallback = Arc<dyn Fn(Purpose) -> Stack + Send + Sync>;

static STACK_CALLBACK: RwLock<Option<StackCallback>> = RwLock::new(None);

/// Sets the function that takes stacks, until a recording ends.
pub(crate) fn set_stack_callback(callback: Option<StackCallback>) {
    *write(&STACK_CALLBACK) = callback;
}

/// What a stack is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// An allocation, with the pages that come or go for it.
    Allocation,
    /// A free, or memory that is given back on request.
    Free,
}

/// Holds the calling thread's stack, which its events name, until dropped. To be made before any lock is taken, since
/// it may run code of the program's language.
#[must_use = "events name the stack only while this lives"]
#[derive(Debug)]
pub(crate) struct HeldStack {
    before: Option<Stack>,
    this_thread: PhantomData<*mut ()>,
}

/// Takes the stack if it is wanted and the thread does not hold one already.
#[inline]
pub(crate) fn hold_stack(purpose: Purpose) -> Option<HeldStack> {
    if process::state().is_recorded() { take_stack(purpose) } else { None }
}

#[cold]
fn take_stack(purpose: Purpose) -> Option<HeldStack> {
    let settings = Settings::get();
    let is_wanted = match purpose {
        Purpose::Allocation => settings.has_live_stacks || settings.has_alloc_stacks,
        Purpose::Free => settings.has_free_stacks,
    };
    if !is_wanted || STACK.get().is_some() {
        return None;
    }
    let held = HeldStack { before: STACK.get(), this_thread: PhantomData };
    // The program's code may allocate: that takes no stack, to avoid endless recursion.
    STACK.set(Some(Stack::NONE));
    // A clone, so that nothing is locked while the program is called.
    let callback = read(&STACK_CALLBACK).clone();
    let stack = callback.map_or(Stack::NONE, |take| take(purpose));
    STACK.set(Some(stack));
    Some(held)
}

impl Drop for HeldStack {
    fn drop(&mut self) {
        STACK.set(self.before);
    }
}

#[inline]
fn held_stack() -> Stack {
    STACK.get().unwrap_or(Stack::NONE)
}

/// Returns the stack that the thread holds, if this kind of event is to name one.
#[inline]
pub(crate) fn stack_if(is_wanted: bool) -> Stack {
    if is_wanted { held_stack() } else { Stack::NONE }
}
