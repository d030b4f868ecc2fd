//! The regions that shared blocks lie in: lists of extents, by whose numbers other processes keep what they have mapped.
//!
//! A block that stands where another one stood lies in the same region, so who has mapped that maps nothing for it. A region ends
//! as the first of its extents is given back to the driver, which may number another one like it then. Until then it is the same
//! memory, wherever the owner has its pages.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use crate::ids::Device;
use crate::memory::device::DeviceMemory;
use crate::memory::share::wire::Described;
use crate::runtime::Extent;
use crate::sync::{AtomicBool, Ordering, lock};

/// A list of extents. It is known as long as a block that was attached lies in it, or another process has it mapped.
#[derive(Debug)]
pub(super) struct Region {
    /// No other region of this process ever has it.
    pub(super) number: u64,
    pub(super) memory: &'static DeviceMemory,
    pub(super) extents: Vec<Described>,
    is_ended: AtomicBool,
}

/// The regions that an extent is part of.
type ByExtent = HashMap<(Device, Extent), Vec<Weak<Region>>>;

static REGIONS: Mutex<Option<ByExtent>> = Mutex::new(None);

/// Returns the region that consists of these extents, which a block that is held has now.
pub(super) fn find(memory: &'static DeviceMemory, extents: Vec<Described>) -> Arc<Region> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Dropped after the lock, which the end of a region takes.
    let mut others = Vec::new();
    let mut regions = lock(&REGIONS);
    let regions = regions.get_or_insert_default();
    let of_first = extents.first().and_then(|first| regions.get(&(memory.device, first.extent)));
    for region in of_first.into_iter().flatten().filter_map(Weak::upgrade) {
        if region.extents == extents {
            return region;
        }
        others.push(region);
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let region = Arc::new(Region { number, memory, extents, is_ended: AtomicBool::new(false) });
    for each in &region.extents {
        regions.entry((memory.device, each.extent)).or_default().push(Arc::downgrade(&region));
    }
    region
}

/// Ends the regions that an extent is part of, which is about to go back to the driver, and returns them.
pub(super) fn end(device: Device, extent: Extent) -> Vec<Arc<Region>> {
    let mut regions = lock(&REGIONS);
    let Some(regions) = regions.as_mut() else { return Vec::new() };
    let Some(gone) = regions.remove(&(device, extent)) else { return Vec::new() };
    let gone: Vec<_> = gone.iter().filter_map(Weak::upgrade).collect();
    // None is found any more, by whichever extent it begins with.
    for region in &gone {
        region.is_ended.store(true, Ordering::SeqCst);
        region.leave(regions);
    }
    gone
}

impl Region {
    /// Returns whether one of its extents has gone back to the driver.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    fn leave(&self, regions: &mut ByExtent) {
        for each in &self.extents {
            let key = (self.memory.device, each.extent);
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
        if !self.is_ended()
            && let Some(regions) = lock(&REGIONS).as_mut()
        {
            self.leave(regions);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::memory::tuning::PAGE;

    static MEMORY: LazyLock<DeviceMemory> = LazyLock::new(|| DeviceMemory::for_model(Device::from_ordinal(7)));

    fn extents(numbers: &[u64]) -> Vec<Described> {
        numbers.iter().map(|number| Described { extent: Extent::from_number(*number), bytes: PAGE }).collect()
    }

    fn are_known(memory: &DeviceMemory, numbers: &[u64]) -> bool {
        let regions = lock(&REGIONS);
        let is_known = |each: &Described| {
            regions.as_ref().is_some_and(|regions| regions.contains_key(&(memory.device, each.extent)))
        };
        extents(numbers).iter().any(is_known)
    }

    /// One test, for the books are the process's.
    #[test]
    fn a_region_is_its_extents_and_ends_with_the_first_that_goes() {
        let memory = &*MEMORY;
        let [one, two, turned] = [&[1, 2][..], &[1, 2, 3], &[2, 1]].map(|each| find(memory, extents(each)));
        assert!(one.number != two.number && one.number != turned.number && two.number != turned.number);
        assert!(Arc::ptr_eq(&find(memory, extents(&[1, 2])), &one));

        // The driver gives the number again, and it is other memory.
        assert!(end(memory.device, Extent::from_number(3)).iter().all(|region| Arc::ptr_eq(region, &two)));
        assert!(two.is_ended() && !one.is_ended() && !turned.is_ended());
        let again = find(memory, extents(&[1, 2, 3]));
        assert!(again.number > turned.number && !again.is_ended());
        // What goes on another device is none of it.
        _ = end(Device::from_ordinal(6), Extent::from_number(1));
        assert!(!one.is_ended());
        _ = end(memory.device, Extent::from_number(2));
        assert!(one.is_ended() && turned.is_ended() && again.is_ended());
        assert!(!are_known(memory, &[1, 2, 3]));

        // What nothing needs is forgotten, with the others of its extents left.
        let (short, long) = (find(memory, extents(&[4])), find(memory, extents(&[4, 5])));
        drop(long);
        assert!(are_known(memory, &[4]) && !are_known(memory, &[5]));
        assert!(Arc::ptr_eq(&find(memory, extents(&[4])), &short));
        drop(short);
        assert!(!are_known(memory, &[4]));
    }
}
