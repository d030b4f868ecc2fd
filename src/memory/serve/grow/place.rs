//! Where new pages stand, and how many: beside what is free, in a hole rather than in new space, a little ahead of
//! need; and how large the extents are that they come in.

use super::effort::Effort;
use crate::memory::cache::{DeviceCaches, Heap, ThreadCache};
use crate::memory::device::{DeviceMemory, PAGE};
use crate::memory::pool::Pool;
use crate::sync::lock;

/// A least and a most number of pages.
pub(super) struct PageBounds {
    pub(super) least: u32,
    pub(super) most: u32,
}

/// The fewest and the most pages of an extent: 12 to 48 MiB. To create and map one takes an H200 38 us, to move one 44, of 2
/// MiB as of 64. With these, the parts below and [`AHEAD_PART`], first passes over recorded logs of programs that have 5 to 23
/// GB create and move 18 to 66 % fewer than with 8 to 32 MiB; their peaks are at most 1.01 times what is live, but for one of
/// 1.023.
const EXTENT_PAGES: PageBounds = PageBounds { least: 6, most: 24 };
/// Extents are what is moved and given back. Small ones waste less, large ones need fewer driver calls: so their size is this
/// part of what the pool has, or a part of the request, between [`EXTENT_PAGES`].
const EXTENT_PART: u64 = 250;
const EXTENT_PART_OF_REQUEST: u64 = 4;
/// The same where threads get in each other's way: larger for what the pool has, since the driver serves one at a time. Four
/// threads that solved sparse systems, each on a new stream, so have 636 to 690 MiB for 584 in simulation, and 780 to 842 with
/// 32 MiB from the start.
pub(super) const EXTENT_PAGES_AMONG_RIVALS: PageBounds = PageBounds { least: 4, most: 16 };
const EXTENT_PART_AMONG_RIVALS: u64 = 64;
/// The same of the host's memory, of which a GiB takes as long in extents of any size: the fewest leave the least unused, of
/// what a loader of text asks for 2.7 % where 4 pages leave 9.8.
const HOST_EXTENT_PAGES: PageBounds = PageBounds { least: 1, most: 16 };
/// In a pool that has less, no extent is larger than the request, so that free blocks of a page or two can be moved.
const SMALL_POOL: u64 = 64 << 20;
/// At least this part of what the pool has is created at a time, up to one extent; chosen with [`EXTENT_PAGES`], on the
/// same traces.
const AHEAD_PART: u64 = 512;
/// But no fewer pages of a device than this.
const AHEAD_LEAST: u64 = 2;
/// But no more than this part of what the cache has, which leaves all of the traces as they are.
const AHEAD_OWN_PART: u64 = 4;
/// More pages than this are not created ahead: 128 MiB, chosen with [`AHEAD_PART`].
const AHEAD_MOST: u64 = 64;
/// How many of a pool's caches are asked for their threads: four are looked for, and a pool can have thousands of caches.
const CACHES_ASKED: u32 = 64;

/// Where new pages will stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) first: u32,
    /// Pages needed, and those taken so that an extent may be larger than what is left to fill.
    pub(super) pages: u32,
    pub(super) taken: u32,
}

impl Place {
    pub(super) const fn start(self) -> u64 {
        self.first as u64 * PAGE
    }
}

/// Chooses where pages for the request will stand: where the fewest are needed since free memory stands beside, in a
/// hole rather than in new space.
pub(super) fn find_place(
    memory: &DeviceMemory,
    heap: &Heap,
    pool: &Pool,
    bytes: u64,
    effort: Effort,
    rivals: u64,
) -> Option<Place> {
    let needed = heap.needed_for(bytes);
    let tails = heap.tails();
    // One page at least: the search may have passed over what is free there.
    let whole = u32::try_from(needed.div_ceil(PAGE)).ok()?.max(1);
    let mut space = lock(&memory.space);
    let hole = space.hole(whole).map(|(first, room)| (whole, room, first));
    let ends = tails.iter().filter(|(end, _)| *end < memory.range.bytes()).filter_map(|&(end, free)| {
        let pages = u32::try_from(needed.saturating_sub(free).div_ceil(PAGE)).ok()?.max(1);
        let first = (end / PAGE) as u32;
        let room = space.free_at(first);
        (pages <= room).then_some((pages, room, first))
    });
    let (pages, room, first) = match ends.chain(hole).min() {
        Some(best) => best,
        None => {
            let first = space.far(whole)?;
            (whole, space.free_at(first), first)
        }
    };
    // A segment for one block alone is as large as that.
    let is_ahead = effort == Effort::Ready && !pool.no_split();
    let pages = if is_ahead { pages.max(ahead(memory, pool, heap, rivals)).min(room) } else { pages };
    let taken = (pages + EXTENT_PAGES.most).min(room);
    space.take(first, taken).then_some(Place { first, pages, taken })
}

/// Returns the most pages of an extent that is created for a request of so many bytes.
pub(super) fn extent_pages(memory: &DeviceMemory, pool: &Pool, bytes: u64, rivals: u64) -> u32 {
    let reserved = pool.budget().reserved();
    let (part, bounds) = if rivals > 0 {
        (reserved / EXTENT_PART_AMONG_RIVALS, EXTENT_PAGES_AMONG_RIVALS)
    } else if memory.is_of_host() {
        (reserved / EXTENT_PART, HOST_EXTENT_PAGES)
    } else {
        ((reserved / EXTENT_PART).max(bytes / EXTENT_PART_OF_REQUEST), EXTENT_PAGES)
    };
    let pages = (part / PAGE).clamp(bounds.least.into(), bounds.most.into());
    let of_request = if reserved < SMALL_POOL { bytes.div_ceil(PAGE).max(1) } else { pages };
    pages.min(of_request) as u32
}

/// Returns how much threads that work in the pool get in each other's way, 0 for one thread to 8 for four or more. Those
/// that take turns with others do not. The driver serves one at a time, so with each thread moving pages costs all of them
/// more. With the square, and the parts below, a step of the random mix takes 16 threads 1.7 times as long as one:
/// `benches/results/h200-memory/memory.json`.
pub(super) fn rivals(pool: &Pool) -> u64 {
    let caches = DeviceCaches::sample_of(pool, CACHES_ASKED);
    let mut owners: Vec<_> = caches.iter().filter_map(|cache| cache.owner()).collect();
    owners.sort_unstable();
    owners.dedup();
    for at_rest in caches.into_iter().filter(|cache| cache.is_at_rest()).filter_map(ThreadCache::owner) {
        owners.retain(|owner| *owner != at_rest);
    }
    (owners.len() as u64).saturating_sub(1).pow(2).min(8)
}

/// Returns the bytes to take from a heap, and how many more may be, such that it keeps what its thread is likely to
/// need again.
pub(super) fn spare(heap: &Heap, wanted: u64, slack: u64, rivals: u64) -> (u64, u64) {
    let kept = heap.mapped() / 32 * 3 * rivals;
    (wanted.min(heap.unused().saturating_sub(kept)), if kept > 0 { 0 } else { slack })
}

/// Returns the fewest pages to create at a time: a part of what the pool has, and with rivals of what the cache has. Little
/// for a cache that has little: a stream among thousands that holds one block would take a part of what all have.
fn ahead(memory: &DeviceMemory, pool: &Pool, heap: &Heap, rivals: u64) -> u32 {
    let least = if memory.is_of_host() { 1 } else { AHEAD_LEAST };
    let part = (pool.budget().reserved() / PAGE / AHEAD_PART).clamp(least, EXTENT_PAGES.most.into());
    let own = (heap.mapped() / PAGE / AHEAD_OWN_PART).max(1);
    let growing = heap.mapped() / 32 * rivals / PAGE;
    part.min(own).max(growing).min(AHEAD_MOST) as u32
}
