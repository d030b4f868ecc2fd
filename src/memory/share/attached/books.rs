//! The attachments of this process: those in use, and the idle ones, which stay mapped for the next time.
//!
//! An idle attachment holds nothing at its owner, who may do with the block what it likes. It is taken again only for a block
//! that is held anew and has the same memory behind it, as its owner's answer says; so it does not matter when the news
//! arrives that a block is gone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use super::attachment::Attachment;
use crate::ids::Device;
use crate::memory::share::wire::Held;
use crate::sync::lock;

/// The most idle attachments. A process keeps few blocks of others at a time, and each takes addresses and the driver's tables.
const IDLE_MOST: usize = 1024;
/// The most extents of all idle attachments together. To unmap and release one takes 31 us on an H200 (`docs/sleep.md`: 1 GiB
/// of 2 MiB extents in 16 ms), so an owner that falls asleep has all its memory back within about a second.
const EXTENTS_MOST: usize = 1 << 15;

/// Which block of which process, for which device.
type BlockKey = ([u8; 16], u64, Device);

#[derive(Debug)]
struct Books {
    in_use: BTreeMap<BlockKey, Weak<Attachment>>,
    /// By age: the oldest first.
    idle: BTreeMap<u64, Attachment>,
    idle_by_block: BTreeMap<BlockKey, u64>,
    /// The ages of idle mappings, by number.
    idle_by_number: BTreeMap<u64, u64>,
    idle_extents: usize,
    next_age: u64,
    /// Every mapping by its number, and whether its owner has said that it is to end.
    mappings: BTreeMap<u64, bool>,
    next_number: u64,
}

static BOOKS: Mutex<Books> = Mutex::new(Books {
    in_use: BTreeMap::new(),
    idle: BTreeMap::new(),
    idle_by_block: BTreeMap::new(),
    idle_by_number: BTreeMap::new(),
    idle_extents: 0,
    next_age: 0,
    mappings: BTreeMap::new(),
    next_number: 1,
});

/// A block that is mapped here already.
#[derive(Debug)]
pub(super) enum Known {
    /// In use, with a hold of its own.
    InUse(Arc<Attachment>),
    /// It was idle, and has taken the hold.
    Idle(Arc<Attachment>),
    /// It was idle, with other memory than the block has now. It is to end.
    Stale(Attachment),
}

/// What is known of a mapping that is to end.
#[derive(Debug)]
pub(super) enum Ending {
    /// It was idle.
    Idle(Attachment),
    /// It ends once its use is over, or the driver lets it.
    Later,
    /// There is none with this number.
    Unknown,
}

fn key_of(attachment: &Attachment) -> BlockKey {
    (attachment.owner.name, attachment.block, attachment.memory.device)
}

impl Books {
    fn take(&mut self, age: u64) -> Option<Attachment> {
        let idle = self.idle.remove(&age)?;
        self.idle_by_block.remove(&key_of(&idle));
        self.idle_by_number.remove(&idle.number);
        self.idle_extents -= idle.extents();
        idle.memory.elsewhere.count_idle(false);
        Some(idle)
    }

    fn take_those(&mut self, is_meant: impl Fn(&Attachment) -> bool) -> Vec<Attachment> {
        let ages: Vec<_> = self.idle.iter().filter(|(_, idle)| is_meant(idle)).map(|(age, _)| *age).collect();
        ages.into_iter().filter_map(|age| self.take(age)).collect()
    }
}

/// Returns a number for a new mapping.
pub(super) fn number() -> u64 {
    let mut books = lock(&BOOKS);
    books.next_number += 1;
    books.next_number - 1
}

/// Adds an attachment that was just mapped.
pub(super) fn add(attachment: Attachment) -> Arc<Attachment> {
    let attachment = Arc::new(attachment);
    let mut books = lock(&BOOKS);
    books.mappings.insert(attachment.number, false);
    books.in_use.insert(key_of(&attachment), Arc::downgrade(&attachment));
    attachment
}

/// Returns what is mapped of a block that is held, with the memory that it has now.
pub(super) fn find(owner: [u8; 16], block: u64, device: Device, held: Held) -> Option<Known> {
    let key = (owner, block, device);
    let mut books = lock(&BOOKS);
    let in_use = books.in_use.get(&key).and_then(Weak::upgrade);
    if let Some(attachment) = in_use.filter(|attachment| attachment.backing == held.backing) {
        return Some(Known::InUse(attachment));
    }
    let age = books.idle_by_block.get(&key).copied()?;
    let mut idle = books.take(age)?;
    if idle.backing != held.backing {
        return Some(Known::Stale(idle));
    }
    idle.begin_use();
    let attachment = Arc::new(idle);
    books.in_use.insert(key, Arc::downgrade(&attachment));
    Some(Known::Idle(attachment))
}

/// Returns whether a mapping may stay once its use is over.
pub(super) fn may_stay(attachment: &Attachment) -> bool {
    attachment.extents() <= EXTENTS_MOST && lock(&BOOKS).mappings.get(&attachment.number) == Some(&false)
}

/// Keeps an attachment that is let go. Returns those that are too many now, and an older one of the same block.
pub(super) fn keep(attachment: Attachment) -> Vec<Attachment> {
    let mut books = lock(&BOOKS);
    let key = key_of(&attachment);
    if books.in_use.get(&key).is_some_and(|known| known.strong_count() == 0) {
        books.in_use.remove(&key);
    }
    let mut ending: Vec<_> =
        books.idle_by_block.get(&key).copied().and_then(|age| books.take(age)).into_iter().collect();
    let age = books.next_age;
    books.next_age += 1;
    attachment.memory.elsewhere.count_idle(true);
    // Not sooner: whoever sees that nothing is attached finds it here.
    attachment.uncount();
    books.idle_by_block.insert(key, age);
    books.idle_by_number.insert(attachment.number, age);
    books.idle_extents += attachment.extents();
    books.idle.insert(age, attachment);
    while books.idle.len() > IDLE_MOST || books.idle_extents > EXTENTS_MOST {
        let Some(oldest) = books.idle.keys().next().copied() else { break };
        ending.extend(books.take(oldest));
    }
    ending
}

/// Forgets an attachment that has ended.
pub(super) fn forget(attachment: &Attachment) {
    let mut books = lock(&BOOKS);
    books.mappings.remove(&attachment.number);
    let key = key_of(attachment);
    if books.in_use.get(&key).is_some_and(|known| known.strong_count() == 0) {
        books.in_use.remove(&key);
    }
}

/// Has a mapping end, as its owner says.
pub(super) fn end(number: u64) -> Ending {
    let mut books = lock(&BOOKS);
    if let Some(age) = books.idle_by_number.get(&number).copied() {
        return books.take(age).map_or(Ending::Unknown, Ending::Idle);
    }
    match books.mappings.get_mut(&number) {
        Some(is_to_end) => {
            *is_to_end = true;
            Ending::Later
        }
        None => Ending::Unknown,
    }
}

/// Takes the idle attachments of an owner.
pub(super) fn take_of(owner: [u8; 16]) -> Vec<Attachment> {
    lock(&BOOKS).take_those(|idle| idle.owner.name == owner)
}

/// Takes the idle attachments for a device.
pub(super) fn take_on(device: Device) -> Vec<Attachment> {
    lock(&BOOKS).take_those(|idle| idle.memory.device == device)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::ids::Device;
    use crate::memory::device::DeviceMemory;
    use crate::memory::share::attached::owner_process::Owner;
    use crate::memory::share::secret::random;
    use crate::memory::share::token::Told;

    fn owner() -> Arc<Owner> {
        let name = random().unwrap_or_default();
        let secret = crate::memory::share::secret::Secret(name);
        let device = [0; 16];
        let told =
            Told { kind: 0, boot: [0; 16], user: 0, process: 0, name, secret, block: 0, parcel: 0, bytes: 1, device };
        Owner::of(&told)
    }

    fn memory() -> &'static DeviceMemory {
        Box::leak(Box::new(DeviceMemory::for_model(Device::from_ordinal(0))))
    }

    const fn held(backing: u64) -> Held {
        Held { lead: 0, bytes: 1, backing, extents: 1, events: 0 }
    }

    /// One test, for the books are the process's.
    #[test]
    fn what_is_idle_is_found_for_the_memory_that_it_has_and_the_oldest_go_first() {
        let (memory, owner) = (memory(), owner());
        let find = |block, backing| find(owner.name, block, memory.device, held(backing));
        let mut used = Attachment::for_test(memory, &owner, 1, 7);
        used.begin_use();
        let used = add(used);
        assert!(matches!(find(1, 7), Some(Known::InUse(_))) && find(1, 8).is_none() && find(2, 7).is_none());
        assert!(may_stay(&used) && memory.attached.load(Ordering::Relaxed) == 1);

        let idle = |used: Arc<Attachment>| Arc::into_inner(used).map(keep).map(|ending| ending.len());
        assert_eq!((idle(used), memory.attached.load(Ordering::Relaxed)), (Some(0), 0));
        let Some(Known::Idle(again)) = find(1, 7) else { panic!("what is idle was not found") };
        assert_eq!(memory.attached.load(Ordering::Relaxed), 1);
        assert_eq!(idle(again), Some(0));
        // Other memory is behind the block by now.
        assert!(matches!(find(1, 8), Some(Known::Stale(_))) && find(1, 7).is_none());

        let mut told = Attachment::for_test(memory, &owner, 2, 7);
        told.begin_use();
        let (number, told) = (told.number, add(told));
        assert!(matches!(end(number), Ending::Later) && !may_stay(&told));
        forget(&told);
        assert!(matches!(end(number), Ending::Unknown));

        let mut oldest = None;
        for block in 0..IDLE_MOST as u64 + 1 {
            let attachment = Attachment::for_test(memory, &owner, 100 + block, 0);
            memory.attached.fetch_add(1, Ordering::Relaxed);
            oldest = keep(attachment).pop().map(|oldest| oldest.block);
        }
        assert_eq!(oldest, Some(100));
        assert_eq!(take_of(owner.name).len(), IDLE_MOST);
        assert!(take_on(memory.device).is_empty());
    }
}
