//! The blocks that this process shares, by number, and the events for the work before: what `peer` gives others, and what a
//! pool that falls asleep looks for. A freed one is reused once no
//! process holds it, as a block waits for streams. A sent one is in flight, and held, until another process has
//! attached it, so the sender need not keep it. The events are recorded again and again: none is destroyed, as another
//! process may be about to import it.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::{fmt, hint};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use super::cache::Sharing;
use super::device::{DescribedExtent, DeviceMemory, Region, Reserve};
use super::pool::{self, Pool};
use super::serve::{Allocation, check_live};
use crate::error::{Error, Result};
use crate::runtime::{Event, RelaxedCapture, Stream, get};
use crate::sync::lock;

/// 128 bits that no other process can guess.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(in crate::memory) struct Secret(pub(in crate::memory) [u8; 16]);

impl Secret {
    /// Returns whether two are equal, in constant time.
    pub(in crate::memory) fn is(&self, other: &[u8; 16]) -> bool {
        let differing = self.0.iter().zip(other).fold(0, |differing, (one, other)| differing | (one ^ other));
        hint::black_box(differing) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

pub(in crate::memory) fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // So few come whole, or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| {
        Error::unavailable(format!("the system gave no random bytes for a share's secret: {error}"))
    })?;
    Ok(bytes)
}

#[derive(Debug)]
pub(in crate::memory) struct SharedBlock {
    pub(in crate::memory) number: u64,
    pub(in crate::memory) secret: Secret,
    pub(in crate::memory) block: Allocation,
    pub(in crate::memory) bytes: u64,
    pub(in crate::memory) sharing: Arc<Sharing>,
    /// Work before it was shared that may not be done.
    events: Mutex<Vec<Arc<Event>>>,
    /// Where it was when a process held it last.
    place: Mutex<Option<InRegion>>,
    /// The numbers under which it was sent and has not arrived.
    in_flight: Mutex<BTreeMap<u64, Hold>>,
}

/// Keeps a block from reuse until this is dropped.
#[derive(Debug)]
pub(in crate::memory) struct Hold(Arc<Sharing>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// Where a block is.
#[derive(Clone, Debug)]
pub(in crate::memory) struct InRegion {
    pub(in crate::memory) region: Arc<Region>,
    /// Its start in the region's first extent, in bytes.
    pub(in crate::memory) lead: u64,
}

/// Every shared block, and at how many to look for gone ones next.
#[derive(Debug)]
struct SharedBlocks {
    by_number: BTreeMap<u64, Arc<SharedBlock>>,
    look_at: usize,
}

/// With fewer blocks it is not worth looking for gone ones.
const LOOK_LEAST: usize = 0x40;

static BLOCKS: Mutex<SharedBlocks> = Mutex::new(SharedBlocks { by_number: BTreeMap::new(), look_at: LOOK_LEAST });

impl SharedBlocks {
    /// Forgets freed blocks that no process holds.
    fn forget_gone(&mut self) {
        self.by_number.retain(|_, block| !block.sharing.is_freed() || block.sharing.holders() > 0);
        self.look_at = (2 * self.by_number.len()).max(LOOK_LEAST);
    }
}

/// Shares a live block. Processes that attach it will wait for the work so far on the stream, if one is given.
///
/// # Errors
/// `ErrorKind::InvalidValue` for memory that cannot be shared, or a captured stream; `ErrorKind::Asleep`;
/// `ErrorKind::Library` if the driver refuses.
pub(in crate::memory) fn share(block: Allocation, bytes: u64, stream: Option<&Stream>) -> Result<Arc<SharedBlock>> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    check_live(block)?;
    let memory = block.cache.memory;
    if let Some(of) = block.cache.serving() {
        let pool = of.pool();
        if pool.is_for_graphs() || of.service.role.is_captured() {
            return Err(Error::invalid_value(format!(
                "the buffer is of pool {} on {}, which is a graph's: each replay uses its memory again, whatever another \
                 process does with it. Copy it to a buffer that was allocated outside of the capture, and share that one",
                pool.label(),
                memory.location
            )));
        }
        if pool.sleep.is_asleep() {
            return Err(pool::asleep(pool));
        }
    }
    extents_of(block, bytes)?;
    if !get()?.extent_use(memory.location)?.is_shareable {
        return Err(Error::invalid_value(format!(
            "memory of {} cannot be shared with other processes: its driver makes none that can be exported (gpupool info \
             says what it makes); send the content through the host instead",
            memory.location
        )));
    }
    let event = stream.map_or(Ok(None), work_of)?;
    let secret = Secret(random()?);
    let sharing = block.cache.share_block(block.offset);
    let shared = {
        let mut blocks = lock(&BLOCKS);
        if blocks.by_number.len() >= blocks.look_at {
            blocks.forget_gone();
        }
        let known = blocks.by_number.get(&sharing.number()).cloned();
        known.unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            sharing.set_number(number);
            let shared = Arc::new(SharedBlock {
                number,
                secret,
                block,
                bytes,
                sharing,
                events: Mutex::default(),
                place: Mutex::default(),
                in_flight: Mutex::default(),
            });
            blocks.by_number.insert(number, Arc::clone(&shared));
            shared
        })
    };
    // Forgets the earlier ones that are done.
    drop(shared.events());
    lock(&shared.events).extend(event);
    Ok(shared)
}

/// Returns an event for the work so far on a stream, if there is any.
fn work_of(stream: &Stream) -> Result<Option<Arc<Event>>> {
    if stream.is_captured()? {
        return Err(Error::invalid_value(
            "the stream is being captured, and another process cannot wait for work that a graph will do: share the buffer \
             before the capture or after it",
        ));
    }
    let is_idle = {
        // The query spoils captures of this thread, and of others in global mode.
        let _relaxed = RelaxedCapture::new(get()?)?;
        stream.query()?
    };
    if is_idle { Ok(None) } else { record_on(stream).map(Some) }
}

/// All events made for other processes. One that nothing else has is recorded again.
static EVENTS: Mutex<Vec<Arc<Event>>> = Mutex::new(Vec::new());

/// Records the work so far on a stream.
fn record_on(stream: &Stream) -> Result<Arc<Event>> {
    let is_idle = |known: &&Arc<Event>| known.device() == stream.device() && Arc::strong_count(known) == 1;
    let idle = lock(&EVENTS).iter().find(is_idle).cloned();
    let event = match idle {
        Some(idle) => idle,
        None => {
            let _relaxed = RelaxedCapture::new(get()?)?;
            let made = Arc::new(Event::interprocess(stream.device())?);
            lock(&EVENTS).push(Arc::clone(&made));
            made
        }
    };
    event.record(stream)?;
    Ok(event)
}

fn is_done(event: &Event) -> Result<bool> {
    // The query spoils captures of this thread, and of others in global mode.
    let _relaxed = RelaxedCapture::new(get()?)?;
    event.query()
}

pub(in crate::memory) fn find(number: u64) -> Option<Arc<SharedBlock>> {
    lock(&BLOCKS).by_number.get(&number).cloned()
}

pub(in crate::memory) fn all() -> Vec<Arc<SharedBlock>> {
    let mut blocks = lock(&BLOCKS);
    blocks.forget_gone();
    blocks.by_number.values().cloned().collect()
}

/// Ends what keeps a block that was sent, and has not arrived.
pub(in crate::memory) fn recall(block: Allocation) {
    let is_it = |shared: &&Arc<SharedBlock>| shared.block.address() == block.address() && !shared.sharing.is_freed();
    let found = lock(&BLOCKS).by_number.values().find(is_it).cloned();
    if let Some(shared) = found {
        let ended = mem::take(&mut *lock(&shared.in_flight));
        shared.memory().sent.fetch_sub(shared.bytes * ended.len() as u64, Ordering::Relaxed);
    }
}

/// Refuses if another process holds a block of the pool.
pub(in crate::memory) fn refuse_held(pool: &Pool) -> Result<()> {
    let is_held = |shared: &&Arc<SharedBlock>| {
        shared.sharing.holders() > 0 && shared.block.cache.serving().is_some_and(|of| std::ptr::eq(&**of.pool(), pool))
    };
    let blocks = all();
    let held: Vec<_> = blocks.iter().filter(is_held).collect();
    let Some(first) = held.first() else { return Ok(()) };
    Err(Error::unavailable(format!(
        "pool {} on {} cannot fall asleep: other processes have attached {} of its blocks, or were sent them, the first at \
         {:#x}, whose memory must stay. Free the attached buffers there first, or end those processes",
        pool.label(),
        pool.memory.location,
        held.len(),
        first.block.address()
    )))
}

impl SharedBlock {
    pub(in crate::memory) fn memory(&self) -> &'static DeviceMemory {
        self.block.cache.memory
    }

    /// Holds the block until the returned number [`arrived`](SharedBlock::arrived); none if it was freed.
    pub(in crate::memory) fn send(&self) -> Option<u64> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // No number in flight is 0.
        let hold = self.hold(0)?;
        self.memory().sent.fetch_add(self.bytes, Ordering::Relaxed);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&self.in_flight).insert(number, hold);
        Some(number)
    }

    /// Holds the block for a process with its token; none if it was freed, unless the token's number is still in
    /// flight.
    pub(in crate::memory) fn hold(&self, in_flight: u64) -> Option<Hold> {
        let is_in_flight = lock(&self.in_flight).contains_key(&in_flight);
        let is_held = if is_in_flight { self.sharing.hold_again() } else { self.sharing.hold() };
        is_held.then(|| Hold(Arc::clone(&self.sharing)))
    }

    /// Ends the hold of [`SharedBlock::send`] under a number.
    pub(in crate::memory) fn arrived(&self, in_flight: u64) {
        if lock(&self.in_flight).remove(&in_flight).is_some() {
            self.memory().sent.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }

    /// Forgets the events whose work is done, and returns the others.
    pub(in crate::memory) fn events(&self) -> Vec<Arc<Event>> {
        let events = lock(&self.events).clone();
        // Queried without a lock; an event that cannot be queried stays.
        let done: Vec<_> = events.into_iter().filter(|event| is_done(event).unwrap_or(false)).collect();
        let mut events = lock(&self.events);
        events.retain(|event| !done.iter().any(|done| Arc::ptr_eq(done, event)));
        events.clone()
    }

    /// Returns the place of a block that is held.
    pub(in crate::memory) fn place(&self) -> Result<InRegion> {
        if let Some(of) = self.block.cache.serving()
            && of.pool().sleep.is_asleep()
        {
            return Err(pool::asleep(of.pool()));
        }
        // A block stays where it is as long as its extents do.
        if let Some(known) = self.known_place().filter(|place| !place.region.has_ended()) {
            return Ok(known);
        }
        let (lead, extents) = extents_of(self.block, self.bytes)?;
        let place = InRegion { region: Region::find(&self.memory().elsewhere, extents), lead };
        let before = lock(&self.place).replace(place.clone());
        drop(before);
        Ok(place)
    }

    /// Returns where the block was when a process held it last.
    pub(in crate::memory) fn known_place(&self) -> Option<InRegion> {
        lock(&self.place).clone()
    }
}

/// Returns where bytes of a live block start in their first extent, and the extents.
fn extents_of(block: Allocation, bytes: u64) -> Result<(u64, Vec<DescribedExtent>)> {
    let memory = block.cache.memory;
    let of_reserve = block.cache.serving().and_then(|of| of.pool().supply.reserve().map(Reserve::extents));
    let of_reserve = of_reserve.unwrap_or_default();
    let wanted: Range<u64> = block.offset..block.offset + bytes;
    let (mut at, mut lead, mut extents) = (wanted.start, 0, Vec::new());
    while at < wanted.end {
        let in_reserve = of_reserve.iter().find(|extent| (extent.start()..extent.end()).contains(&at)).copied();
        let mapping = in_reserve.or_else(|| memory.pages.mapping(at).filter(|_| at < memory.range.bytes));
        let Some(mapping) = mapping else { return Err(no_extents(block)) };
        if extents.is_empty() {
            lead = at - mapping.start();
        }
        extents.push(DescribedExtent { extent: mapping.extent, bytes: mapping.bytes() });
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
        block.cache.memory.location
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_itself_alone() -> Result<()> {
        let (one, other) = (Secret(random()?), Secret(random()?));
        assert!(one.is(&one.0) && !one.is(&other.0));
        let mut last = one.0;
        last[15] ^= 1;
        assert!(!one.is(&last));
        assert_eq!(format!("{one:?}"), "Secret");
        Ok(())
    }
}
