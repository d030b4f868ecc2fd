//! The blocks that this process shares, by number.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::events::Recorded;
use super::regions::{self, Region};
use crate::error::{Error, Result};
use crate::memory::cache::Sharing;
use crate::memory::device::DeviceMemory;
use crate::memory::pool::{self, Pool};
use crate::memory::serve::{Allocation, check_live};
use crate::memory::share::secret::Secret;
use crate::memory::share::wire::Described;
use crate::runtime::{RelaxedCapture, Stream, get};
use crate::sync::lock;

/// A block that is shared.
#[derive(Debug)]
pub(in crate::memory::share) struct SharedBlock {
    pub(in crate::memory::share) number: u64,
    pub(in crate::memory::share) secret: Secret,
    pub(in crate::memory::share) block: Allocation,
    /// As asked for.
    pub(in crate::memory::share) bytes: u64,
    pub(in crate::memory::share) sharing: Arc<Sharing>,
    /// What was submitted before it was shared, as far as it may not be done.
    events: Mutex<Vec<Arc<Recorded>>>,
    /// Where it stood when it was asked for last.
    place: Mutex<Option<Place>>,
}

/// Where a block lies.
#[derive(Clone, Debug)]
pub(in crate::memory::share) struct Place {
    pub(super) region: Arc<Region>,
    /// Where it starts in the region's first extent, in bytes.
    pub(super) lead: u64,
}

/// Every shared block, and how many there were when those that are gone were last looked for.
#[derive(Debug)]
struct Books {
    blocks: BTreeMap<u64, Arc<SharedBlock>>,
    next: u64,
    looked_at: usize,
}

static BOOKS: Mutex<Books> = Mutex::new(Books { blocks: BTreeMap::new(), next: 1, looked_at: 64 });

impl Books {
    /// Takes out the blocks that were freed and that no process holds.
    fn take_gone(&mut self) -> Vec<Arc<SharedBlock>> {
        let gone = |block: &SharedBlock| block.sharing.is_freed() && block.sharing.holders() == 0;
        let numbers: Vec<_> = self.blocks.iter().filter(|(_, block)| gone(block)).map(|(number, _)| *number).collect();
        self.looked_at = (2 * (self.blocks.len() - numbers.len())).max(64);
        numbers.into_iter().filter_map(|number| self.blocks.remove(&number)).collect()
    }
}

/// Shares a live block, and notes the work so far on the stream, if one is given, for which processes that attach it will wait.
///
/// # Errors
/// `ErrorKind::InvalidValue` for memory that cannot be shared, or a captured stream; `ErrorKind::Asleep`;
/// `ErrorKind::Library` if the driver refuses.
pub(in crate::memory::share) fn share(
    block: Allocation,
    bytes: u64,
    stream: Option<&Stream>,
) -> Result<Arc<SharedBlock>> {
    check_live(block)?;
    let memory = block.cache.memory;
    let service = block.cache.service();
    let of_pool = service.as_ref().map(|service| &service.pool);
    if let Some(pool) = of_pool {
        if pool.is_for_graphs() || service.as_ref().is_some_and(|service| service.role.is_captured()) {
            return Err(Error::invalid_value(format!(
                "the buffer is of pool {} on {}, which is a graph's: each replay uses its memory again, whatever another \
                 process does with it. Copy it to a buffer that was allocated outside of the capture, and share that one",
                pool.label(),
                memory.device
            )));
        }
        if pool.sleep.is_asleep() {
            return Err(pool::asleep(pool));
        }
    }
    extents_of(block, bytes)?;
    if !get()?.extent_use(memory.device)?.is_shareable {
        return Err(Error::invalid_value(format!(
            "memory of {} cannot be shared with other processes: its driver makes none that can be exported (gpupool info \
             says what it makes); send the content through the host instead",
            memory.device
        )));
    }
    let event = stream.map_or(Ok(None), work_of)?;
    let secret = Secret::new()?;
    let sharing = block.cache.share_block(block.offset);
    let (shared, gone) = {
        let mut books = lock(&BOOKS);
        let gone = if books.blocks.len() >= books.looked_at { books.take_gone() } else { Vec::new() };
        let known = books.blocks.get(&sharing.number()).cloned();
        let shared = known.unwrap_or_else(|| {
            let number = books.next;
            books.next += 1;
            sharing.set_number(number);
            let shared = Arc::new(SharedBlock {
                number,
                secret,
                block,
                bytes,
                sharing,
                events: Mutex::default(),
                place: Mutex::default(),
            });
            books.blocks.insert(number, Arc::clone(&shared));
            shared
        });
        (shared, gone)
    };
    drop(gone);
    let done = shared.take_done();
    lock(&shared.events).extend(event);
    drop(done);
    Ok(shared)
}

/// Returns what stands for the work so far on a stream, if there is any.
fn work_of(stream: &Stream) -> Result<Option<Arc<Recorded>>> {
    if stream.is_captured()? {
        return Err(Error::invalid_value(
            "the stream is being captured, and another process cannot wait for work that a graph will do: share the buffer \
             before the capture or after it",
        ));
    }
    let is_idle = {
        // The question spoils captures of this thread, and of others in global mode.
        let _relaxed = RelaxedCapture::new(get()?)?;
        stream.query()?
    };
    if is_idle { Ok(None) } else { Recorded::on(stream).map(Some) }
}

/// Returns the block with this number, if it is known.
pub(in crate::memory::share) fn find(number: u64) -> Option<Arc<SharedBlock>> {
    lock(&BOOKS).blocks.get(&number).cloned()
}

/// Returns the blocks that are shared.
pub(in crate::memory::share) fn all() -> Vec<Arc<SharedBlock>> {
    let (all, gone) = {
        let mut books = lock(&BOOKS);
        let gone = books.take_gone();
        (books.blocks.values().cloned().collect(), gone)
    };
    drop(gone);
    all
}

/// Refuses where another process holds a block of the pool.
pub(in crate::memory) fn refuse_held(pool: &Pool) -> Result<()> {
    let is_held = |shared: &&Arc<SharedBlock>| {
        shared.sharing.holders() > 0
            && shared.block.cache.service().is_some_and(|service| std::ptr::eq(&*service.pool, pool))
    };
    let blocks = all();
    let held: Vec<_> = blocks.iter().filter(is_held).collect();
    let Some(first) = held.first() else { return Ok(()) };
    Err(Error::unavailable(format!(
        "pool {} on {} cannot fall asleep: other processes have attached {} of its blocks, or were sent them, the first at \
         {:#x}, whose memory must stay. Free the attached buffers there first, or end those processes",
        pool.label(),
        pool.memory.device,
        held.len(),
        first.block.address()
    )))
}

impl SharedBlock {
    pub(in crate::memory::share) fn memory(&self) -> &'static DeviceMemory {
        self.block.cache.memory
    }

    /// Forgets the events whose work is done, and returns them.
    fn take_done(&self) -> Vec<Arc<Recorded>> {
        let events = lock(&self.events).clone();
        // Asked with no lock held; one that cannot be asked stays.
        let done: Vec<_> = events.into_iter().filter(|event| event.is_done().unwrap_or(false)).collect();
        lock(&self.events).retain(|event| !done.iter().any(|done| Arc::ptr_eq(done, event)));
        done
    }

    /// Returns what is to be waited for, as far as it is not done.
    pub(in crate::memory::share) fn events(&self) -> Vec<Arc<Recorded>> {
        drop(self.take_done());
        lock(&self.events).clone()
    }

    /// Returns where the block lies, while it is held.
    pub(in crate::memory::share) fn place(&self) -> Result<Place> {
        if let Some(service) = self.block.cache.service()
            && service.pool.sleep.is_asleep()
        {
            return Err(pool::asleep(&service.pool));
        }
        // A block stays where it is as long as its extents do.
        let known = self.known_place().filter(|place| !place.region.is_ended());
        if let Some(place) = known {
            return Ok(place);
        }
        let (lead, extents) = extents_of(self.block, self.bytes)?;
        let place = Place { region: regions::find(self.memory(), extents), lead };
        let before = lock(&self.place).replace(place.clone());
        drop(before);
        Ok(place)
    }

    /// Returns where the block was found to lie.
    pub(super) fn known_place(&self) -> Option<Place> {
        lock(&self.place).clone()
    }
}

/// Returns where bytes of a live block start in their first extent, and the extents.
fn extents_of(block: Allocation, bytes: u64) -> Result<(u64, Vec<Described>)> {
    let memory = block.cache.memory;
    let reserve = block.cache.service().and_then(|service| {
        let of_reserve = service.pool.supply.reserve().map(|reserve| (reserve.range(), reserve.extents()));
        of_reserve.filter(|(range, _)| range.start < range.end)
    });
    let wanted: Range<u64> = block.offset..block.offset + bytes;
    let (mut at, mut lead, mut extents) = (wanted.start, 0, Vec::new());
    while at < wanted.end {
        let in_reserve = reserve.as_ref().filter(|(range, _)| range.contains(&at)).and_then(|(_, extents)| {
            extents.iter().find(|extent| (extent.start()..extent.end()).contains(&at)).copied()
        });
        let mapping = in_reserve.or_else(|| memory.pages.mapping(at).filter(|_| at < memory.range.bytes()));
        let Some(mapping) = mapping else { return Err(no_extents(block)) };
        if extents.is_empty() {
            lead = at - mapping.start();
        }
        extents.push(Described { extent: mapping.extent, bytes: mapping.bytes() });
        at = mapping.end();
    }
    Ok((lead, extents))
}

#[cold]
fn no_extents(block: Allocation) -> Error {
    Error::invalid_value(format!(
        "{:#x} on {} is memory that cannot be shared: its pool has an allocator of its own, or segments, or the device has no \
         virtual memory management. Allocate it from a pool without those (MemPool() or the default one)",
        block.address(),
        block.cache.memory.device
    ))
}
