//! The regions of shared blocks: lists of extents, by whose numbers other processes keep their mappings.
//!
//! A block in the same place as an earlier one is in the same region, so a process that still maps it maps nothing
//! more. A region ends when the first of its extents is given back to the driver, which may reuse the extent's number.
//! Until then it is the same memory, at whatever addresses the owner has its pages.
//!
//! Another process's mapping of a region does not hinder this process's use and moves of the pages: it only keeps
//! physical memory from the driver. So once the region has ended, that process is asked to unmap it, and the thread
//! that gives memory back waits a while.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::{Elsewhere, wake};
use crate::ids::MemoryLocation;
use crate::runtime::Extent;
use crate::sync::lock;

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

type ByExtent = HashMap<(MemoryLocation, Extent), Vec<Weak<Region>>>;

/// Made with the first region, so that memory is given back without this lock where nothing is shared.
static REGIONS: OnceLock<Mutex<ByExtent>> = OnceLock::new();

/// Counts the ended regions that another process still maps.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Ends the regions that contain an extent, which is about to go back to the driver, and asks other processes to unmap
/// them.
pub(in crate::memory::device) fn end_with(location: MemoryLocation, extent: Extent) {
    let Some(regions) = REGIONS.get() else { return };
    // Dropped after the lock, which the end of a region takes.
    let mut ended = Vec::new();
    let mut regions = lock(regions);
    ended.extend(regions.remove(&(location, extent)).iter().flatten().filter_map(Weak::upgrade));
    let mut is_kept = false;
    for region in &ended {
        let mut state = lock(&region.state);
        state.has_ended = true;
        is_kept |= state.kept > 0;
        region.elsewhere.ask(state.kept);
        drop(state);
        // None of its extents leads to an ended region.
        region.leave(&mut regions);
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
        // Dropped after the lock, which the end of a region takes.
        let mut known = Vec::new();
        let mut regions = lock(REGIONS.get_or_init(Mutex::default));
        let of_first = extents.first().and_then(|first| regions.get(&(elsewhere.location, first.extent)));
        known.extend(of_first.into_iter().flatten().filter_map(Weak::upgrade));
        if let Some(region) = known.iter().find(|region: &&Arc<Self>| region.extents == extents) {
            return Arc::clone(region);
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let region = Arc::new(Self { number, elsewhere, extents, state: Mutex::default() });
        for each in &region.extents {
            regions.entry((elsewhere.location, each.extent)).or_default().push(Arc::downgrade(&region));
        }
        region
    }

    pub(in crate::memory) fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    fn leave(&self, regions: &mut ByExtent) {
        for each in &self.extents {
            let key = (self.elsewhere.location, each.extent);
            if let Some(known) = regions.get_mut(&key) {
                known.retain(|known| !std::ptr::eq(known.as_ptr(), self));
                if known.is_empty() {
                    regions.remove(&key);
                }
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.has_ended()
            && let Some(regions) = REGIONS.get()
        {
            self.leave(&mut lock(regions));
        }
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

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::ids::Device;
    use crate::memory::tuning::PAGE;

    static ONE: LazyLock<Elsewhere> = LazyLock::new(|| Elsewhere::new(Device::from_ordinal(7).into()));

    fn extents(numbers: &[u64]) -> Vec<DescribedExtent> {
        numbers.iter().map(|number| DescribedExtent { extent: Extent::from_number(*number), bytes: PAGE }).collect()
    }

    fn are_known(location: MemoryLocation, numbers: &[u64]) -> bool {
        let regions = REGIONS.get().map(lock);
        let is_known =
            |each: &DescribedExtent| regions.as_ref().is_some_and(|all| all.contains_key(&(location, each.extent)));
        extents(numbers).iter().any(is_known)
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
        assert!(!are_known(device, &[1, 2, 3]));

        // Unused regions are forgotten, with the other regions of their extents left.
        let (short, long) = (Region::find(one_device, extents(&[4])), Region::find(one_device, extents(&[4, 5])));
        drop(long);
        assert!(are_known(device, &[4]) && !are_known(device, &[5]));
        assert!(Arc::ptr_eq(&Region::find(one_device, extents(&[4])), &short));
        drop(short);
        assert!(!are_known(device, &[4]));
    }

    #[test]
    fn what_is_kept_of_a_region_that_has_ended_is_asked_for_once_and_waited_for_until_it_ends() {
        static APART: LazyLock<Elsewhere> = LazyLock::new(|| Elsewhere::new(Device::from_ordinal(5).into()));
        let apart = &*APART;
        let region = Region::find(apart, extents(&[1]));
        let (mut before, over) = (KeptMapping::new(Arc::clone(&region)), KeptMapping::new(Arc::clone(&region)));
        drop(over);
        assert!(!before.is_to_end() && !apart.is_awaited());
        let ended_before = regions_ended();
        end_with(apart.location, Extent::from_number(1));
        assert!(regions_ended() > ended_before && apart.is_awaited());
        assert!(before.is_to_end() && !before.is_to_end());
        drop(before);
        assert!(!apart.is_awaited());
        // Also a mapping that is kept only now.
        let mut after = KeptMapping::new(region);
        assert!(apart.is_awaited() && after.is_to_end());
        drop(after);
        assert!(!apart.is_awaited());
    }
}
