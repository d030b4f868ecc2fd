//! The tuning constants of the allocator, in one table: what each counts, why it has its size, and the measurement for
//! it (files are those of `benches/results`), if there is one. Numbers with a meaning of their own are no choices, and
//! are in hexadecimal where they belong: bits, codes, sizes of tables, what two processes agree on, and bounds on what
//! others may do. `tests/layout.py` checks both.

use std::time::Duration;

// Blocks.

/// Bytes that every block's address and size are a multiple of, as PyTorch's: libraries rely on 256.
pub(in crate::memory) const ALIGNMENT: u64 = 512;
/// Bytes of the largest small block, which is a slot of a slab; a larger one is cut from pages. A page's table has an
/// entry for each so many bytes, in which no two large blocks start.
pub(in crate::memory) const SMALL_MAX: u64 = 64 << 10;
/// Sizes of small blocks to a doubling, so that a block is at most an eighth larger than requested.
pub(in crate::memory) const SMALL_STEPS: u64 = 8;
/// The most slots of a slab: two words of bits.
pub(in crate::memory) const SLOTS_MAX: usize = 128;
/// Sizes of free blocks to a doubling, as a power of two: those searched together differ by at most 1.6 %.
pub(in crate::memory) const FREE_STEP_BITS: u32 = 6;
/// Bytes from which on a request gets the smallest free place that fits; a smaller one gets the lowest, so that small
/// blocks stay together and free memory between large ones stays large. From 12 to 16 MiB variants of six logs peak
/// alike; with 20 MiB the transformer's at 1.013 of what is live instead of 1.011 (`simulated/variants.txt`).
pub(in crate::memory) const LOWEST_BELOW: u64 = 16 << 20;

// Pages.

/// Bytes of a page, the unit of physical memory and of mapping: CUDA's minimum granularity.
pub(in crate::memory) const PAGE: u64 = 2 << 20;
/// The fewest pages of an extent for a large request, unless the user sets another number; twice as many for less than
/// 64 MiB. An H200 creates and maps one in 38 us, of one page or of 32. With three pages, free memory beside live blocks in an
/// extent, which cannot move, is up to 1.4 % of what is live in variants of the transformer's log; with two for every
/// request of 16 MiB and more, small blocks take a server's work areas apart, and 4 to 5 % of what is live stays free
/// in parts of pages (`simulated/extents.txt`).
pub(in crate::memory) const EXTENT_PAGES: u32 = 2;
/// Pages of an extent, or of extents handled together, when memory comes or goes all at once: 256 MiB, which are copied
/// in 5 ms, and taken or given back in 0.3 (`h200/sleep_extents.txt`). A reserve has half as many.
pub(in crate::memory) const LARGE_EXTENT_PAGES: u64 = 128;
/// The fewest pages of an extent that wakes: 32 MiB. From 64 MiB on a block has extents of its own.
pub(in crate::memory) const WAKE_PAGES_LEAST: u64 = 16;
/// An extent is at most one of so many parts of the request that it is created for, or of all that wakes: no more than a
/// pool may leave unused. So requests of less than 1.8 GiB have the smallest extents, those of 8 GiB some of 26 MiB.
pub(in crate::memory) const EXTENT_PARTS: u64 = 300;
/// The same for a heap whose pool has more in others: a block of 400 MiB has extents of 10 MiB then, half of those of PyTorch's
/// expandable segments (`h200/several_streams.json`). Beside running kernels each takes four times as long as on an idle
/// device; with twice as large ones one simulated program in twenty holds up to 0.5 % more than with those segments.
pub(in crate::memory) const SHARED_EXTENT_PARTS: u64 = 40;
/// Addresses reserved for a device, as a multiple of its memory, since moves leave holes, which are filled later. So
/// much kept every log in one range; addresses cost nothing but page tables.
pub(in crate::memory) const ROOM: u64 = 16;

/// Others' pages are moved to a heap at most for one of so many bytes that it hands out, and beyond that as many as it has;
/// so are its own while it is alone in its pool, before it may have half more. Programs move 1 in 100 to 1,000
/// (`simulated/replays.json`), random sizes of up to 64 MiB 1 in 12, and of up to 1 GiB 1 in 4. With a third of what it has,
/// which six logs do not reach, variants of one of them held 1.09 (`simulated/variants.txt`).
pub(in crate::memory) const MOVED_PARTS: u64 = 32;
/// What is much, as a part. Others' pages are moved, however often, while that spares a pool as much of what its heaps have
/// needed: less where streams all work in each step, which settle without such moves (`h200/several_streams.json`), and on
/// simulated devices half and more where they take turns. Of what a heap beside others hands out, as much of its own may move:
/// random sizes on 16 streams move half of it, and settle once they have half more.
pub(in crate::memory) const SPARED_PARTS: u64 = 8;

// How far a request looks: bounds on its time in programs with thousands of streams.

/// Entries to look at where each costs as much as all the rest: free blocks of one size, caches that may be abandoned,
/// busy streams, searches of all that others have, mappings that one call opens, processes accepted in one go; looks
/// for an answer between two tries for a lock; deadlines in which hundreds of neighbours that all ask each other answer.
/// A pool with more caches than this lends slabs: with fewer, the begun pages of all are 32 MiB together.
pub(in crate::memory) const A_FEW: usize = 16;
/// Caches with free pages to look at together, where each costs a lock; and attempts to grow, each of which but the
/// last failed since another thread took pages.
pub(in crate::memory) const MANY: usize = 256;
/// The most bytes of slabs that a cache borrows: with more it has a page of its own.
pub(in crate::memory) const BORROWED_MAX: u64 = 4 * SMALL_MAX;
/// The fewest blocks that a heap hands out before it drops its empty slabs for a large block again.
pub(in crate::memory) const EMPTY_SLABS_APART: u64 = 8;
/// If the live bytes rise within so many allocations of the last publication, a heap publishes one of so many parts of
/// its memory ahead.
pub(in crate::memory) const PUBLISHED_AHEAD_PARTS: u64 = 64;
/// The most bytes by which one of several heaps may make its device's live peak too high.
pub(in crate::memory) const PUBLISHED_SLACK: u64 = 1 << 20;
/// Looks for an answer before a thread waits for a heap's lock: some microseconds, in which the lock's holder answers.
pub(in crate::memory) const LOOKS: u32 = if cfg!(any(loom, schedules)) { 1 } else { 200 };

// Copies.

/// Pieces of work in parallel: one is filled while the other is in flight. The first request for descriptors asks for
/// as few, since nothing can be mapped before they are here.
pub(in crate::memory) const SIDE_BY_SIDE: usize = 2;
/// Bytes below which a separate copy takes longer than copying so much more; and of a piece of a copy through pinned
/// memory if there is none for a larger one.
pub(in crate::memory) const COPY_LEAST: u64 = 64 << 10;
/// The most bytes of a piece of a copy through pinned memory: a device's full speed, in a processor's cache.
pub(in crate::memory) const STAGED_MOST: u64 = 4 << 20;
/// The most bytes of a piece of a backup: pieces of 256 MiB and more are made fastest (`h100/pinned.txt`), and
/// what nothing needs any more is free while the pool sleeps.
pub(in crate::memory) const BACKUP_MOST: u64 = 1 << 30;

// Other processes.

/// The most extents of idle mappings of others' memory. To unmap and release one takes 43 to 62 us
/// (`h200/extents.txt`: 2,048 in 88 to 127 ms), so an owner that falls asleep has its memory back in two seconds.
pub(in crate::memory) const IDLE_EXTENTS_MOST: usize = 32 << 10;
/// How long another process may take to ask, and to answer; half as long to take an answer, as there are descriptors in it.
pub(in crate::memory) const PATIENCE: Duration = Duration::from_secs(10);
/// How long a pool that falls asleep waits for other processes: what unmapping the most idle mappings takes
/// (`h200/extents.txt`).
pub(in crate::memory) const WAIT_ASLEEP: Duration = Duration::from_secs(2);
/// How long giving memory back, or a request without memory, waits for them. They take milliseconds unless stopped.
pub(in crate::memory) const WAIT: Duration = Duration::from_millis(250);
/// How long asking neighbours for memory takes at most, all of them together, unless the user sets another time. A pool of
/// 8 GiB is copied and given back in that.
pub(in crate::memory) const GIVEN_WITHIN: Duration = Duration::from_millis(200);
/// How long after a neighbour has asked a process above its most gives back unasked: as long as two servers take turns.
pub(in crate::memory) const ASKED_LATELY: Duration = Duration::from_secs(5);
/// The first and the longest pause before asking again for what the system had no room for.
pub(in crate::memory) const RETRY: Duration = Duration::from_millis(1);
pub(in crate::memory) const RETRY_MOST: Duration = Duration::from_millis(10);
