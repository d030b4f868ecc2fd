//! A device's memory that several processes map: others map this process's, which the driver then gets back only once
//! they unmap it; and this process keeps idle mappings of theirs. The module of shared blocks counts them. Giving memory
//! back waits for them.
//!
//! Others keep their mappings by the numbers of the regions of shared blocks, which are lists of extents. A block in the
//! same place as an earlier one is in the same region, so a process that still maps it maps nothing more. A region ends when
//! the first of its extents is given back to the driver, which may reuse the extent's number. Until then it is the same
//! memory, at whatever addresses the owner has its pages.
//!
//! Another process's mapping of a region does not hinder this process's use and moves of the pages: it only keeps physical
//! memory from the driver. So once the region has ended, that process is asked to unmap it, and the thread that gives memory
//! back waits a while.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use log::Level;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::write;

use super::under_way::log_out;
use crate::ids::MemoryLocation;
use crate::memory::tuning::WAIT_ASLEEP;
use crate::runtime::Extent;
use crate::sync::{InHand, lock};

/// The memory of one device that several processes map.
#[derive(Debug)]
pub(in crate::memory) struct Elsewhere {
    pub(in crate::memory) location: MemoryLocation,
    /// How many mappings other processes were asked to end, less those that took too long.
    awaited: Mutex<u64>,
    /// Notified when mappings have ended.
    ended: Condvar,
    /// The idle mappings by this process of other processes' blocks.
    pub(in crate::memory) idle: AtomicU64,
}

impl Elsewhere {
    pub(super) fn new(location: MemoryLocation) -> Self {
        Self { location, awaited: Mutex::default(), ended: Condvar::new(), idle: AtomicU64::new(0) }
    }

    /// Notes that other processes were asked to end so many mappings.
    fn ask(&self, mappings: u64) {
        *lock(&self.awaited) += mappings;
    }

    /// Notes that such a mapping has ended, perhaps too late to be counted.
    fn end(&self) {
        let mut awaited = lock(&self.awaited);
        *awaited = awaited.saturating_sub(1);
        self.ended.notify_all();
    }

    /// Waits, for a limited time, until the mappings that were asked for have ended; returns how many are left. Those
    /// are not waited for again, so that a stopped process delays this one only once.
    fn wait(&self, patience: Duration) -> u64 {
        let waited = self.ended.wait_timeout_while(lock(&self.awaited), patience, |awaited| *awaited > 0);
        let (mut awaited, _) = waited.unwrap_or_else(PoisonError::into_inner);
        mem::take(&mut *awaited)
    }

    /// Waits a while for other processes that still map what this one has given back.
    pub(in crate::memory) fn wait_for_processes(&self, patience: Duration) {
        // The thread that hears of their ends cannot wait for them.
        if is_thread_for_others() {
            return;
        }
        let (late, location) = (self.wait(patience), self.location);
        if late > 0 {
            log_out(
                Level::Info,
                format_args!(
                    "shared memory on {location}: other processes still have {late} mappings of memory that was given back: the \
                     driver has it when they go on, or end"
                ),
            );
        }
    }

    /// Ends this process's idle mappings of others' blocks: the driver has the memory then, unless it refuses.
    pub(in crate::memory) fn end_idle(&self) {
        if self.idle.load(Ordering::Relaxed) > 0 && !is_thread_for_others() {
            // As long as the most idle mappings may take.
            end_idle(self.location, WAIT_ASLEEP);
        }
    }
}

/// An extent as its owner describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct DescribedExtent {
    /// As the owner's driver numbers it.
    pub(in crate::memory) extent: Extent,
    pub(in crate::memory) bytes: u64,
}

/// A list of extents, kept while an attached block is in it, or another process maps it.
#[derive(Debug)]
pub(in crate::memory) struct Region {
    /// Unique in this process.
    pub(in crate::memory) number: u64,
    /// Of the device that has the extents.
    pub(in crate::memory) elsewhere: &'static Elsewhere,
    pub(in crate::memory) extents: Vec<DescribedExtent>,
    state: Mutex<RegionState>,
}

#[derive(Default, Debug)]
struct RegionState {
    has_ended: bool,
    /// How many mappings of it other processes keep.
    kept: u64,
}

/// The regions of each extent, by where it is and its number; some are gone, or have ended with another extent.
type ByExtent = BTreeMap<(MemoryLocation, u64), Vec<Weak<Region>>>;

static REGIONS: Mutex<ByExtent> = Mutex::new(BTreeMap::new());

/// Counts the ended regions that another process still maps.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Ends the regions that contain an extent, which is about to go back to the driver, and asks other processes to unmap
/// them.
pub(super) fn end_with(location: MemoryLocation, extent: Extent) {
    let Some(regions) = lock(&REGIONS).remove(&(location, extent.number())) else { return };
    let mut is_kept = false;
    for region in regions.iter().filter_map(Weak::upgrade) {
        let mut state = lock(&region.state);
        if !mem::replace(&mut state.has_ended, true) {
            is_kept |= state.kept > 0;
            region.elsewhere.ask(state.kept);
        }
    }
    if is_kept {
        ENDED.fetch_add(1, Ordering::SeqCst);
        wake();
    }
}

/// Returns a number that changes whenever connections must look for mappings to end.
pub(in crate::memory) fn regions_ended() -> u64 {
    ENDED.load(Ordering::SeqCst)
}

impl Region {
    /// Returns the region of these extents, which are those of a block that is held.
    pub(in crate::memory) fn find(elsewhere: &'static Elsewhere, extents: Vec<DescribedExtent>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let key = |each: &DescribedExtent| (elsewhere.location, each.extent.number());
        let mut regions = lock(&REGIONS);
        let of_first = extents.first().and_then(|first| regions.get(&key(first)));
        let mut known = of_first.into_iter().flatten().filter_map(Weak::upgrade);
        if let Some(region) = known.find(|region| region.extents == extents && !region.has_ended()) {
            return region;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let region = Arc::new(Self { number, elsewhere, extents, state: Mutex::default() });
        for each in &region.extents {
            let known = regions.entry(key(each)).or_default();
            known.retain(|known| known.strong_count() > 0);
            known.push(Arc::downgrade(&region));
        }
        region
    }

    pub(in crate::memory) fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }
}

/// Another process's mapping of a region, until this is dropped.
#[derive(Debug)]
pub(in crate::memory) struct KeptMapping {
    region: Arc<Region>,
    /// Whether the process was asked to end it.
    is_asked: bool,
}

impl KeptMapping {
    pub(in crate::memory) fn new(region: Arc<Region>) -> Self {
        let mut state = lock(&region.state);
        state.kept += 1;
        if state.has_ended {
            region.elsewhere.ask(1);
        }
        drop(state);
        Self { region, is_asked: false }
    }

    /// Returns whether the process is to be asked to end it; true only once.
    pub(in crate::memory) fn is_to_end(&mut self) -> bool {
        let is_to_end = !self.is_asked && self.region.has_ended();
        self.is_asked |= is_to_end;
        is_to_end
    }
}

impl Drop for KeptMapping {
    fn drop(&mut self) {
        let mut state = lock(&self.region.state);
        state.kept -= 1;
        if state.has_ended {
            self.region.elsewhere.end();
        }
    }
}

/// Ready to be read once the thread was woken.
static WAKEUP: OnceLock<OwnedFd> = OnceLock::new();

/// The devices whose idle mappings are to end, each until the thread has tried to.
static ASKED: Mutex<Vec<MemoryLocation>> = Mutex::new(Vec::new());
/// Notified when it has tried.
static ANSWERED: Condvar = Condvar::new();

thread_local! {
    static IS_FOR_OTHERS: Cell<bool> = const { Cell::new(false) };
    static IS_IN_THEIR_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Declares this thread the one that talks to other processes, which wait for it. It never waits for itself, nor for others'
/// code.
pub(in crate::memory) fn be_thread_for_others() {
    InHand::begin().for_ever();
    let _ = IS_FOR_OTHERS.try_with(|is| is.set(true));
}

/// Returns whether this is that thread.
fn is_thread_for_others() -> bool {
    IS_FOR_OTHERS.try_with(Cell::get) == Ok(true)
}

/// Runs what gives memory back in the middle of others' call of the driver, who may hold what callbacks wait for: they are
/// told later, as of memory that was given to other processes.
pub(in crate::memory) fn in_calls_of_others<R>(run: impl FnOnce() -> R) -> R {
    struct InTheirCall;
    impl Drop for InTheirCall {
        fn drop(&mut self) {
            let _ = IS_IN_THEIR_CALL.try_with(|is| is.set(false));
        }
    }
    // Also after a panic, and never one within another.
    let _in_their_call = InTheirCall;
    let _ = IS_IN_THEIR_CALL.try_with(|is| is.set(true));
    run()
}

/// Returns whether this thread is in [`in_calls_of_others`].
pub(in crate::memory) fn is_in_call_of_others() -> bool {
    IS_IN_THEIR_CALL.try_with(Cell::get) == Ok(true)
}

/// Returns whether callbacks for what this thread gives back are to be told later.
pub(in crate::memory) fn tells_later() -> bool {
    is_thread_for_others() || is_in_call_of_others()
}

/// Returns the descriptor that is ready to be read after [`wake`]. The first call makes it.
pub(in crate::memory) fn wakeup() -> rustix::io::Result<&'static OwnedFd> {
    if let Some(wakeup) = WAKEUP.get() {
        return Ok(wakeup);
    }
    let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    Ok(WAKEUP.get_or_init(|| wakeup))
}

/// Wakes the thread, which then looks what to do.
pub(in crate::memory) fn wake() {
    if let Some(wakeup) = WAKEUP.get() {
        // Fails only if the count is at its limit, and then the thread is being woken anyway.
        let _ = write(wakeup, &1_u64.to_ne_bytes());
    }
}

/// Makes the thread end the idle mappings for a device, and waits until it has tried, for a limited time, as it may be
/// in a logger that waits for the calling thread.
fn end_idle(location: MemoryLocation, patience: Duration) {
    let mut asked = lock(&ASKED);
    asked.push(location);
    wake();
    drop(ANSWERED.wait_timeout_while(asked, patience, |asked| asked.contains(&location)));
}

/// Ends the idle mappings for each device asked for. The thread calls this whenever it is woken.
pub(in crate::memory) fn end_where_asked(end_idle: impl Fn(MemoryLocation)) {
    let locations = lock(&ASKED).clone();
    locations.iter().copied().for_each(end_idle);
    lock(&ASKED).drain(..locations.len());
    ANSWERED.notify_all();
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::ids::Device;
    use crate::memory::tuning::PAGE;

    fn is_awaited(elsewhere: &Elsewhere) -> bool {
        *lock(&elsewhere.awaited) > 0
    }

    #[test]
    fn what_was_waited_for_in_vain_is_not_waited_for_again() {
        let elsewhere = Elsewhere::new(Device::from_ordinal(0).into());
        assert_eq!(elsewhere.wait(WAIT_ASLEEP), 0);
        elsewhere.ask(3);
        assert!(is_awaited(&elsewhere));
        assert_eq!(elsewhere.wait(Duration::ZERO), 3);
        assert!(!is_awaited(&elsewhere));
        elsewhere.ask(2);
        assert_eq!(elsewhere.wait(Duration::ZERO), 2);
        // A late answer still counts; mappings asked for from then on are waited for.
        (0..4).for_each(|_| elsewhere.end());
        elsewhere.ask(1);
        assert!(is_awaited(&elsewhere));
        (0..9).for_each(|_| elsewhere.end());
        assert!(!is_awaited(&elsewhere));
    }

    #[test]
    fn one_that_waits_goes_on_when_the_last_has_ended() {
        let elsewhere = Elsewhere::new(Device::from_ordinal(0).into());
        elsewhere.ask(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| elsewhere.wait(Duration::from_secs(600)));
            elsewhere.end();
            elsewhere.end();
            assert_eq!(waiting.join().ok(), Some(0));
        });
    }

    static ONE: LazyLock<Elsewhere> = LazyLock::new(|| Elsewhere::new(Device::from_ordinal(7).into()));

    fn extents(numbers: &[u64]) -> Vec<DescribedExtent> {
        numbers.iter().map(|number| DescribedExtent { extent: Extent::from_number(*number), bytes: PAGE }).collect()
    }

    fn known(location: MemoryLocation, number: u64) -> usize {
        lock(&REGIONS).get(&(location, number)).map_or(0, Vec::len)
    }

    /// One test, since regions are the process's.
    #[test]
    fn a_region_is_its_extents_and_ends_with_the_first_that_goes() {
        let (one_device, device) = (&*ONE, ONE.location);
        let [one, two, turned] = [&[1, 2][..], &[1, 2, 3], &[2, 1]].map(|each| Region::find(one_device, extents(each)));
        assert!(one.number != two.number && one.number != turned.number && two.number != turned.number);
        assert!(Arc::ptr_eq(&Region::find(one_device, extents(&[1, 2])), &one));

        // A reused number is other memory.
        end_with(device, Extent::from_number(3));
        assert!(two.has_ended() && !one.has_ended() && !turned.has_ended());
        let again = Region::find(one_device, extents(&[1, 2, 3]));
        assert!(again.number > turned.number && !again.has_ended());
        // An extent of another device ends no region of this one.
        end_with(Device::from_ordinal(6).into(), Extent::from_number(1));
        assert!(!one.has_ended());
        end_with(device, Extent::from_number(2));
        assert!(one.has_ended() && turned.has_ended() && again.has_ended());
        assert_eq!(known(device, 2), 0);
        // One that ended with another of its extents is found no more, and ends once.
        let anew = Region::find(one_device, extents(&[1, 2]));
        assert!(!Arc::ptr_eq(&anew, &one) && !anew.has_ended());

        // Unused regions are forgotten where others begin, with the other regions of their extents left.
        let (short, long) = (Region::find(one_device, extents(&[4])), Region::find(one_device, extents(&[4, 5])));
        drop(long);
        assert!(Arc::ptr_eq(&Region::find(one_device, extents(&[4])), &short));
        let others = [&[4, 5][..], &[4, 6], &[4, 7]].map(|each| Region::find(one_device, extents(each)));
        assert_eq!((known(device, 4), known(device, 5)), (4, 1));
        drop((short, others));
        let _again = Region::find(one_device, extents(&[4]));
        assert_eq!(known(device, 4), 1);
    }

    #[test]
    fn what_is_kept_of_a_region_that_has_ended_is_asked_for_once_and_waited_for_until_it_ends() {
        static APART: LazyLock<Elsewhere> = LazyLock::new(|| Elsewhere::new(Device::from_ordinal(5).into()));
        let apart = &*APART;
        let region = Region::find(apart, extents(&[1]));
        let (mut before, over) = (KeptMapping::new(Arc::clone(&region)), KeptMapping::new(Arc::clone(&region)));
        drop(over);
        assert!(!before.is_to_end() && !is_awaited(apart));
        let ended_before = regions_ended();
        end_with(apart.location, Extent::from_number(1));
        assert!(regions_ended() > ended_before && is_awaited(apart));
        assert!(before.is_to_end() && !before.is_to_end());
        drop(before);
        assert!(!is_awaited(apart));
        // Also a mapping that is kept only now.
        let mut after = KeptMapping::new(region);
        assert!(is_awaited(apart) && after.is_to_end());
        drop(after);
        assert!(!is_awaited(apart));
    }

    #[test]
    fn one_that_asks_goes_on_once_it_was_answered() {
        let (device, ended) = (Device::from_ordinal(70).into(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                end_idle(device, Duration::from_secs(600));
                ended.load(Ordering::SeqCst)
            });
            while !asking.is_finished() {
                end_where_asked(|asked| _ = ended.fetch_add(u64::from(asked == device), Ordering::SeqCst));
                std::thread::yield_now();
            }
            assert_eq!(asking.join().ok(), Some(1));
        });
        // It also goes on without an answer.
        end_idle(device, Duration::ZERO);
        end_where_asked(|_| ());
    }
}
