//! The table of a device's segments, memory outside of the device's range, and the offsets that stand for them.

use std::collections::BTreeMap;
use std::sync::{Mutex, RwLock};

use super::address_space::{AddressSpace, Run};
use crate::error::{Error, Result};
use crate::memory::tuning::PAGE;
use crate::sync::{lock, read, write};

/// A segment's bytes, and the offset that stands for its address.
#[derive(Clone, Copy, Debug)]
struct SegmentRange {
    bytes: u64,
    offset: u64,
}

#[derive(Debug)]
pub(in crate::memory) struct Segments {
    /// By address.
    all: RwLock<BTreeMap<u64, SegmentRange>>,
    /// Their offsets, which begin where those of the address range end.
    space: Mutex<AddressSpace>,
}

impl Segments {
    /// Makes an empty table with room for so many pages from page `first` on.
    pub(super) fn new(first: u32, pages: u32) -> Self {
        Self { all: RwLock::default(), space: Mutex::new(AddressSpace::new(first, pages)) }
    }

    /// Adds a segment and returns its offset; none if no offsets are left.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if it overlaps another segment, or goes beyond the last address.
    pub(in crate::memory) fn add(&self, address: u64, bytes: u64) -> Result<Option<u64>> {
        // A page stays unused after each segment, so that segments never join.
        let Ok(pages) = u32::try_from(bytes.div_ceil(PAGE) + 1) else { return Ok(None) };
        let Some(run) = lock(&self.space).take_any(pages) else { return Ok(None) };
        let offset = run.start();
        let mut all = write(&self.all);
        if address.checked_add(bytes).is_none() || overlaps(&all, address, bytes) {
            drop(all);
            lock(&self.space).put_back(run);
            return Err(overlapping(address, bytes));
        }
        all.insert(address, SegmentRange { bytes, offset });
        Ok(Some(offset))
    }

    pub(in crate::memory) fn remove(&self, address: u64, offset: u64, bytes: u64) {
        write(&self.all).remove(&address);
        let run = Run { first: (offset / PAGE) as u32, pages: bytes.div_ceil(PAGE) as u32 + 1 };
        lock(&self.space).put_back(run);
    }

    pub(in crate::memory) fn offset(&self, address: u64) -> Option<u64> {
        let all = read(&self.all);
        let (start, segment) = all.range(..=address).next_back()?;
        (address - start < segment.bytes).then(|| segment.offset + (address - start))
    }

    pub(in crate::memory) fn starts_at(&self, address: u64) -> bool {
        read(&self.all).contains_key(&address)
    }

    pub(in crate::memory) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        overlaps(&read(&self.all), address, bytes)
    }
}

fn overlaps(all: &BTreeMap<u64, SegmentRange>, address: u64, bytes: u64) -> bool {
    let is_above = |(start, segment): (&u64, &SegmentRange)| start + segment.bytes > address;
    all.range(..address.saturating_add(bytes)).next_back().is_some_and(is_above)
}

/// Returns the error of a pool's own allocator that hands memory out twice.
pub(in crate::memory) fn overlapping(address: u64, bytes: u64) -> Error {
    Error::invalid_value(format!(
        "the pool's own allocator returned {address:#x} for {bytes} bytes, which overlaps memory that is still in use"
    ))
}
