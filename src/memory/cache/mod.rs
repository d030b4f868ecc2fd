//! A thread's caches: each cuts blocks for one pool and one stream out of the heap that it owns.

pub(crate) mod event;
pub(in crate::memory) mod heap;
pub(in crate::memory) mod page_traffic;
pub(in crate::memory) mod thread;
pub(in crate::memory) mod thread_cache;
