//! Extents that no cache has: those of a pool's reserve, and of pages that are made ahead of need. What is mapped
//! somewhere already NVIDIA's driver maps at another place in five sixths of the time (`benches/results/ranges`), so pages
//! made ahead are mapped too, until a commit moves them.

use super::claim::{claimed, out_of_addresses};
use crate::error::Result;
use crate::memory::device::{Mapping, Remains, Run, Until};
use crate::memory::pool::Pool;
use crate::memory::tuning::PAGE;
use crate::sync::lock;

/// Creates so many pages, in extents of at most `most`, and maps them in a row.
///
/// # Errors
/// One for which [`is_no_memory`](super::is_no_memory) holds if there is not enough; any other refusal of the driver.
/// Nothing is kept then.
pub(super) fn map_new(pool: &Pool, pages: u32, most: u32) -> Result<Vec<Mapping>> {
    let memory = pool.memory;
    let _moving = memory.under_way.begin();
    let run = lock(&memory.space).take_any(pages).ok_or_else(|| out_of_addresses(memory))?;
    let mut extents = Vec::new();
    let mut mapped = 0;
    let outcome = (|| {
        let mut at = run.first;
        while at < run.next() {
            let pages = most.min(run.next() - at);
            let extent = claimed(pool, u64::from(pages) * PAGE, || memory.range.create(pages))?;
            extents.push(Mapping { run: Run { first: at, pages }, extent });
            at += pages;
        }
        // SAFETY: the pages were taken above, and the extents are this call's alone.
        let (count, outcome) = unsafe { memory.range.map(&memory.range.placed(&extents)) };
        mapped = count;
        outcome
    })();
    let Err(error) = outcome else { return Ok(extents) };
    let unmapped = extents.split_off(mapped);
    let first = extents.last().map_or(run.first, |mapping| mapping.run.next());
    memory.put_back_pages(Run { first, pages: run.next() - first });
    // SAFETY: no cache has got any of it, so no work uses it.
    unsafe { memory.retire(Remains::Released { mapped: extents, unmapped }, Until::at_once(), &pool.supply) };
    memory.try_end_retired();
    Err(error)
}

/// Makes an extent ahead of need.
///
/// # Errors
/// As [`map_new`].
pub(in crate::memory) fn make_ready(pool: &Pool, pages: u32) -> Result<()> {
    for mapping in map_new(pool, pages, pages)? {
        pool.memory.pages.set_mapping(mapping);
        pool.supply.ready.put(mapping);
    }
    Ok(())
}

/// Releases mapped extents that no cache has.
pub(in crate::memory) fn retire_extents(pool: &Pool, mapped: Vec<Mapping>) {
    if !mapped.is_empty() {
        let remains = Remains::Released { mapped, unmapped: Vec::new() };
        // SAFETY: no cache has any of it, and no work uses it.
        unsafe { pool.memory.retire(remains, Until::at_once(), &pool.supply) };
    }
}
