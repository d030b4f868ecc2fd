//! The mapping cache: the regions of other processes that are mapped here, their blocks in use, and the idle mappings,
//! which stay for the next time. The owner keeps nothing for an idle mapping, and may use the memory freely. The
//! mapping is reused only for a block that is held anew in the same region, according to the owner; so a message that a
//! region has ended may come late.
//!
//! An extent is imported once for all mappings in use, so that overlapping regions need no second descriptor. What the driver
//! refuses to unmap or release is tried again later.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use super::codec::{HeldBlock, Question};
use super::owner::{Channel, OwnerProcess, end_channel};
use super::tasks;
use crate::error::Result;
use crate::ids::{Device, MemoryLocation};
use crate::memory::device::{DeviceMemory, Placed, end_left, with_device};
use crate::memory::tuning::IDLE_EXTENTS_MOST;
use crate::runtime::{ExportedExtent, Extent};
use crate::sync::{AtomicUsize, Ordering, lock};

/// The most idle mappings. A process keeps few regions of others, and each takes addresses and page tables.
const IDLE_MOST: usize = 0x400;

/// A region of a process, and the device that it is mapped for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RegionKey {
    /// The owner's name.
    pub(super) owner: [u8; 16],
    /// The region's number, from its owner.
    pub(super) region: u64,
    pub(super) location: MemoryLocation,
}

/// A region of another process that is mapped here. [`AttachedMapping::end`] unmaps it, not its drop.
#[derive(Debug)]
pub(super) struct AttachedMapping {
    pub(super) memory: &'static DeviceMemory,
    owner: Arc<OwnerProcess>,
    pub(super) region: RegionKey,
    /// The mapping's number in this process.
    pub(super) number: u64,
    pub(super) start: u64,
    pub(super) reserved: u64,
    /// The mapped extents and their sizes.
    pub(super) imported: Vec<(Arc<ImportedExtent>, u64)>,
    /// Whether the imported extents count it as in use.
    is_used: bool,
    /// Whether its owner knows it, since it has stayed.
    pub(super) is_known: bool,
    /// The blocks in it that are in use, and how often; none if it is idle.
    pub(super) blocks: BTreeMap<u64, u64>,
    /// Whether its owner has sent that its region has ended.
    pub(super) has_ended: bool,
}

impl AttachedMapping {
    /// Makes an empty mapping.
    pub(super) fn new(memory: &'static DeviceMemory, owner: &Arc<OwnerProcess>, region: RegionKey) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            memory,
            owner: Arc::clone(owner),
            region,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            start: 0,
            reserved: 0,
            imported: Vec::new(),
            is_used: false,
            is_known: false,
            blocks: BTreeMap::new(),
            has_ended: false,
        }
    }

    /// Maps the region's extents, of these sizes and on `source`, for its device and that device's peers.
    ///
    /// # Errors
    /// Those of the driver; the mapping is to be ended then.
    pub(super) fn map(&mut self, source: Device, extents: Vec<(Arc<ImportedExtent>, u64)>) -> Result<()> {
        let bytes = extents.iter().map(|(_, bytes)| bytes).sum();
        self.start = with_device(self.memory.location, |runtime| runtime.address_reserve(bytes))?;
        self.reserved = bytes;
        let row = row_of(self.start, &extents, Some(source).filter(|source| self.memory.location != *source));
        // SAFETY: the addresses were just reserved, and the extents are alive and as long as their owner says.
        let (count, outcome) = unsafe { self.memory.range.map(&row) };
        self.imported.extend(extents.into_iter().take(count));
        outcome
    }

    /// Sets whether the imported extents count it as in use. Unset before its last block is let go.
    pub(super) fn set_used(&mut self, is_used: bool) {
        if std::mem::replace(&mut self.is_used, is_used) == is_used {
            return;
        }
        for (imported, _) in &self.imported {
            if is_used {
                imported.used.fetch_add(1, Ordering::SeqCst);
            } else {
                imported.used.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Unmaps it, and sends that to its owner if that knows it. If the driver refuses, it is to be called again.
    pub(super) fn end(&mut self) -> Result<()> {
        if !self.imported.is_empty() {
            // SAFETY: the range was mapped here, and all work that uses it is done.
            unsafe { self.memory.range.unmap(&row_of(self.start, &self.imported, None)) }?;
            self.set_used(false);
            self.imported.clear();
        }
        if self.reserved > 0 {
            let (start, reserved) = (self.start, self.reserved);
            // SAFETY: the reservation is whole, and nothing is mapped there any more.
            with_device(self.memory.location, |runtime| unsafe { runtime.address_free(start, reserved) })?;
            self.reserved = 0;
        }
        if std::mem::take(&mut self.is_known)
            && let Some(channel) = self.owner.channel()
        {
            tell_unmapped(&channel, self.number);
        }
        Ok(())
    }

    /// Unmaps it, which nothing uses, at once or, if the driver refuses, later.
    pub(super) fn end_now_or_later(mut self) {
        tasks::now_or_later(move || self.end().map(|()| true));
    }
}

/// Returns extents of these sizes mapped in a row from an address on.
fn row_of(start: u64, extents: &[(Arc<ImportedExtent>, u64)], source: Option<Device>) -> Vec<Placed> {
    let mut address = start;
    let place = |(imported, bytes): &(Arc<ImportedExtent>, u64)| {
        let placed = Placed { address, bytes: *bytes, extent: imported.extent, source };
        address += bytes;
        placed
    };
    extents.iter().map(place).collect()
}

/// An extent of another process, released with the last mapping that needs it.
#[derive(Debug)]
pub(super) struct ImportedExtent {
    extent: Extent,
    location: MemoryLocation,
    key: ExtentKey,
    /// How many mappings in use have it. While there is one, this process holds a block there, and the owner's number
    /// is this extent's; after that the number may be reused.
    used: AtomicUsize,
}

/// The owner's name, and its number of the extent.
type ExtentKey = ([u8; 16], u64);

static IMPORTED: Mutex<BTreeMap<ExtentKey, Weak<ImportedExtent>>> = Mutex::new(BTreeMap::new());

impl ImportedExtent {
    /// Returns an extent that was imported before, of a block that this process holds.
    pub(super) fn known(owner: &OwnerProcess, number: Extent) -> Option<Arc<Self>> {
        let imported = lock(&IMPORTED).get(&(owner.name, number.number()))?.upgrade();
        imported.filter(|imported| imported.used.load(Ordering::SeqCst) > 0)
    }

    /// Imports an extent that was exported.
    pub(super) fn new(
        owner: &OwnerProcess,
        number: Extent,
        location: MemoryLocation,
        exported: ExportedExtent<'_>,
    ) -> Result<Arc<Self>> {
        let extent = with_device(location, |runtime| runtime.extent_import(exported))?;
        let key = (owner.name, number.number());
        let imported = Arc::new(Self { extent, location, key, used: AtomicUsize::new(0) });
        lock(&IMPORTED).insert(key, Arc::downgrade(&imported));
        Ok(imported)
    }
}

impl Drop for ImportedExtent {
    fn drop(&mut self) {
        let mut imported = lock(&IMPORTED);
        if imported.get(&self.key).is_some_and(|known| known.strong_count() == 0) {
            imported.remove(&self.key);
        }
        drop(imported);
        let (extent, location) = (self.extent, self.location);
        tasks::now_or_later(move || {
            // SAFETY: the extent's only owner gives it up, so no other call works on it.
            unsafe { end_left(extent) }?;
            // SAFETY: `extent_import` made the extent, and its only owner gives it up.
            with_device(location, |runtime| unsafe { runtime.extent_release(extent) }).map(|()| true)
        });
    }
}

/// A block in a mapping, in use until [`end_use`].
#[derive(Debug)]
pub(super) struct MappedBlock {
    memory: &'static DeviceMemory,
    pub(super) mapping: u64,
    /// The block's number, from its owner.
    block: u64,
    bytes: u64,
    pub(super) address: u64,
}

impl AttachedMapping {
    fn attach(&mut self, block: u64, held: &HeldBlock) -> MappedBlock {
        let (memory, bytes) = (self.memory, held.bytes);
        let uses = self.blocks.entry(block).or_insert(0);
        if *uses == 0 {
            memory.attached.fetch_add(bytes, Ordering::Relaxed);
        }
        *uses += 1;
        self.set_used(true);
        MappedBlock { memory, mapping: self.number, block, bytes, address: self.start + held.lead }
    }

    /// Returns whether the block has only one use.
    fn is_last_use(&self) -> bool {
        self.blocks.len() == 1 && self.blocks.values().all(|uses| *uses == 1)
    }
}

#[derive(Debug)]
struct MappingCache {
    mappings: BTreeMap<u64, AttachedMapping>,
    /// The numbers of mappings that can be reused.
    by_region: BTreeMap<RegionKey, u64>,
    /// The numbers of the idle ones, the oldest first.
    idle: VecDeque<u64>,
    idle_extents: usize,
}

static CACHE: Mutex<MappingCache> = Mutex::new(MappingCache {
    mappings: BTreeMap::new(),
    by_region: BTreeMap::new(),
    idle: VecDeque::new(),
    idle_extents: 0,
});

impl MappingCache {
    /// Stops counting a mapping as idle, if it was.
    fn use_again(&mut self, number: u64) {
        if let Some(mapping) = self.mappings.get(&number)
            && let Some(place) = self.idle.iter().position(|idle| *idle == number)
        {
            self.idle.remove(place);
            self.idle_extents -= mapping.imported.len();
            mapping.memory.elsewhere.idle.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn take(&mut self, number: u64) -> Option<AttachedMapping> {
        self.use_again(number);
        let mapping = self.mappings.remove(&number)?;
        if self.by_region.get(&mapping.region) == Some(&number) {
            self.by_region.remove(&mapping.region);
        }
        Some(mapping)
    }
}

/// Uses a held block, if its region is mapped.
pub(super) fn find(region: &RegionKey, block: u64, held: &HeldBlock) -> Option<MappedBlock> {
    let mut cache = lock(&CACHE);
    let number = *cache.by_region.get(region)?;
    // The owner may describe the region differently than before, and is not trusted.
    let end = held.lead.checked_add(held.bytes)?;
    cache.mappings.get(&number).filter(|mapping| end <= mapping.reserved)?;
    cache.use_again(number);
    Some(cache.mappings.get_mut(&number)?.attach(block, held))
}

/// Adds a region that was just mapped, and uses the held block in it.
pub(super) fn add(mapping: AttachedMapping, block: u64, held: &HeldBlock) -> MappedBlock {
    let mut cache = lock(&CACHE);
    let number = mapping.number;
    // If another thread has mapped the same region meanwhile, this mapping is used once.
    cache.by_region.entry(mapping.region).or_insert(number);
    cache.mappings.entry(number).or_insert(mapping).attach(block, held)
}

/// Returns whether a mapping may stay after its last use, which this is.
pub(super) fn may_stay(used: &MappedBlock) -> bool {
    let mut cache = lock(&CACHE);
    let MappingCache { mappings, by_region, .. } = &mut *cache;
    let Some(mapping) = mappings.get_mut(&used.mapping).filter(|mapping| mapping.is_last_use()) else { return false };
    mapping.set_used(false);
    let is_found = by_region.get(&mapping.region) == Some(&used.mapping);
    is_found && !mapping.has_ended && mapping.imported.len() <= IDLE_EXTENTS_MOST
}

/// Takes a mapping out of the cache before its last use ends; none if it has others.
pub(super) fn take_last(used: &MappedBlock) -> Option<AttachedMapping> {
    let mut cache = lock(&CACHE);
    cache.mappings.get(&used.mapping).filter(|mapping| mapping.is_last_use())?;
    cache.take(used.mapping)
}

/// Ends the use of a block that was let go. If its mapping `stays`, it is idle now unless another thread uses it; it
/// ends if its region has ended, and so do the oldest idle ones if there are too many.
pub(super) fn end_use(used: &MappedBlock, stays: bool) {
    take_used(used, stays).into_iter().for_each(AttachedMapping::end_now_or_later);
}

/// As [`end_use`], and returns the mappings that are to end.
fn take_used(used: &MappedBlock, stays: bool) -> Vec<AttachedMapping> {
    let mut cache = lock(&CACHE);
    let cache = &mut *cache;
    // A mapping that does not stay was taken out before its last use.
    let (mut is_over, mut ending) = (true, Vec::new());
    if let Some(mapping) = cache.mappings.get_mut(&used.mapping) {
        mapping.is_known |= stays;
        if let Some(uses) = mapping.blocks.get_mut(&used.block) {
            *uses -= 1;
            is_over = *uses == 0;
        }
        if is_over {
            mapping.blocks.remove(&used.block);
        }
        if mapping.blocks.is_empty() && mapping.has_ended {
            ending.extend(cache.take(used.mapping));
        } else if mapping.blocks.is_empty() {
            mapping.memory.elsewhere.idle.fetch_add(1, Ordering::Relaxed);
            cache.idle_extents += mapping.imported.len();
            cache.idle.push_back(used.mapping);
        }
    }
    if is_over {
        // Last: a thread that sees nothing attached must find the mapping idle.
        used.memory.attached.fetch_sub(used.bytes, Ordering::Relaxed);
    }
    while cache.idle.len() > IDLE_MOST || cache.idle_extents > IDLE_EXTENTS_MOST {
        let Some(oldest) = cache.idle.front().copied() else { break };
        ending.extend(cache.take(oldest));
    }
    ending
}

/// Ends the mappings that an owner's channel names, and all idle ones of its regions once the channel or the owner has
/// ended.
pub(super) fn follow(channel: &Arc<Channel>, has_ended: bool) {
    let Some(numbers) = channel.receive().filter(|_| !has_ended) else {
        end_channel(channel);
        return end_idle(|mapping| mapping.region.owner == channel.owner);
    };
    for number in numbers {
        if !note_end(number) {
            // It has ended before, which its owner may not know.
            tell_unmapped(channel, number);
        }
    }
    // The others end with their last uses.
    end_idle(|mapping| mapping.has_ended);
}

/// Tells an owner that a mapping has ended, as soon as there is room.
fn tell_unmapped(channel: &Arc<Channel>, mapping: u64) {
    let channel = Arc::downgrade(channel);
    // If the connection is over, nothing is to be sent.
    let is_told = move |channel: Arc<Channel>| channel.send(&Question::Unmapped { mapping }).unwrap_or(true);
    tasks::now_or_later(move || Ok(channel.upgrade().is_none_or(is_told)));
}

/// Notes that a mapping's region has ended; false if there is no such mapping.
fn note_end(number: u64) -> bool {
    lock(&CACHE).mappings.get_mut(&number).map(|mapping| mapping.has_ended = true).is_some()
}

pub(super) fn end_idle_on(location: MemoryLocation) {
    end_idle(|mapping| mapping.region.location == location);
}

fn end_idle(is_meant: impl Fn(&AttachedMapping) -> bool) {
    take_idle(is_meant).into_iter().for_each(AttachedMapping::end_now_or_later);
}

fn take_idle(is_meant: impl Fn(&AttachedMapping) -> bool) -> Vec<AttachedMapping> {
    let mut cache = lock(&CACHE);
    let is_meant = |number: &u64| cache.mappings.get(number).is_some_and(&is_meant);
    let numbers: Vec<_> = cache.idle.iter().copied().filter(is_meant).collect();
    numbers.into_iter().filter_map(|number| cache.take(number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Device;
    use crate::memory::peer::codec::BlockKey;
    use crate::memory::peer::owner::OwnerProcess;
    use crate::memory::peer::token::TokenFields;
    use crate::memory::shared_block::{Secret, random};

    type Outcome<T> = Result<T, &'static str>;

    struct Test {
        memory: &'static DeviceMemory,
        owner: Arc<OwnerProcess>,
    }

    impl Test {
        fn region(&self, region: u64) -> RegionKey {
            RegionKey { owner: self.owner.name, region, location: self.memory.location }
        }

        fn find(&self, region: u64, block: u64) -> Option<MappedBlock> {
            find(&self.region(region), block, &held(3))
        }

        fn add(&self, region: u64, block: u64) -> MappedBlock {
            let mut mapping = AttachedMapping::new(self.memory, &self.owner, self.region(region));
            mapping.reserved = 4;
            add(mapping, block, &held(3))
        }

        fn attached(&self) -> u64 {
            self.memory.attached.load(Ordering::Relaxed)
        }

        /// Those that are idle, and whose regions have ended.
        fn take_ended(&self) -> usize {
            take_idle(|mapping| mapping.region.location == self.memory.location && mapping.has_ended).len()
        }

        fn take_idle(&self) -> usize {
            take_idle(|mapping| mapping.region.location == self.memory.location).len()
        }
    }

    fn held(lead: u64) -> HeldBlock {
        HeldBlock { lead, bytes: 1, region: 0, extents: 0, events: 0, device: [0; 16] }
    }

    /// Lets a block go, and returns what ends then.
    fn let_go(used: &MappedBlock) -> Vec<u64> {
        let ending = if may_stay(used) {
            take_used(used, true)
        } else {
            let mapping = take_last(used);
            assert!(take_used(used, false).is_empty());
            mapping.into_iter().collect()
        };
        ending.iter().map(|mapping| mapping.number).collect()
    }

    /// One test, since the cache is the process's.
    #[test]
    #[cfg_attr(miri, ignore = "thousands of mappings, and nothing unsafe")]
    fn a_region_is_found_by_its_number_while_it_lasts_and_the_oldest_go_first() -> Outcome<()> {
        let memory = Box::leak(Box::new(DeviceMemory::for_model(Device::from_ordinal(0).into())));
        let name = random().unwrap_or_default();
        let (secret, device) = (Secret(name), [0; 16]);
        let token = TokenFields {
            kind: 0,
            boot: [0; 16],
            user: 0,
            process: 0,
            name,
            key: BlockKey { block: 0, secret },
            in_flight: 0,
            bytes: 1,
            device,
        };
        let test = Test { memory, owner: OwnerProcess::of(&token) };
        let one = test.add(7, 1);
        let number = one.mapping;
        assert!(test.find(8, 1).is_none());
        // The same block again is counted once.
        let again = test.find(7, 1).ok_or("it is in use")?;
        assert!((again.mapping, again.address) == (number, one.address) && test.attached() == 1);
        assert_eq!((let_go(&again), test.attached()), (vec![], 1));
        // Another block in the same region has the same mapping.
        let two = test.find(7, 2).ok_or("its region is mapped")?;
        assert!(two.mapping == number && test.attached() == 2);
        assert_eq!((let_go(&one), test.attached()), (vec![], 1));
        assert_eq!((let_go(&two), test.attached()), (vec![], 0));

        // An idle mapping is found by any block in it, and not by one outside.
        assert!(find(&test.region(7), 3, &held(4)).is_none());
        let three = test.find(7, 3).ok_or("its region is idle")?;
        assert!(three.mapping == number && test.attached() == 1);
        // An ended mapping is used until its last use is over.
        assert!(note_end(number) && test.take_ended() == 0);
        let four = test.find(7, 4).ok_or("its region is in use")?;
        assert!(let_go(&three).is_empty());
        assert_eq!(let_go(&four), [number]);
        assert!(test.find(7, 1).is_none() && !note_end(number));

        // The channel sends so before the owner knows that it stays.
        let five = test.add(9, 5);
        assert!(may_stay(&five));
        assert!(note_end(five.mapping) && test.take_ended() == 0);
        assert_eq!(take_used(&five, true).len(), 1);
        // In use again before that.
        let six = test.add(10, 6);
        assert!(may_stay(&six));
        let seven = test.find(10, 7).ok_or("its region is mapped")?;
        assert!(take_used(&six, true).is_empty() && test.take_idle() == 0);
        assert!(let_go(&seven).is_empty());
        assert_eq!(test.take_idle(), 1);
        // In use again before it is taken, as it cannot stay after all.
        let six = test.add(10, 6);
        assert!(may_stay(&six));
        let seven = test.find(10, 7).ok_or("its region is mapped")?;
        assert!(take_last(&six).is_none());
        assert!(take_used(&six, false).is_empty());
        assert_eq!(take_last(&seven).map(|mapping| mapping.number), Some(seven.mapping));
        assert_eq!(test.attached(), 1);
        assert!(take_used(&seven, false).is_empty());
        assert_eq!(test.attached(), 0);

        // Of two that were mapped at a time one stays.
        let (first, second) = (test.add(11, 8), test.add(11, 9));
        let number = second.mapping;
        assert!(first.mapping != number && test.find(11, 1).is_some_and(|found| found.mapping != number));
        assert_eq!(let_go(&second), [number]);

        let take_of = |name| take_idle(|mapping| mapping.region.owner == name).len();
        assert_eq!(take_of(name), 0);
        let numbers: Vec<_> = (0..=IDLE_MOST as u64)
            .map(|region| {
                let used = test.add(100 + region, 0);
                (used.mapping, let_go(&used))
            })
            .collect();
        assert_eq!(numbers.iter().flat_map(|(_, ended)| ended).collect::<Vec<_>>(), [&numbers[0].0]);
        assert_eq!(take_of(name), IDLE_MOST);
        assert_eq!(test.take_idle(), 0);
        Ok(())
    }
}
