//! The regions of others that this process has mapped, the blocks in them that it uses, and the idle ones, which stay mapped for the
//! next time.
//!
//! An idle mapping holds nothing at its owner, who may do with the memory what it likes. It is used again only for a block that is
//! held anew and lies in the same region, as its owner's answer says; so it does not matter when the news arrives that a region
//! has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use super::attachment::Attachment;
use super::mapping::Mapping;
use super::owner_process::Owner;
use crate::ids::Device;
use crate::memory::share::token::Told;
use crate::memory::tuning::IDLE_EXTENTS_MOST;
use crate::sync::lock;

/// The most idle mappings. A process keeps few regions of others at a time, and each takes addresses and the driver's tables.
const IDLE_MOST: usize = 0x400;

/// Which region of which process, for which device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RegionKey {
    /// The owner's name.
    pub(super) owner: [u8; 16],
    pub(super) region: u64,
    pub(super) device: Device,
}

/// A mapping and what is known of it.
#[derive(Debug)]
struct Known {
    mapping: Mapping,
    /// The blocks in it that are in use.
    uses: usize,
    /// Whether its owner has said that its region has ended.
    has_ended: bool,
    /// Of one that is idle.
    age: Option<u64>,
}

#[derive(Debug)]
struct Books {
    /// By their numbers.
    mappings: BTreeMap<u64, Known>,
    /// The numbers of those that can be used again.
    by_region: BTreeMap<RegionKey, u64>,
    /// The numbers of the idle ones by age: the oldest first.
    idle: BTreeMap<u64, u64>,
    idle_extents: usize,
    next_age: u64,
    next_number: u64,
    /// The blocks in use, by region and their owner's number.
    attached: BTreeMap<(RegionKey, u64), Weak<Attachment>>,
}

static BOOKS: Mutex<Books> = Mutex::new(Books {
    mappings: BTreeMap::new(),
    by_region: BTreeMap::new(),
    idle: BTreeMap::new(),
    idle_extents: 0,
    next_age: 0,
    next_number: 1,
    attached: BTreeMap::new(),
});

/// A block that is held, as it is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) owner: &'a Arc<Owner>,
    pub(super) told: &'a Told,
    pub(super) region: RegionKey,
    /// Where it starts in the region.
    pub(super) lead: u64,
}

/// What is to become of a mapping with the end of a use.
#[derive(Debug)]
pub(super) enum Leaving {
    /// It may stay, and its owner is to be told.
    Stays,
    /// Others use it.
    Used,
    /// It is to end.
    Ends(Option<Mapping>),
}

/// What is known of a mapping whose region has ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// It was idle.
    Idle(Mapping),
    /// It ends with its last use.
    Later,
    /// There is none with this number.
    Unknown,
}

fn key_of(mapping: &Mapping) -> RegionKey {
    RegionKey { owner: mapping.owner.name, region: mapping.region, device: mapping.memory.device }
}

impl Books {
    /// Has a mapping be idle no more.
    fn rouse(&mut self, number: u64) {
        if let Some(known) = self.mappings.get_mut(&number)
            && let Some(age) = known.age.take()
        {
            self.idle.remove(&age);
            self.idle_extents -= known.mapping.extents();
            known.mapping.memory.elsewhere.count_idle(false);
        }
    }

    /// Takes a mapping out that nothing uses.
    fn take(&mut self, number: u64) -> Option<Mapping> {
        self.rouse(number);
        let mapping = self.mappings.remove(&number)?.mapping;
        let key = key_of(&mapping);
        if self.by_region.get(&key) == Some(&number) {
            self.by_region.remove(&key);
        }
        Some(mapping)
    }

    fn take_idle(&mut self, is_meant: impl Fn(&Mapping) -> bool) -> Vec<Mapping> {
        let is_meant = |number: &u64| self.mappings.get(number).is_some_and(|known| is_meant(&known.mapping));
        let numbers: Vec<_> = self.idle.values().copied().filter(is_meant).collect();
        numbers.into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Returns a block that is in use now, in a mapping that counts it.
    fn attach(&mut self, wanted: &Wanted<'_>, number: u64) -> Option<Arc<Attachment>> {
        self.rouse(number);
        let known = self.mappings.get_mut(&number)?;
        known.uses += 1;
        known.mapping.set_used(true);
        let Wanted { owner, told, region, lead } = *wanted;
        let attachment = Arc::new(Attachment::new(owner, told, region, lead, &known.mapping));
        self.attached.insert((region, told.block), Arc::downgrade(&attachment));
        Some(attachment)
    }

    /// Counts a block that has ended no more.
    fn forget(&mut self, attachment: &Attachment) {
        attachment.uncount();
        let key = (attachment.region, attachment.block);
        // It may be in use again.
        if self.attached.get(&key).is_some_and(|known| known.strong_count() == 0) {
            self.attached.remove(&key);
        }
    }
}

/// Returns a number for a new mapping.
pub(super) fn number() -> u64 {
    let mut books = lock(&BOOKS);
    books.next_number += 1;
    books.next_number - 1
}

/// Returns a block that is held, if its region is mapped; and whether it is in use already, with a hold of its own.
pub(super) fn find(wanted: &Wanted<'_>) -> Option<(Arc<Attachment>, bool)> {
    let mut books = lock(&BOOKS);
    let number = *books.by_region.get(&wanted.region)?;
    let attached = books.attached.get(&(wanted.region, wanted.told.block));
    if let Some(attachment) = attached.and_then(Weak::upgrade) {
        return Some((attachment, true));
    }
    // An owner that describes it in another way than before is not believed.
    let end = wanted.lead.checked_add(wanted.told.bytes)?;
    books.mappings.get(&number).filter(|known| end <= known.mapping.reserved)?;
    books.attach(wanted, number).map(|attachment| (attachment, false))
}

/// Adds a region that was just mapped, and returns the block in it that is held.
pub(super) fn add(mapping: Mapping, wanted: &Wanted<'_>) -> Option<Arc<Attachment>> {
    let mut books = lock(&BOOKS);
    let number = mapping.number;
    // Where another thread was faster, this one is used once.
    books.by_region.entry(wanted.region).or_insert(number);
    books.mappings.insert(number, Known { mapping, uses: 0, has_ended: false, age: None });
    books.attach(wanted, number)
}

/// Ends a use of a mapping, which then may stay if `can_stay`.
pub(super) fn leave(number: u64, can_stay: bool) -> Leaving {
    let mut books = lock(&BOOKS);
    let books = &mut *books;
    let Some(known) = books.mappings.get_mut(&number) else { return Leaving::Ends(None) };
    known.uses -= 1;
    if known.uses > 0 {
        return Leaving::Used;
    }
    known.mapping.set_used(false);
    let is_found = books.by_region.get(&key_of(&known.mapping)) == Some(&number);
    if can_stay && is_found && !known.has_ended && known.mapping.extents() <= IDLE_EXTENTS_MOST {
        Leaving::Stays
    } else {
        Leaving::Ends(books.take(number))
    }
}

/// Takes a mapping that was to stay, and cannot, unless it is in use again.
pub(super) fn take_unused(number: u64) -> Option<Mapping> {
    let mut books = lock(&BOOKS);
    let is_unused = books.mappings.get(&number).is_some_and(|known| known.uses == 0);
    if is_unused { books.take(number) } else { None }
}

/// Forgets a block that was let go, whose mapping stays, as its owner was told; that is idle now, unless it is in use again.
/// Returns those that are too many then, or it itself if its region has ended meanwhile.
pub(super) fn settle(attachment: &Attachment) -> Vec<Mapping> {
    let mut books = lock(&BOOKS);
    let books = &mut *books;
    let number = attachment.mapping;
    let mut ending = Vec::new();
    if let Some(known) = books.mappings.get_mut(&number) {
        known.mapping.is_told = true;
        if known.uses == 0 && known.has_ended {
            ending.extend(books.take(number));
        } else if known.uses == 0 && known.age.is_none() {
            known.age = Some(books.next_age);
            known.mapping.memory.elsewhere.count_idle(true);
            books.idle_extents += known.mapping.extents();
            books.idle.insert(books.next_age, number);
            books.next_age += 1;
        }
    }
    // Not sooner: a caller that sees that nothing is attached finds it idle.
    books.forget(attachment);
    while books.idle.len() > IDLE_MOST || books.idle_extents > IDLE_EXTENTS_MOST {
        let Some(oldest) = books.idle.values().next().copied() else { break };
        ending.extend(books.take(oldest));
    }
    ending
}

/// Forgets a block that was let go.
pub(super) fn forget(attachment: &Attachment) {
    lock(&BOOKS).forget(attachment);
}

/// Has a mapping end whose region has ended.
pub(super) fn end(number: u64) -> Ending {
    let mut books = lock(&BOOKS);
    match books.mappings.get_mut(&number) {
        Some(known) if known.age.is_some() => books.take(number).map_or(Ending::Unknown, Ending::Idle),
        Some(known) => {
            known.has_ended = true;
            Ending::Later
        }
        None => Ending::Unknown,
    }
}

/// Takes the idle mappings of an owner's regions.
pub(super) fn take_of(owner: [u8; 16]) -> Vec<Mapping> {
    lock(&BOOKS).take_idle(|mapping| mapping.owner.name == owner)
}

/// Takes the idle mappings for a device.
pub(super) fn take_on(device: Device) -> Vec<Mapping> {
    lock(&BOOKS).take_idle(|mapping| mapping.memory.device == device)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::ids::Device;
    use crate::memory::device::DeviceMemory;
    use crate::memory::share::attached::owner_process::Owner;
    use crate::memory::share::secret::{Secret, random};

    fn told(name: [u8; 16], block: u64) -> Told {
        let (secret, device) = (Secret(name), [0; 16]);
        Told { kind: 0, boot: [0; 16], user: 0, process: 0, name, secret, block, parcel: 0, bytes: 1, device }
    }

    type Outcome<T> = Result<T, &'static str>;

    struct Test {
        memory: &'static DeviceMemory,
        owner: Arc<Owner>,
    }

    impl Test {
        fn with<R>(&self, region: u64, block: u64, look: impl FnOnce(&Wanted<'_>) -> R) -> R {
            let told = told(self.owner.name, block);
            let region = RegionKey { owner: self.owner.name, region, device: self.memory.device };
            look(&Wanted { owner: &self.owner, told: &told, region, lead: 3 })
        }

        fn find(&self, region: u64, block: u64) -> Option<(Arc<Attachment>, bool)> {
            self.with(region, block, find)
        }

        fn add(&self, region: u64, block: u64) -> Outcome<Arc<Attachment>> {
            let mut mapping = Mapping::nowhere(self.memory, &self.owner, region);
            mapping.reserved = 4;
            self.with(region, block, |wanted| add(mapping, wanted)).ok_or("it was just added")
        }

        fn attached(&self) -> u64 {
            self.memory.attached.load(Ordering::Relaxed)
        }
    }

    /// Lets a block go, and returns what ends then.
    fn end_use(attachment: Arc<Attachment>) -> Outcome<Vec<u64>> {
        let attachment = Arc::into_inner(attachment).ok_or("it is used once")?;
        let ending = match leave(attachment.mapping, true) {
            Leaving::Stays => settle(&attachment),
            Leaving::Used => {
                forget(&attachment);
                Vec::new()
            }
            Leaving::Ends(mapping) => {
                forget(&attachment);
                mapping.into_iter().collect()
            }
        };
        Ok(ending.iter().map(|mapping| mapping.number).collect())
    }

    /// One test, for the books are the process's.
    #[test]
    #[cfg_attr(miri, ignore = "thousands of mappings, and nothing unsafe")]
    fn a_region_is_found_by_its_number_while_it_lasts_and_the_oldest_go_first() -> Outcome<()> {
        let memory = Box::leak(Box::new(DeviceMemory::for_model(Device::from_ordinal(0))));
        let name = random().unwrap_or_default();
        let test = Test { memory, owner: Owner::of(&told(name, 0)) };
        let one = test.add(7, 1)?;
        let number = one.mapping;
        assert!(test.find(8, 1).is_none());
        let (again, is_again) = test.find(7, 1).ok_or("it is in use")?;
        assert!(is_again && Arc::ptr_eq(&again, &one));
        drop(again);
        // Another block in the same region has the same mapping, and a hold of its own.
        let (two, is_again) = test.find(7, 2).ok_or("its region is mapped")?;
        assert!(!is_again && two.mapping == number && test.attached() == 2);
        assert_eq!((end_use(one)?, test.attached()), (vec![], 1));
        assert_eq!((end_use(two)?, test.attached()), (vec![], 0));

        // Idle it is found by any block there, and not by one that does not lie in it.
        assert!(test.with(7, 3, |wanted| find(&Wanted { lead: 4, ..*wanted })).is_none());
        let (three, _) = test.find(7, 3).ok_or("its region is idle")?;
        assert!(three.mapping == number && test.attached() == 1);
        // What has ended is used until its last use is over.
        assert!(matches!(end(number), Ending::Later));
        let (four, _) = test.find(7, 4).ok_or("its region is in use")?;
        assert!(end_use(three)?.is_empty());
        assert_eq!(end_use(four)?, [number]);
        assert!(test.find(7, 1).is_none() && matches!(end(number), Ending::Unknown));

        // Heard of before the owner was told that it stays.
        let five = Arc::into_inner(test.add(9, 5)?).ok_or("it is used once")?;
        assert!(matches!(leave(five.mapping, true), Leaving::Stays));
        assert!(matches!(end(five.mapping), Ending::Later));
        assert_eq!(settle(&five).len(), 1);
        // In use again before that.
        let six = Arc::into_inner(test.add(10, 6)?).ok_or("it is used once")?;
        assert!(matches!(leave(six.mapping, true), Leaving::Stays));
        let (seven, _) = test.find(10, 7).ok_or("its region is mapped")?;
        assert!(settle(&six).is_empty() && take_on(memory.device).is_empty() && take_unused(seven.mapping).is_none());
        assert!(end_use(seven)?.is_empty());
        assert_eq!(take_on(memory.device).len(), 1);

        // Of two that were mapped at a time one stays.
        let (first, second) = (test.add(11, 8)?, test.add(11, 9)?);
        let number = second.mapping;
        assert!(first.mapping != number && test.find(11, 1).is_some_and(|(found, _)| found.mapping != number));
        assert_eq!(end_use(second)?, [number]);

        assert_eq!(take_of(name).len(), 0);
        let numbers: Vec<_> = (0..=IDLE_MOST as u64)
            .map(|region| {
                let attachment = test.add(100 + region, 0)?;
                let number = attachment.mapping;
                Ok((number, end_use(attachment)?))
            })
            .collect::<Outcome<_>>()?;
        assert_eq!(numbers.iter().flat_map(|(_, ended)| ended).collect::<Vec<_>>(), [&numbers[0].0]);
        assert_eq!(take_of(name).len(), IDLE_MOST);
        assert!(take_on(memory.device).is_empty());
        Ok(())
    }
}
