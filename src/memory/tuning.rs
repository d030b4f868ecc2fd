//! The tuning constants of the allocator, in one table: what each counts, why it is so large, and the measurement that it
//! rests on (files are those of `benches/results`); where none is named, nothing measured speaks for or against it.
//!
//! Numbers that mean something by themselves are no choices, and stand in hexadecimal where they belong: bits, codes, sizes
//! of tables, what two processes agree on, and bounds on what others may do. `tests/layout.py` sees to both.

use std::time::Duration;

// Blocks.

/// Bytes that every block's address and size are a multiple of, as PyTorch's: libraries rely on 256.
pub(in crate::memory) const ALIGNMENT: u64 = 512;
/// Bytes of the largest small block, which is a slot of a slab; a larger one is cut from pages. A page's table of blocks has
/// an entry for each so many bytes, so no two large blocks start within them.
pub(in crate::memory) const SMALL_MAX: u64 = 64 << 10;
/// Sizes of small blocks to a doubling, so that a block is at most an eighth larger than what was asked for.
pub(in crate::memory) const SMALL_STEPS: u64 = 8;
/// Slots that a slab has at most: two words of bits.
pub(in crate::memory) const SLOTS_MAX: usize = 128;
/// Sizes of free blocks to a doubling, as a power of two: those that are searched together differ by at most 1.6 %.
pub(in crate::memory) const FREE_STEP_BITS: u32 = 6;
/// Bytes from which on a request gets the smallest free place that it fits; a smaller one gets the lowest, so that small blocks
/// stand together and what is free between large ones stays large. From 12 to 16 MiB variants of six logs peak alike; with
/// 20 MiB the transformer's at 1.013 of what is live instead of 1.011 (`one-heap/variants.txt`).
pub(in crate::memory) const LOWEST_BELOW: u64 = 16 << 20;

// Pages.

/// Bytes of a page, the unit of physical memory and of mapping: what CUDA calls the minimum granularity.
pub(in crate::memory) const PAGE: u64 = 2 << 20;
/// Pages of an extent for a large request, unless the user sets another number; twice as many for one of less than 64 MiB. To create
/// and map one takes an H200 38 us, of one page as of 32. With three pages, what is free beside live blocks in the same extent, and
/// so stays where it is, is up to 1.4 % of what is live in variants of the transformer's log; with two for every request of 16 MiB
/// and more, small blocks take a server's work areas apart, and 4 to 5 % of what is live stays free in parts of pages
/// (`one-heap/extents.txt`).
pub(in crate::memory) const EXTENT_PAGES: u32 = 2;
/// Pages of an extent, or of extents that are handled together, where memory comes or goes all at once: 256 MiB, which are
/// copied in 5 ms, and taken or given back in 0.3 (`h200-sleep/extents.txt`). A reserve is made of half as many.
pub(in crate::memory) const LARGE_EXTENT_PAGES: u64 = 128;
/// Pages of an extent that wakes at least: 32 MiB. From 64 MiB on a block has extents of its own.
pub(in crate::memory) const WAKE_PAGES_LEAST: u64 = 16;
/// An extent that wakes is at most one of so many parts of all that does: no more than a pool may leave unused.
pub(in crate::memory) const WAKE_PARTS: u64 = 300;
/// Addresses reserved for a device, as a multiple of its memory: what moves leaves holes, which are filled later. So much kept
/// every log in one range (`h200-memory/memory.json`); addresses cost nothing but page tables.
pub(in crate::memory) const ROOM: u64 = 16;

/// Of so many bytes that a heap hands out it moves one at most, and beyond that as many as it has. Programs move 1 in 100 to 1,000
/// (`one-heap/replays.json`), random sizes of up to 64 MiB 1 in 12, and of up to 1 GiB 1 in 4.
pub(in crate::memory) const MOVED_PARTS: u64 = 32;

// How far a request looks. These bound its time in programs with thousands of streams.

/// Entries of a list that are looked at where each costs as much as all the rest: free blocks of one size, caches that may be
/// abandoned, streams at work, searches of all that others have, mappings that one call opens for a device, processes that are
/// accepted in one go; and looks for an answer between two tries for a lock. A pool with more caches than this lends slabs: of
/// fewer, the pages that each has begun are 32 MiB together.
pub(in crate::memory) const A_FEW: usize = 16;
/// Caches with free pages that are looked at at a time, where each costs a lock; and attempts to grow, of which each but the last
/// failed since another thread took pages meanwhile.
pub(in crate::memory) const MANY: usize = 256;
/// Bytes of slabs that a cache borrows at most: with more it has a page of its own.
pub(in crate::memory) const BORROWED_MAX: u64 = 4 * SMALL_MAX;
/// Blocks that a heap hands out at least before it drops its empty slabs for another large block.
pub(in crate::memory) const EMPTY_SLABS_APART: u64 = 8;
/// A rise of what is live within so many allocations of the last that was told is told with one of so many parts of a heap's
/// memory ahead.
pub(in crate::memory) const TOLD_PARTS: u64 = 64;
/// Bytes of a heap's memory that a device's peak counts too much at most, where several heaps tell what is live in turns.
pub(in crate::memory) const TOLD_BYTES: u64 = 1 << 20;
/// Looks for an answer before a thread waits for a heap's lock: some microseconds, in which the thread that has it answers.
pub(in crate::memory) const LOOKS: u32 = if cfg!(any(loom, schedules)) { 1 } else { 200 };

// Copies.

/// Pieces of work beside each other: one is filled while the other is on its way. The first request for descriptors asks for as
/// few, since nothing can be mapped before they are here.
pub(in crate::memory) const SIDE_BY_SIDE: usize = 2;
/// Bytes below which a copy by itself takes longer than to copy so much more; and of a piece of a copy through pinned memory where
/// there is none for a larger one.
pub(in crate::memory) const COPY_LEAST: u64 = 64 << 10;
/// Bytes of a piece of a copy through pinned memory at most: a device's full speed, in the cache of a processor.
pub(in crate::memory) const STAGED_MOST: u64 = 4 << 20;
/// Bytes of a piece of a backup at most: of 256 MiB and more they are made quickest (`h200-pinned/by_hand.txt`), and what
/// nothing needs any more is free again while the pool sleeps.
pub(in crate::memory) const BACKUP_MOST: u64 = 1 << 30;

// Other processes.

/// Extents of all mappings together that a process keeps of others while it needs none. To unmap and release one takes 31 us
/// (`h200-share/share.json`: 1 GiB of 2 MiB extents in 16 ms), so an owner that falls asleep has its memory back in a second.
pub(in crate::memory) const IDLE_EXTENTS_MOST: usize = 32 << 10;
/// How long another process may take for an answer; half as long to say what it wants, as it holds a descriptor meanwhile.
pub(in crate::memory) const PATIENCE: Duration = Duration::from_secs(10);
/// How long a pool that falls asleep waits for them: twice what the most that a process keeps idle takes to unmap
/// (`h200-share/share.json`).
pub(in crate::memory) const WAIT_ASLEEP: Duration = Duration::from_secs(2);
/// How long one who gives memory back, or finds none, waits for them. They take milliseconds unless they are stopped.
pub(in crate::memory) const WAIT: Duration = Duration::from_millis(250);
/// How long a thread waits before it asks again for what the system had no room for, and at most where it asks ever less often.
pub(in crate::memory) const RETRY: Duration = Duration::from_millis(1);
pub(in crate::memory) const RETRY_MOST: Duration = Duration::from_millis(10);
