//! What was sent to a process that has not taken it up yet: kept, so that the sender need not keep it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::memory::device::DeviceMemory;
use crate::sync::lock;

/// What keeps a block: a buffer.
pub(in crate::memory) type Kept = Arc<dyn Any + Send + Sync>;

struct Parcel {
    block: u64,
    memory: &'static DeviceMemory,
    bytes: u64,
    kept: Kept,
}

impl fmt::Debug for Parcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parcel").field("block", &self.block).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Parcels {
    by_number: BTreeMap<u64, Parcel>,
    next: u64,
}

static PARCELS: Mutex<Parcels> = Mutex::new(Parcels { by_number: BTreeMap::new(), next: 1 });

/// Keeps something of a shared block until the returned number has arrived.
pub(in crate::memory::share) fn keep(block: u64, memory: &'static DeviceMemory, bytes: u64, kept: Kept) -> u64 {
    memory.sent.fetch_add(bytes, Ordering::Relaxed);
    let mut parcels = lock(&PARCELS);
    let number = parcels.next;
    parcels.next += 1;
    parcels.by_number.insert(number, Parcel { block, memory, bytes, kept });
    number
}

/// Returns what was kept of a block under a number, which has arrived. It is dropped with no lock held.
pub(in crate::memory::share) fn arrived(number: u64, block: u64) -> Option<Kept> {
    let mut parcels = lock(&PARCELS);
    if parcels.by_number.get(&number)?.block != block {
        return None;
    }
    let parcel = parcels.by_number.remove(&number)?;
    parcel.memory.sent.fetch_sub(parcel.bytes, Ordering::Relaxed);
    Some(parcel.kept)
}
