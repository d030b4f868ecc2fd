//! Waking: memory is allocated again at the same addresses, and filled from the backup. The driver's time grows with the number
//! of extents, so they are large; but one is released only when all of it is free. So a large block gets extents of its own, and
//! the rest gets ordinary ones. A page of a range gets one, however large it is, since pages come and go one by one.

use std::sync::Arc;
use std::time::Instant;

use log::info;

use super::backup::copy_back;
use crate::error::{Bytes, Result};
use crate::memory::cache::DeviceCaches;
use crate::memory::cache::Role;
use crate::memory::device::{EndingExtents, ExtentEnd, Mapping, Remains, Run, Until, run_of, without_all};
use crate::memory::pool::{KeptExtents, Pool, Record, SleepChange};
use crate::memory::serve::{Patience, extent_for_waking, no_memory_left, pages_asleep, retire_extents, trim};
use crate::memory::tuning::{EXTENT_PARTS, LARGE_EXTENT_PAGES, PAGE, WAKE_PAGES_LEAST};
use crate::observe::delivery::Delivery;
use crate::observe::target::MEMORY;
use crate::observe::{Activity, Took};
use crate::process;
use crate::runtime::{self, RelaxedCapture, Stream};
use crate::sync::{ThisThread, lock};

/// The most pages of an extent inside one block: 512 MiB. An H200 takes 1 GiB in 0.1 to 0.4 ms from extents of 128 MiB
/// and more, and in 1.5 ms from those of 32 MiB (`h200/extents.txt` of `benches/results`).
const OF_BLOCK_PAGES: u32 = 2 * LARGE_EXTENT_PAGES as u32;
/// From so many pages on a block has extents of its own.
const LARGE_PAGES: u32 = 2 * WAKE_PAGES_LEAST as u32;
/// The most pages that access is set for at once: 1 GiB. Meanwhile earlier ones are filled.
const GROUP_PAGES: u32 = 2 * OF_BLOCK_PAGES;

/// Wakes a pool, and returns the bytes taken from the driver; 0 if it is awake. Its memory can then be used on any
/// stream.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough, even after other pools and callbacks gave memory back; any other
/// refusal of the driver. The pool is then as asleep as before, with all of its backup.
pub(crate) fn wake(pool: &Arc<Pool>) -> Result<u64> {
    process::refuse_forked()?;
    let thread = ThisThread::get();
    let Some(mut change) = pool.sleep.begin(SleepChange::Wake, thread)? else { return Ok(0) };
    let begun = Instant::now();
    let _activity = Activity::begin(format_args!("wake memory pool"));
    let _delivery = Delivery::at_end();
    let outcome = change.record.as_mut().map_or(Ok(0), |record| bring_back(pool, record, thread));
    let took = begun.elapsed();
    // Freed without a lock.
    let record = if outcome.is_ok() { change.record.take() } else { None };
    if outcome.is_ok() {
        lock(&pool.sleep.times).awake_in = took;
    }
    drop(change);
    drop(record);
    trim_if_closed(pool, thread);
    let (label, device, took) = (pool.label(), pool.memory.location, Took(Some(took)));
    match &outcome {
        Ok(bytes) => info!(target: MEMORY, "pool {label} on {device}: awake in {took}, {} taken", Bytes(*bytes)),
        Err(error) => info!(target: MEMORY, "pool {label} on {device}: not woken: {error}"),
    }
    outcome
}

/// Gives back the free memory of a pool that was closed while it changed.
pub(super) fn trim_if_closed(pool: &Arc<Pool>, thread: ThisThread) {
    if pool.is_closed() {
        // What the driver refuses to take back now is tried again whenever memory is given back.
        let _ = trim(pool, thread, Patience::Ask);
    }
}

/// Makes the pool's caches hand out blocks again.
pub(super) fn wake_caches(pool: &Pool, thread: ThisThread) {
    let pages = &pool.memory.pages;
    let has_one_extent = |page: &Run| pages.mapping(page.start()).is_some_and(|mapping| mapping.run == *page);
    DeviceCaches::each_asleep(pool, thread, |service, heap| {
        debug_assert!(service.role != Role::Ranges || heap.large_blocks(pages, 1).iter().all(has_one_extent));
        heap.wake();
    });
}

/// Extents made for a pool so far.
#[derive(Debug, Default)]
struct NewExtents {
    mapped: Vec<Mapping>,
    unmapped: Vec<Mapping>,
    /// Made when there is something to copy.
    stream: Option<Stream>,
}

/// Allocates and fills memory for a pool, and returns the bytes taken. On failure all of them go back.
pub(super) fn bring_back(pool: &Arc<Pool>, record: &mut Record, thread: ThisThread) -> Result<u64> {
    let memory = pool.memory;
    // What could not go before may still be in the way.
    let _ = memory.end_retired(if record.is_in_the_way { Patience::Wait } else { Patience::Ask });
    let needed = pages_asleep(pool, record, thread);
    let kept: Vec<_> = record.kept.iter().map(KeptExtents::run).collect();
    let missing = without_all(needed, &kept);
    let wanted = missing.iter().map(|run| run.bytes()).sum();
    let mut taken = NewExtents::default();
    // Until the pool has what is taken, or all of it went back.
    let _moving = memory.under_way.begin();
    let outcome = (|| {
        let _relaxed = RelaxedCapture::new(runtime::get()?)?;
        // Memory that is still being copied must not be reused before.
        record.copies.as_ref().map_or(Ok(()), Stream::synchronize)?;
        record.copies = None;
        map_kept(pool, record)?;
        take(pool, record, &missing, &mut taken, thread)
    })();
    if let Err(error) = outcome {
        record.is_in_the_way = !give_up(pool, taken);
        let error = error.advised("The pool stays asleep, with its backup complete: wake it again later");
        return Err(no_memory_left(pool, wanted, error));
    }
    let kept = std::mem::take(&mut record.kept).into_iter().flat_map(|kept| kept.extents);
    let is_of_reserve =
        |extent: &Mapping| pool.supply.reserve().is_some_and(|reserve| extent.run.common(reserve.run).is_some());
    let (in_reserve, movable): (Vec<_>, Vec<_>) = taken.mapped.into_iter().chain(kept).partition(is_of_reserve);
    movable.into_iter().for_each(|extent| memory.pages.set_mapping(extent));
    wake_caches(pool, thread);
    if let Some(reserve) = pool.supply.reserve() {
        // A pool that has ended releases what it needs no more.
        retire_extents(pool, reserve.set_extents(in_reserve));
    }
    Ok(wanted)
}

fn map_kept(pool: &Pool, record: &mut Record) -> Result<()> {
    let range = &pool.memory.range;
    let (mut mapped, mut outcome) = (Vec::new(), Ok(()));
    for kept in &mut record.kept {
        if !kept.is_mapped && outcome.is_ok() {
            let count;
            // SAFETY: the pool keeps these pages, at which nothing is mapped, and the extents.
            (count, outcome) = unsafe { range.map(&range.placed(&kept.extents)) };
            let extents = kept.extents.drain(..count).collect();
            mapped.push(KeptExtents { extents, is_mapped: true, is_open: outcome.is_ok() });
        }
    }
    record.kept.extend(mapped);
    record.kept.retain(|kept| !kept.extents.is_empty());
    outcome?;
    for kept in record.kept.iter_mut().filter(|kept| !kept.is_open) {
        // SAFETY: all of it is mapped, and the pool's alone.
        unsafe { range.open(&range.placed(&kept.extents)) }?;
        kept.is_open = true;
    }
    Ok(())
}

/// Makes and maps extents at all of these pages, and copies their backup, which is done when this returns.
fn take(pool: &Arc<Pool>, record: &Record, missing: &[Run], taken: &mut NewExtents, thread: ThisThread) -> Result<()> {
    let memory = pool.memory;
    let large = large_blocks(pool, thread);
    let other = other_pages(missing.iter().map(|run| run.bytes()).sum());
    for &run in missing {
        for group in groups(run, &large, other) {
            for run in group {
                let extent = extent_for_waking(pool, run.pages)?;
                taken.unmapped.push(Mapping { run, extent });
            }
            let run = run_of(&taken.unmapped);
            // SAFETY: the pool keeps these pages, at which nothing is mapped, and alone has the extents.
            let (count, outcome) = unsafe { memory.range.map(&memory.range.placed(&taken.unmapped)) };
            taken.mapped.extend(taken.unmapped.drain(..count));
            outcome?;
            if !record.backed_up.is_empty() {
                let stream = match &mut taken.stream {
                    Some(stream) => stream,
                    none => none.insert(Stream::new(memory.device()?)?),
                };
                // SAFETY: the pages were just mapped, no request can have them before the pool is awake, and they are
                // unmapped only once the stream is done.
                unsafe { copy_back(memory, record, run, stream) }?;
            }
        }
    }
    taken.stream.as_ref().map_or(Ok(()), Stream::synchronize)
}

/// Returns the whole pages inside each large block of a sleeping pool, in order.
fn large_blocks(pool: &Pool, thread: ThisThread) -> Vec<LargeBlock> {
    let mut large = Vec::new();
    for cache in DeviceCaches::caches_of(pool) {
        let (least, block): (u32, fn(Run) -> LargeBlock) =
            if cache.is_of_ranges() { (1, LargeBlock::of_one_extent) } else { (LARGE_PAGES, LargeBlock::new) };
        large.extend(cache.lock(thread).large_blocks(&pool.memory.pages, least).into_iter().map(block));
    }
    large.sort_unstable();
    large
}

/// Gives back what was taken. Returns whether the copies to it are done; if not, it goes once they are.
fn give_up(pool: &Pool, taken: NewExtents) -> bool {
    let memory = pool.memory;
    let NewExtents { mapped, unmapped, stream } = taken;
    // Waiting would spoil a capture under way.
    let wait = |stream: &Stream| {
        let _relaxed = RelaxedCapture::new(runtime::get()?)?;
        stream.synchronize()
    };
    let is_done = stream.as_ref().is_none_or(|stream| wait(stream).is_ok());
    // Only this stream: a capture forbids waiting for the whole device.
    let until = stream.filter(|_| !is_done).map_or(Until::at_once(), |stream| Until::Unrecorded(vec![stream]));
    let ending = EndingExtents::new(ExtentEnd::Asleep, mapped, unmapped);
    // SAFETY: no cache hands out anything of these pages, and `until` is all work that uses them.
    unsafe { memory.retire(Remains::Extents(ending), until, &pool.supply) };
    memory.try_end_retired();
    is_done
}

/// Returns the most pages of an extent outside of large blocks, for a pool that takes so many bytes.
fn other_pages(bytes: u64) -> u32 {
    (bytes / PAGE / EXTENT_PARTS).clamp(WAKE_PAGES_LEAST, LARGE_EXTENT_PAGES) as u32
}

/// A block that gets extents of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct LargeBlock {
    /// Its whole pages.
    run: Run,
    /// The most pages of one of its extents.
    most: u32,
}

impl LargeBlock {
    const fn new(run: Run) -> Self {
        Self { run, most: OF_BLOCK_PAGES }
    }

    /// A page of a range.
    const fn of_one_extent(run: Run) -> Self {
        Self { run, most: run.pages }
    }
}

/// Returns the extents of a run of pages, in groups: outside of the blocks in `large`, which are given in order, each has
/// at most `other` pages.
fn groups(run: Run, large: &[LargeBlock], other: u32) -> Vec<Vec<Run>> {
    let mut groups: Vec<Vec<Run>> = Vec::new();
    let mut next = large.partition_point(|block| block.run.next() <= run.first);
    let mut first = run.first;
    while first < run.next() {
        let block = large.get(next).filter(|block| block.run.first < run.next());
        let (end, most) = match block {
            Some(block) if first >= block.run.first => (block.run.next(), block.most),
            Some(block) => (block.run.first, other),
            None => (run.next(), other),
        };
        let pages = (end.min(run.next()) - first).min(most);
        let has_room = |group: &&mut Vec<Run>| first + pages - group[0].first <= GROUP_PAGES;
        match groups.last_mut().filter(has_room) {
            Some(group) => group.push(Run { first, pages }),
            None => groups.push(vec![Run { first, pages }]),
        }
        first += pages;
        if block.is_some_and(|block| first >= block.run.next()) {
            next += 1;
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn run(first: u32, end: u32) -> Run {
        Run { first, pages: end - first }
    }

    /// Returns the first page of each extent, and its pages.
    fn extents(run: Run, large: &[Run]) -> Vec<Vec<(u32, u32)>> {
        let places = |group: Vec<Run>| group.into_iter().map(|run| (run.first, run.pages)).collect();
        let large: Vec<_> = large.iter().copied().map(LargeBlock::new).collect();
        groups(run, &large, 16).into_iter().map(places).collect()
    }

    #[test]
    fn a_large_block_has_extents_of_its_own_and_what_is_beside_it_ordinary_ones() {
        assert_eq!(extents(run(5, 42), &[]), [[(5, 16), (21, 16), (37, 5)]]);
        let large = [run(0, 4), run(10, 50), run(50, 90)];
        assert_eq!(extents(run(5, 95), &large), [[(5, 5), (10, 40), (50, 40), (90, 5)]]);
        let one = extents(run(0, 1100), &[run(0, 1100)]);
        assert_eq!(one, [vec![(0, 256), (256, 256)], vec![(512, 256), (768, 256)], vec![(1024, 76)]]);
        // Only a part of the block is there.
        assert_eq!(extents(run(20, 60), &[run(10, 90)]), [[(20, 40)]]);
    }

    #[test]
    fn a_page_of_a_range_has_one_extent() {
        let pages = [LargeBlock::of_one_extent(run(0, 600)), LargeBlock::of_one_extent(run(600, 1200))];
        assert_eq!(groups(run(0, 1200), &pages, 16), [[run(0, 600)], [run(600, 1200)]]);
    }

    #[test]
    fn a_large_pool_has_larger_extents() {
        assert_eq!([1, 10, 20, 64, 400].map(|gib| other_pages(gib << 30)), [16, 17, 34, 109, 128]);
    }
}
