//! The heart: what a pool has for each stream, and how threads share it.
//!
//! **Who owns what.** A [`DeviceCaches`] has a device's memory, its pools, and a table of caches, as long as the
//! process lives. A [`StreamCache`] serves one pool, stream and [`Role`](super::pool::Role) at a time, its [`Service`],
//! which has a number; pinned memory and a pool's lender of slabs have no stream. Its [`Heap`] has the pages that bear
//! the cache's number, and slabs that it borrows in a lender's, and cuts them into blocks: a small one is a slot of a
//! slab, a larger one is cut to size (where a pool must not split, a block is all of its memory). A live block is its
//! caller's, by its address alone; a free one is the heap's, for whichever thread asks next. Physical memory comes in
//! extents, most of a few pages, which the device maps where a heap needs them; one leaves a heap only where all of it
//! is free. A thread owns no memory: it knows caches, each with the number of the service in which it found it
//! (`known`).
//!
//! **A request** is led to a cache by the scopes and captures that its thread is in (`route`), most often to the one
//! that served the thread last. There it locks the heap and takes a free block: no driver call, but for a stream of
//! other code, whose identity is asked. Where another thread has the lock, it leaves the request (`Requests`); who has
//! the lock for a request or a free of its own serves that too, else the thread does once it has the lock. If nothing
//! fits, it climbs the ladder of `serve/miss.rs`: its steps find free memory elsewhere (`serve/take`), add some
//! (`serve/grow`), give some back or wait.
//!
//! **A free** (`serve/free.rs`) goes from the address to its page, from the page to the cache and the block
//! (`device/pages.rs`), and is done under the heap's lock, by the thread that frees or by the one that has the lock, as
//! a request is (`stream_cache/frees.rs`). There it is seen whether the block is live; who has kept a block, or frees
//! another's, asks too whether the page is still the cache's. So of two that free one block the second gets an error,
//! unless the block was handed out again meanwhile. From then on the block serves the next request. A block that other streams use
//! waits for them (`serve/settle.rs`).
//!
//! **The last page.** Of two threads that ask for it at once, one locks the heap first and has it. The other finds
//! nothing, and climbs. Memory that a thread has taken out of one place and not yet put into another is under way
//! (`device/under_way.rs`): the search waits for it, and begins again, a few times, where any was or blocks were taken
//! and freed meanwhile. Only then come the program's callbacks and the error. Pages that stand free beside new ones can
//! be taken while those are created; then, the second time, the new ones are as many as the request needs.
//!
//! **A graph's memory** is in caches of its own, one for each stream of a capture, with the role of graphs, or of a feed
//! that is captured. A graph uses its blocks whenever it runs, so what is free there serves this capture and later ones
//! of that pool and stream alone (or `allocate_at`, for a caller that names it), as long as the pool has a use that is a
//! graph's: a capture, the `GraphMemory` that it left, a graph pool's id. After the last of them it is taken as other
//! free memory is, once all work on the device is done (`serve/take/readiness.rs`). A feed's blocks are another
//! allocator's; a lender lends slabs to caches without pages. Pinned blocks that graphs use are noted one by one
//! (`graph_use`).
//!
//! **Stream order.** A free block may still be used by work of its cache's stream, which later work of that stream
//! comes after: nothing is recorded or asked, unless the stream may end at any time (`last_work`). What leaves a cache
//! for another stream, another address or the driver waits for the work so far: `Until`, recorded after the memory was
//! taken out, or before, if nothing has changed there since, so that it is all that ever used it. Other streams that
//! used a block are noted (`uses`), and a freed block waits for them (`waiting`).
//!
//! **Locks**, from the outer to the inner: that of a look at all heaps (`report/frozen.rs`); a heap; what its cache
//! keeps beside it (service, uses, what waits and what is recorded), a device's free addresses and its slabs' numbers; a
//! device's list of pools; a pool's ledger. No driver call, no callback and no Python under any. A heap's service begins
//! and ends under its lock: who has found a cache compares the service's number there (`lock_in`, `is_in`), and who
//! frees the page's (`has_block_at`), and gives up what it wanted if it is another one.
//!
//! **Orderings.** The heap's lock is cheap for the thread that came first (`OwnerLock`): it stores that it is inside,
//! and loads whether a visitor has come; a visitor stores that it has come, has every core pass a barrier, and loads
//! whether that thread is inside. One of them sees the other. What else a thread acts on without the lock is a release
//! and an acquire in pairs: what is asked of the thread that has the lock, and its answer; a page's number, stored once
//! its cache has the page, and the thread that frees there. The rest is asked again under the lock.

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
pub(in crate::memory) use event::{
    EventCallback, To, events, is_recorded, note_oom, note_snapshot, observe, visit_events,
};
pub use event::{MemoryAction, MemoryEvent};
pub(in crate::memory) use heap::{
    ALL, Amount, Amounts, BLOCK_BYTES_MAX, Counts, Heap, HeapBlock, LivePiece, Misfit, Restoration,
};
pub(crate) use known::GivenKey;
pub(in crate::memory) use known::{
    CacheKey, Found, add, forget_last, forget_some, known, last, last_given, remember, remember_given,
};
pub(in crate::memory) use last_work::WorkMark;
pub(in crate::memory) use recorded_blocks::RecordedGuard;
pub(crate) use service::Order;
pub(in crate::memory) use service::Service;
pub(in crate::memory) use sharing::Sharing;
pub(in crate::memory) use stream_cache::StreamCache;
