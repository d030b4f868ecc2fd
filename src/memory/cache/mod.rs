//! The heart: what a pool has for each stream, and how threads share it.
//!
//! **Who owns what.** A [`DeviceCaches`] has a device's memory, its pools, and a table of caches, as long as the process lives. A
//! [`StreamCache`] serves one pool and one stream at a time: its [`Service`], which has a number. Its [`Heap`] has the pages that
//! bear the cache's number, and cuts them into blocks: a small one is a slot of a slab, a larger one is cut to size. A live block
//! is its caller's, by its address alone; a free one is the heap's, for whichever thread asks next. Physical memory comes in
//! extents of a few pages, which the device maps where a heap needs them; an extent leaves a heap only where all of it is free. A
//! thread owns nothing: it knows caches, each with the number of the service in which it found it (`known`).
//!
//! **A request** is led to a cache by the scopes and captures that its thread is in (`route`), most often to the one that served
//! the thread last. There it locks the heap and takes a free block: no driver call. If none fits, it climbs the ladder of `serve/miss.rs`, each step of which finds free memory elsewhere (`serve/take`) or adds some
//! (`serve/grow`).
//!
//! **A free** goes the same way back: from the address to its page, from the page to the cache and the block, two array loads
//! (`device/pages.rs`). The block is marked as freed there by one compare-and-swap, so that of two threads that free it one
//! succeeds. Who finds the heap's lock taken leaves the block in the cache's inbox, which every lock of the heap empties first. So
//! a block that another thread frees is the heap's again before anybody looks for one.
//!
//! **The last page.** Of two threads that ask for it at once, one locks the heap first and has it. The other finds nothing, and
//! climbs: it may wait for what threads have in their hands (`UnderWay`), and only where nothing moved meanwhile does it say
//! that there is none. Pages that stand free beside new ones can be taken while those are created, once; then the new ones are
//! as many as the request needs.
//!
//! **A graph's memory** is a cache of its own, whose service has the [`Role`](super::pool::Role) of graphs: a graph uses its blocks
//! whenever it runs, so what is free there serves later captures of its pool alone, until no graph of the pool lives
//! (`lock_to_take`). A feed's blocks are another allocator's; a lender has no stream, and lends slabs to caches without pages.
//!
//! **Stream order.** A free block may still be used by work of its cache's stream, which later work of that stream comes after:
//! nothing is recorded or asked. What leaves a cache for another stream, another address or the driver waits for the work so far:
//! `Until`, recorded after the memory was taken out, so that it is all that ever used it. Other streams that used a block are
//! noted (`uses`), and a freed block waits for them (`waiting`).
//!
//! **Locks**, from the outer to the inner: a heap; what its cache keeps beside it (service, inbox, uses, what waits and what is
//! recorded); the pool's ledger; a device's list of pools is locked alone. No driver call, no callback and no Python under any.
//! A service begins and ends under the heap's lock: who has found a cache compares the service's number under that lock
//! (`lock_in`), and gives up what it wanted if it is another one.
//!
//! **Orderings.** The heap's lock is cheap for the thread that came first (`OwnerLock`): it stores that it is inside, and loads
//! whether a visitor has come; a visitor stores that it has come, has every core pass a barrier, and loads whether the owner is
//! inside. One of them sees the other. All else that crosses threads is a release and an acquire in pairs: a block left in the
//! inbox or as a request (`Requests`) and the thread that takes it; a page's number, stored once its cache has the page, and the
//! thread that frees there; a block marked as freed and the heap that collects it.

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
pub(crate) use heap::SMALL_BLOCK_BYTES;
pub(in crate::memory) use heap::{
    ALL, Amount, Amounts, BLOCK_BYTES_MAX, Counts, Heap, HeapBlock, Misfit, Piece, Restoration,
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
