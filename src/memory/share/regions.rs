//! The regions that shared blocks lie in: lists of extents, by whose numbers other processes keep what they have mapped.
//!
//! A block in the same place as an earlier one lies in the same region, so a process that keeps the region mapped maps nothing for
//! it. A region ends when the first of its extents is given back to the driver, which may give the extent's number to another one
//! then. Until then it is the same memory, at whatever addresses the owner has its pages.
//!
//! A mapping that another process keeps, though it has let go of every block there, never delays this process: the pages are used
//! again and moved as if it were not there. It only keeps physical memory from going back to the driver. So once the region has
//! ended, the process is asked to end its mapping, and the thread that gives memory back waits a while for that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::background::wake;
use super::wire::DescribedExtent;
use crate::ids::MemoryLocation;
use crate::memory::device::DeviceMemory;
use crate::runtime::Extent;
use crate::sync::lock;

/// A list of extents. It is known as long as a block that was attached lies in it, or another process has it mapped.
#[derive(Debug)]
pub(super) struct Region {
    /// No other region of this process ever has it.
    pub(super) number: u64,
    pub(super) memory: &'static DeviceMemory,
    pub(super) extents: Vec<DescribedExtent>,
    state: Mutex<RegionState>,
}

#[derive(Default, Debug)]
struct RegionState {
    has_ended: bool,
    /// How many mappings of it other processes keep.
    kept: u64,
}

/// The regions that an extent is part of.
type ByExtent = HashMap<(MemoryLocation, Extent), Vec<Weak<Region>>>;

static REGIONS: Mutex<Option<ByExtent>> = Mutex::new(None);

/// Counts the times that a region has ended of which another process keeps a mapping.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Returns the region that consists of these extents, those of a block that is held.
pub(super) fn find(memory: &'static DeviceMemory, extents: Vec<DescribedExtent>) -> Arc<Region> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Dropped after the lock, which the end of a region takes.
    let mut others = Vec::new();
    let mut regions = lock(&REGIONS);
    let regions = regions.get_or_insert_default();
    let of_first = extents.first().and_then(|first| regions.get(&(memory.location, first.extent)));
    for region in of_first.into_iter().flatten().filter_map(Weak::upgrade) {
        if region.extents == extents {
            return region;
        }
        others.push(region);
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let region = Arc::new(Region { number, memory, extents, state: Mutex::default() });
    for each in &region.extents {
        regions.entry((memory.location, each.extent)).or_default().push(Arc::downgrade(&region));
    }
    region
}

/// Ends the regions that an extent is part of, which is about to go back to the driver, and has other processes asked to end their
/// mappings.
pub(super) fn end_with(location: MemoryLocation, extent: Extent) {
    if end(location, extent).iter().any(|region| lock(&region.state).kept > 0) {
        ENDED.fetch_add(1, Ordering::SeqCst);
        wake();
    }
}

/// Ends the regions that an extent is part of, and returns them.
fn end(location: MemoryLocation, extent: Extent) -> Vec<Arc<Region>> {
    let mut regions = lock(&REGIONS);
    let Some(regions) = regions.as_mut() else { return Vec::new() };
    let Some(ended) = regions.remove(&(location, extent)) else { return Vec::new() };
    let ended: Vec<_> = ended.iter().filter_map(Weak::upgrade).collect();
    // An ended region is found by none of its extents.
    for region in &ended {
        let mut state = lock(&region.state);
        state.has_ended = true;
        region.memory.elsewhere.ask(state.kept);
        drop(state);
        region.leave(regions);
    }
    ended
}

/// Returns a number that changes whenever connections are to look for mappings that are to end.
pub(super) fn ended() -> u64 {
    ENDED.load(Ordering::SeqCst)
}

impl Region {
    /// Returns whether one of its extents has gone back to the driver.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    fn leave(&self, regions: &mut ByExtent) {
        for each in &self.extents {
            let key = (self.memory.location, each.extent);
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
            && let Some(regions) = lock(&REGIONS).as_mut()
        {
            self.leave(regions);
        }
    }
}

/// A mapping of a region that another process keeps, until this is dropped.
#[derive(Debug)]
pub(super) struct KeptMapping {
    region: Arc<Region>,
    /// Whether the process was asked to end it.
    is_asked: bool,
}

impl KeptMapping {
    pub(super) fn new(region: Arc<Region>) -> Self {
        let mut state = lock(&region.state);
        state.kept += 1;
        if state.has_ended {
            region.memory.elsewhere.ask(1);
        }
        drop(state);
        Self { region, is_asked: false }
    }

    /// Returns whether the process is to be asked to end it now, which is so once.
    pub(super) fn is_to_end(&mut self) -> bool {
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
            self.region.memory.elsewhere.end(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::ids::Device;
    use crate::memory::tuning::PAGE;

    static MEMORY: LazyLock<DeviceMemory> = LazyLock::new(|| DeviceMemory::for_model(Device::from_ordinal(7).into()));

    fn extents(numbers: &[u64]) -> Vec<DescribedExtent> {
        numbers.iter().map(|number| DescribedExtent { extent: Extent::from_number(*number), bytes: PAGE }).collect()
    }

    fn are_known(memory: &DeviceMemory, numbers: &[u64]) -> bool {
        let regions = lock(&REGIONS);
        let is_known = |each: &DescribedExtent| {
            regions.as_ref().is_some_and(|regions| regions.contains_key(&(memory.location, each.extent)))
        };
        extents(numbers).iter().any(is_known)
    }

    /// One test, for the regions are the process's.
    #[test]
    fn a_region_is_its_extents_and_ends_with_the_first_that_goes() {
        let memory = &*MEMORY;
        let [one, two, turned] = [&[1, 2][..], &[1, 2, 3], &[2, 1]].map(|each| find(memory, extents(each)));
        assert!(one.number != two.number && one.number != turned.number && two.number != turned.number);
        assert!(Arc::ptr_eq(&find(memory, extents(&[1, 2])), &one));

        // The driver gives the number again, and it is other memory.
        assert!(end(memory.location, Extent::from_number(3)).iter().all(|region| Arc::ptr_eq(region, &two)));
        assert!(two.has_ended() && !one.has_ended() && !turned.has_ended());
        let again = find(memory, extents(&[1, 2, 3]));
        assert!(again.number > turned.number && !again.has_ended());
        // What goes on another device is none of it.
        _ = end(Device::from_ordinal(6).into(), Extent::from_number(1));
        assert!(!one.has_ended());
        _ = end(memory.location, Extent::from_number(2));
        assert!(one.has_ended() && turned.has_ended() && again.has_ended());
        assert!(!are_known(memory, &[1, 2, 3]));

        // What nothing needs is forgotten, with the others of its extents left.
        let (short, long) = (find(memory, extents(&[4])), find(memory, extents(&[4, 5])));
        drop(long);
        assert!(are_known(memory, &[4]) && !are_known(memory, &[5]));
        assert!(Arc::ptr_eq(&find(memory, extents(&[4])), &short));
        drop(short);
        assert!(!are_known(memory, &[4]));
    }

    #[test]
    fn what_is_kept_of_a_region_that_has_ended_is_asked_for_once_and_waited_for_until_it_ends() {
        static APART: LazyLock<DeviceMemory> =
            LazyLock::new(|| DeviceMemory::for_model(Device::from_ordinal(5).into()));
        let memory = &*APART;
        let region = find(memory, extents(&[1]));
        let (mut before, over) = (KeptMapping::new(Arc::clone(&region)), KeptMapping::new(Arc::clone(&region)));
        drop(over);
        assert!(!before.is_to_end() && !memory.elsewhere.is_awaited());
        let ended_before = ended();
        end_with(memory.location, Extent::from_number(1));
        assert!(ended() > ended_before && memory.elsewhere.is_awaited());
        assert!(before.is_to_end() && !before.is_to_end());
        drop(before);
        assert!(!memory.elsewhere.is_awaited());
        // Also one that is kept only then.
        let mut after = KeptMapping::new(region);
        assert!(memory.elsewhere.is_awaited() && after.is_to_end());
        drop(after);
        assert!(!memory.elsewhere.is_awaited());
    }
}
