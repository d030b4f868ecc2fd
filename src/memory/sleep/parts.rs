//! The memory of a pool that falls asleep: parts that go one after the other, and what is live in them.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{Mapping, Reserve, without_all};
use crate::memory::pool::{KeptExtents, Pool};
use crate::memory::tuning::{LARGE_EXTENT_PAGES, PAGE};
use crate::sync::ThisThread;

/// Returns all memory of a pool whose caches are asleep, in parts that one call each unmaps, and its live ranges, in
/// order. The pool's reserve gives up its extents.
///
/// # Errors
/// `ErrorKind::InternalError` if pages of it have no extent.
pub(super) fn parts_and_live(pool: &Pool, thread: ThisThread) -> Result<(Vec<KeptExtents>, Vec<Range<u64>>)> {
    let memory = pool.memory;
    let end = memory.range.bytes;
    let reserve = pool.supply.reserve();
    let (mut extents, mut live, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    DeviceCaches::each_asleep(pool, thread, |_, heap| {
        heap.drop_empty_slabs(&memory.pages);
        live.extend(heap.live_ranges(&memory.pages));
        spans.extend(heap.spans_below(end));
    });
    if let Some(reserve) = reserve {
        spans = without_all(spans, &[reserve.run]);
    }
    for span in spans {
        let mut at = span.start();
        while at < span.end() {
            let Some(extent) = memory.pages.mapping(at) else {
                return Err(Error::internal("a page of a pool that falls asleep has no memory of its own"));
            };
            at = extent.end();
            extents.push(extent);
        }
    }
    extents.extend(reserve.map(Reserve::take_extents).unwrap_or_default());
    extents.sort_unstable_by_key(|extent| extent.run.first);
    live.sort_unstable_by_key(|range: &Range<u64>| range.start);
    Ok((parts(extents), live))
}

/// Groups extents in a row into parts.
fn parts(extents: Vec<Mapping>) -> Vec<KeptExtents> {
    let mut parts: Vec<KeptExtents> = Vec::new();
    for extent in extents {
        let has_room = |part: &&mut KeptExtents| {
            let run = part.run();
            run.end() == extent.start() && extent.end() - run.start() <= LARGE_EXTENT_PAGES * PAGE
        };
        match parts.last_mut().filter(has_room) {
            Some(last) => last.extents.push(extent),
            None => parts.push(KeptExtents { extents: vec![extent], is_mapped: true, is_open: true }),
        }
    }
    parts
}
