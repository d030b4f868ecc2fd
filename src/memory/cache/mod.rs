//! A thread's caches: each cuts blocks for one pool and one stream out of the heap that its thread owns.

mod block_user;
mod device_caches;
mod event;
mod graph_use;
mod heap;
mod last_work;
mod page_traffic;
mod recorded_blocks;
mod service;
mod sharing;
mod thread;
mod thread_cache;
mod visits;

pub(in crate::memory) use block_user::{BlockUser, Waiting};
pub(in crate::memory) use device_caches::DeviceCaches;
pub use event::{MemoryAction, MemoryEvent};
pub(in crate::memory) use event::{Tell, events, is_recorded, note_oom, note_snapshot, observe, visit_events};
pub(in crate::memory) use heap::{
    ALL, Amount, Amounts, BLOCK_BYTES_MAX, Counts, Heap, HeapBlock, Invalid, Misfit, Piece, Restoration,
    SMALL_BLOCK_BYTES,
};
pub(in crate::memory) use last_work::WorkMark;
pub(in crate::memory) use recorded_blocks::RecordedGuard;
pub(in crate::memory) use service::{Service, normalized};
pub(in crate::memory) use sharing::Sharing;
pub(in crate::memory) use thread::{
    CacheKey, GivenKey, add, forget, forget_some, known, last, last_given, remember, remember_given,
};
pub(in crate::memory) use thread_cache::ThreadCache;
