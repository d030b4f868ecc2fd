//! Growth by a segment of the pool's own source, and the table of a device's segments.

use std::collections::BTreeMap;
use std::sync::RwLockReadGuard;
use std::sync::atomic::Ordering;

use log::debug;

use super::{claimed, out_of_addresses};
use crate::error::{Bytes, Error, Result};
use crate::memory::cache::heap::ALIGNMENT;
use crate::memory::cache::thread as local;
use crate::memory::cache::thread_cache::{Service, ThreadCache};
use crate::memory::device::device_memory::{DeviceMemory, Segment};
use crate::memory::device::pages::PAGE;
use crate::memory::device::segment_source::{SegmentSource, segment_bytes};
use crate::observe::{Activity, target::MEMORY};
use crate::sync::{lock, read, write};

/// Adds a segment of the pool's own source.
pub(super) fn grow_segment(
    cache: &'static ThreadCache,
    service: &Service,
    thread: u64,
    bytes: u64,
    source: &dyn SegmentSource,
) -> Result<Option<u64>> {
    let (device, pool) = (cache.device, &service.pool);
    let needed = cache.lock(thread).needed_for(bytes);
    let wanted = segment_bytes(needed);
    let activity = Activity::begin_of(wanted, format_args!("grow memory pool"));
    let start = claimed(device, pool, wanted, || {
        device.driver_calls.fetch_add(1, Ordering::Relaxed);
        let address = local::supply(pool, || source.allocate(wanted, &service.stream))?;
        device.add_segment(address, wanted, cache).inspect_err(|_| {
            // To free what starts where a segment does would take that segment's memory away from who holds it.
            if !device.has_segment(address) {
                let _ = source.free(address, wanted, &service.stream);
            }
        })
    })?;
    let offset = cache.add_and_allocate(thread, start, wanted, bytes);
    let (id, device, took) = (pool.id, device.device, activity.took());
    let (segment, reserved) = (Bytes(wanted), Bytes(pool.budget.reserved()));
    debug!(target: MEMORY, "pool {id} on {device}: grew by a segment of {segment} in {took}, {reserved} reserved");
    Ok(offset)
}

impl DeviceMemory {
    /// Makes memory at a foreign address known, and the cache's. Answers its offset.
    fn add_segment(&self, address: u64, bytes: u64, cache: &ThreadCache) -> Result<u64> {
        let alignment = ALIGNMENT;
        if !address.is_multiple_of(alignment) {
            return Err(Error::invalid_value(format!(
                "the pool's own allocator returned {address:#x}, which is not a multiple of {alignment}; allocate with that alignment"
            )));
        }
        // A page stays unused after each segment, so that segments never join.
        let pages = u32::try_from(bytes.div_ceil(PAGE) + 1).map_err(|_| out_of_addresses(self))?;
        let first = {
            let mut windows = lock(&self.windows);
            let hole = windows.holes().find(|&(_, room)| room >= pages).map(|(first, _)| first);
            let first = hole.or_else(|| windows.far(pages)).ok_or_else(|| out_of_addresses(self))?;
            windows.take(first, pages);
            first
        };
        let offset = u64::from(first) * PAGE;
        if let Err(error) = self.insert_segment(address, Segment { bytes, offset }) {
            lock(&self.windows).put_back(first, pages);
            return Err(error);
        }
        self.pages.set_segment(offset, bytes, address);
        self.pages.set_cache(offset, offset + bytes, Some(cache.number));
        Ok(offset)
    }

    fn insert_segment(&self, address: u64, segment: Segment) -> Result<()> {
        let overlaps = || {
            Error::invalid_value(format!(
                "the pool's own allocator returned {address:#x} for {} bytes, which overlaps memory that is still in use",
                segment.bytes
            ))
        };
        let end = address.checked_add(segment.bytes).ok_or_else(overlaps)?;
        // All devices share one range of addresses. One at a time, so that no two locks are held.
        if DeviceMemory::all().any(|device| device.overlaps(&device.read_segments(), address, end)) {
            return Err(overlaps());
        }
        let mut segments = write(&self.segments);
        if self.overlaps(&segments, address, end) {
            return Err(overlaps());
        }
        segments.insert(address, segment);
        Ok(())
    }

    fn read_segments(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Segment>> {
        read(&self.segments)
    }

    /// Whether any of these segments, or the device's reserved range, has an address of `address..end`.
    fn overlaps(&self, segments: &BTreeMap<u64, Segment>, address: u64, end: u64) -> bool {
        let is_below = |(start, segment): (&u64, &Segment)| start + segment.bytes > address;
        let range = self.base()..self.base() + self.room();
        segments.range(..end).next_back().is_some_and(is_below) || (address < range.end && end > range.start)
    }

    /// Whether a segment starts at this address.
    fn has_segment(&self, address: u64) -> bool {
        self.read_segments().contains_key(&address)
    }

    /// Forgets a segment; its address, for its source.
    pub(in crate::memory) fn remove_segment(&self, offset: u64, bytes: u64) -> u64 {
        let address = self.address(offset);
        write(&self.segments).remove(&address);
        let (first, pages) = ((offset / PAGE) as u32, bytes.div_ceil(PAGE) as u32 + 1);
        lock(&self.windows).put_back(first, pages);
        address
    }
}
