//! What a pool has when it falls asleep: parts of its memory that go one after the other, and what is live in them.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{Mapping, Reserve};
use crate::memory::pool::Pool;
use crate::memory::tuning::{LARGE_EXTENT_PAGES, PAGE};
use crate::sync::ThisThread;

/// Extents in a row, which are unmapped by one call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) extents: Vec<Mapping>,
}

impl Part {
    pub(super) fn first(&self) -> u32 {
        self.extents.first().map_or(0, |extent| extent.first)
    }

    pub(super) fn pages(&self) -> u32 {
        self.extents.iter().map(|extent| extent.pages).sum()
    }

    pub(super) fn start(&self) -> u64 {
        u64::from(self.first()) * PAGE
    }

    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.pages()) * PAGE
    }

    pub(super) fn end(&self) -> u64 {
        self.start() + self.bytes()
    }
}

/// All that a pool has whose caches are asleep.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) parts: Vec<Part>,
    /// What is live, in order.
    pub(super) live: Vec<Range<u64>>,
}

impl Parts {
    /// Looks at what the pool has. Its reserve gives up its extents.
    ///
    /// # Errors
    /// `ErrorKind::InternalError` if pages of it have no extent.
    pub(super) fn of(pool: &Pool, thread: ThisThread) -> Result<Self> {
        let memory = pool.memory;
        let end = memory.range.bytes();
        let reserve = pool.supply.reserve();
        let kept = reserve.map_or(0..0, Reserve::range);
        let (mut extents, mut live) = (Vec::new(), Vec::new());
        for (cache, service) in DeviceCaches::services_of(pool) {
            let mut heap = cache.lock(thread);
            if !heap.is_asleep_in(service.number) {
                continue;
            }
            heap.drop_empty_slabs(&memory.pages);
            live.extend(heap.live_ranges(&memory.pages));
            for (start, bytes) in heap.spans_below(end) {
                let mut at = start;
                while at < start + bytes {
                    if kept.contains(&at) {
                        at = kept.end;
                        continue;
                    }
                    let Some(extent) = memory.pages.mapping(at) else {
                        return Err(Error::internal("a page of a pool that falls asleep has no memory of its own"));
                    };
                    at = extent.end();
                    extents.push(extent);
                }
            }
        }
        extents.extend(reserve.map(Reserve::take_extents).unwrap_or_default());
        extents.sort_unstable_by_key(|extent| extent.first);
        live.sort_unstable_by_key(|range: &Range<u64>| range.start);
        Ok(Self { parts: parts(extents), live })
    }
}

/// Returns extents in parts of those that stand in a row.
fn parts(extents: Vec<Mapping>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for extent in extents {
        match parts.last_mut() {
            Some(last)
                if last.end() == extent.start() && last.bytes() + extent.bytes() <= LARGE_EXTENT_PAGES * PAGE =>
            {
                last.extents.push(extent);
            }
            _ => parts.push(Part { extents: vec![extent] }),
        }
    }
    parts
}
