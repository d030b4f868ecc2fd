//! What a pool has for each stream: a heap that all threads cut blocks from.
//!
//! Who owns what: a device's [`DeviceCaches`] has its pools and caches, for as long as the process lives. A [`StreamCache`] is in
//! the service of one pool and one stream at a time. Its [`Heap`] has the pages that bear its number, and what is free in them;
//! a block is its caller's. A thread only knows caches, each with the number of the service in which it found it.
//!
//! Locks, from the outer to the inner: a heap; what its cache keeps beside it (service, inbox, uses, what waits and what is
//! recorded); the pool's ledger. A device's list of pools and caches is locked alone. No driver call and no callback under any.
//!
//! A service begins and ends under the heap's lock. So who has found a cache compares the service's number under that lock, and
//! gives up what it wanted if it is another one. For one thread the lock is two plain accesses (`OwnerLock`); others take
//! a mutex, leave frees in the inbox where they would have to wait, and requests for whoever has it (`Requests`): each is a
//! release that the acquire of the one who takes it pairs with.

mod block_user;
mod device_caches;
mod event;
mod graph_use;
mod heap;
mod known;
mod last_work;
mod recorded_blocks;
mod service;
mod sharing;
mod stream_cache;

pub(in crate::memory) use block_user::{BlockUser, Waiting};
pub(in crate::memory) use device_caches::DeviceCaches;
pub use event::{MemoryAction, MemoryEvent};
pub(in crate::memory) use event::{Tell, events, is_recorded, note_oom, note_snapshot, observe, visit_events};
pub(in crate::memory) use heap::{
    ALL, Amount, Amounts, BLOCK_BYTES_MAX, Counts, Heap, HeapBlock, Misfit, Piece, Restoration, SMALL_BLOCK_BYTES,
};
pub(in crate::memory) use known::{
    CacheKey, Found, GivenKey, add, forget_last, forget_some, known, last, last_given, remember, remember_given,
};
pub(in crate::memory) use last_work::WorkMark;
pub(in crate::memory) use recorded_blocks::RecordedGuard;
pub(in crate::memory) use service::{Service, normalized};
pub(in crate::memory) use sharing::Sharing;
pub(in crate::memory) use stream_cache::StreamCache;
