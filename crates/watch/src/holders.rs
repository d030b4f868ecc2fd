//! Who holds a device's memory: every block that the driver has given, by its device and the file that asked for it. A
//! physical allocation is held as long as the program has a handle of it or it is mapped, as the driver has it.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fork;
use crate::objects::{self, FileId};

/// Told of a holder: its name, its file's path, the bytes that it holds and held at most, and its live allocations.
pub(crate) type Tell = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, u64, u64, u64);

/// What one call of the driver has given.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    holder: (c_int, Option<FileId>),
    /// The context in which it was allocated; 0 for physical memory and that of pools, which are in none.
    context: usize,
    bytes: u64,
}

impl Block {
    pub(crate) fn new(device: Option<c_int>, context: usize, bytes: u64, file: Option<FileId>) -> Self {
        Self { holder: (device.unwrap_or(0), file), context, bytes }
    }
}

/// Physical memory, by a number of its own: the driver may use a handle's again while this is mapped.
struct Physical {
    block: Block,
    handles: u32,
    mappings: u32,
}

/// Where physical memory is, by the first byte.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    end: usize,
    /// Its own: the same memory may be in the same place once more.
    number: u64,
    physical: u64,
}

/// What a file holds of a device.
#[derive(Clone, Copy, Default)]
pub(crate) struct Held {
    pub(crate) bytes: u64,
    pub(crate) peak: u64,
    pub(crate) count: u64,
}

/// What was given back for calls that had failed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Given {
    pub(crate) times: u64,
    pub(crate) bytes: u64,
}

struct Holders {
    /// The number of the last thing that was counted.
    last: u64,
    /// Numbers and blocks, by address.
    blocks: BTreeMap<usize, (u64, Block)>,
    physical: BTreeMap<u64, Physical>,
    /// Numbers, by handle.
    handles: BTreeMap<usize, u64>,
    mappings: BTreeMap<usize, Mapping>,
    /// Numbers of the contexts that programs have made, which are no device's primary one.
    contexts: BTreeMap<usize, u64>,
    held: BTreeMap<(c_int, Option<FileId>), Held>,
    given: BTreeMap<c_int, Given>,
}

static HOLDERS: Mutex<Holders> = Mutex::new(Holders {
    last: 0,
    blocks: BTreeMap::new(),
    physical: BTreeMap::new(),
    handles: BTreeMap::new(),
    mappings: BTreeMap::new(),
    contexts: BTreeMap::new(),
    held: BTreeMap::new(),
    given: BTreeMap::new(),
});

/// The lock is held for a few operations on lists alone.
fn holders() -> MutexGuard<'static, Holders> {
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether nobody is in the middle of a change.
pub(crate) fn is_free() -> bool {
    HOLDERS.try_lock().is_ok()
}

impl Holders {
    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn count(&mut self, block: Block) {
        let held = self.held.entry(block.holder).or_default();
        held.bytes += block.bytes;
        held.count += 1;
        held.peak = held.peak.max(held.bytes);
    }

    fn uncount(&mut self, block: Block) {
        if let Some(held) = self.held.get_mut(&block.holder) {
            held.bytes = held.bytes.saturating_sub(block.bytes);
            held.count = held.count.saturating_sub(1);
        }
    }

    /// Returns the addresses and numbers of blocks.
    fn blocks_that(&self, is_meant: impl Fn(&Block) -> bool) -> Vec<(usize, u64)> {
        let meant = self.blocks.iter().filter(|(_, (_, block))| is_meant(block));
        meant.map(|(&address, &(number, _))| (address, number)).collect()
    }

    /// Counts blocks as gone, unless they are others by now.
    fn forget(&mut self, blocks: Vec<(usize, u64)>) {
        for (address, number) in blocks {
            if let Some((_, block)) = self.blocks.get(&address).copied().filter(|found| found.0 == number) {
                self.blocks.remove(&address);
                self.uncount(block);
            }
        }
    }

    /// Changes how often physical memory is held, and forgets it with the last time.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Physical)) {
        let Some(physical) = self.physical.get_mut(&number) else { return };
        change(physical);
        if physical.handles == 0 && physical.mappings == 0 {
            let block = physical.block;
            self.physical.remove(&number);
            self.uncount(block);
        }
    }
}

/// Counts a block at an address.
pub(crate) fn add(address: usize, block: Block) {
    let mut holders = holders();
    let number = holders.next_number();
    holders.count(block);
    if let Some((_, former)) = holders.blocks.insert(address, (number, block)) {
        // Another thread gives it back, and has not come to say so.
        holders.uncount(former);
    }
}

/// Counts physical memory with its first handle.
pub(crate) fn create(handle: usize, block: Block) {
    let mut holders = holders();
    let number = holders.next_number();
    holders.count(block);
    holders.physical.insert(number, Physical { block, handles: 1, mappings: 0 });
    holders.handles.insert(handle, number);
}

/// Counts another handle of what is mapped at an address.
pub(crate) fn retain(handle: usize, address: usize) {
    let mut holders = holders();
    let mapping = holders.mappings.range(..=address).next_back();
    if let Some(number) = mapping.filter(|(_, mapping)| address < mapping.end).map(|(_, mapping)| mapping.physical) {
        holders.handles.insert(handle, number);
        holders.change(number, |physical| physical.handles += 1);
    }
}

/// Counts a mapping of so many bytes.
pub(crate) fn map(address: usize, bytes: usize, handle: usize) {
    let mut holders = holders();
    if let Some(&physical) = holders.handles.get(&handle) {
        let number = holders.next_number();
        holders.mappings.insert(address, Mapping { end: address.saturating_add(bytes), number, physical });
        holders.change(physical, |physical| physical.mappings += 1);
    }
}

/// Counts a context that a program has made.
pub(crate) fn make_context(context: usize) {
    let mut holders = holders();
    let number = holders.next_number();
    holders.contexts.insert(context, number);
}

/// What a call is about to give back, and by what it is known; as soon as it has, the driver may give the same to another
/// thread, which is then counted under another number.
pub(crate) enum Leaving {
    Blocks(Vec<(usize, u64)>),
    Context(usize, u64, Vec<(usize, u64)>),
    Handle(usize, u64),
    Mappings(Vec<(usize, Mapping)>),
}

impl Leaving {
    /// The block at an address.
    pub(crate) fn block(address: usize) -> Self {
        Self::Blocks(holders().blocks.get(&address).map(|&(number, _)| (address, number)).into_iter().collect())
    }

    /// A context, and the blocks in it.
    pub(crate) fn context(context: usize) -> Self {
        let holders = holders();
        let number = holders.contexts.get(&context).copied().unwrap_or(0);
        Self::Context(context, number, holders.blocks_that(|block| block.context == context))
    }

    /// The blocks in a device's primary context: those in no context that a program has made.
    pub(crate) fn primary_context(device: c_int) -> Self {
        let holders = holders();
        let is_in_it = |context| context != 0 && !holders.contexts.contains_key(&context);
        let is_meant = |block: &Block| block.holder.0 == device && is_in_it(block.context);
        Self::Blocks(holders.blocks_that(is_meant))
    }

    /// A handle of physical memory.
    pub(crate) fn handle(handle: usize) -> Self {
        Self::Handle(handle, holders().handles.get(&handle).copied().unwrap_or(0))
    }

    /// The mappings in a range.
    pub(crate) fn mappings(address: usize, bytes: usize) -> Self {
        let holders = holders();
        let inside = holders.mappings.range(address..address.saturating_add(bytes));
        Self::Mappings(inside.map(|(&at, &mapping)| (at, mapping)).collect())
    }

    /// Counts it as gone.
    pub(crate) fn has_gone(self) {
        let mut holders = holders();
        match self {
            Self::Blocks(blocks) => holders.forget(blocks),
            Self::Context(context, number, blocks) => {
                if holders.contexts.get(&context) == Some(&number) {
                    holders.contexts.remove(&context);
                }
                holders.forget(blocks);
            }
            Self::Handle(handle, number) => {
                holders.change(number, |physical| physical.handles = physical.handles.saturating_sub(1));
                let is_last = holders.physical.get(&number).is_none_or(|physical| physical.handles == 0);
                if is_last && holders.handles.get(&handle) == Some(&number) {
                    holders.handles.remove(&handle);
                }
            }
            Self::Mappings(mappings) => {
                for (address, gone) in mappings {
                    if holders.mappings.get(&address).is_some_and(|mapping| mapping.number == gone.number) {
                        holders.mappings.remove(&address);
                    }
                    holders.change(gone.physical, |physical| physical.mappings = physical.mappings.saturating_sub(1));
                }
            }
        }
    }
}

/// Counts what was given back for a call that had failed.
pub(crate) fn note_given(device: c_int, bytes: u64) {
    if bytes > 0 {
        let mut holders = holders();
        let given = holders.given.entry(device).or_default();
        given.times += 1;
        given.bytes += bytes;
    }
}

/// Returns the devices that something was counted of, and what was given back there.
pub(crate) fn devices() -> Vec<(c_int, Given)> {
    let holders = holders();
    let mut devices: Vec<c_int> =
        holders.held.keys().map(|(device, _)| *device).chain(holders.given.keys().copied()).collect();
    devices.sort_unstable();
    devices.dedup();
    devices.into_iter().map(|device| (device, holders.given.get(&device).copied().unwrap_or_default())).collect()
}

/// Returns what each file holds of a device, the largest first.
pub(crate) fn of(device: c_int) -> Vec<(Option<FileId>, Held)> {
    let mut found: Vec<_> =
        holders().held.iter().filter(|((on, _), _)| *on == device).map(|((_, file), held)| (*file, *held)).collect();
    found.sort_by_key(|(_, held)| std::cmp::Reverse((held.bytes, held.peak)));
    found
}

/// As the table's `holders`.
pub(crate) unsafe extern "C" fn tell(device: c_int, tell: Tell, context: *mut c_void) {
    // Where nothing is counted no lock is taken, which the child of a fork that is just under way would find held.
    if !fork::has_counted() {
        return;
    }
    for (file, held) in of(device) {
        let (name, path) = objects::names(file);
        // SAFETY: the function takes these, and keeps none; no lock is held.
        unsafe { tell(context, name.as_ptr(), path.as_ptr(), held.bytes, held.peak, held.count) };
    }
}
