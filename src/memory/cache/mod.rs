//! The caches that a pool has for its streams, and how threads share them.
//!
//! ```text
//! thread --> what it knows --> name --.                pool --> its caches --> ServingCache (pool, stream, role; a name)
//!                                     v                                             |
//!                                StreamCache <--------------------------------------'
//!                                     |
//!                                     '--> Heap --> spans --> blocks, slabs
//!
//! address --> page --> number --> StreamCache          without a name
//! ```
//!
//! **Ownership.** A [`DeviceCaches`] has a device's memory, its pools, and a table of caches, for the life of the
//! process. A [`StreamCache`] serves one pool, stream and [`Role`](super::pool::Role), which are its [`Service`], from
//! its birth to its end. Pinned memory and a pool's lender of slabs have no stream. A cache's [`Heap`] has the pages
//! with the cache's number and the slabs that the cache borrows from a lender. The heap cuts them into blocks: a small
//! block is a slot of a slab; a larger one is cut to size, or left whole if the pool must not split memory. A live
//! block belongs to its caller, by its address alone. A free block belongs to the heap, which gives it to whichever
//! thread asks next. Physical memory comes in extents, mostly of a few pages, which the device maps where a heap needs
//! them. Except for a reserve's extents, an extent leaves a heap only when all of it is free. A thread owns no memory;
//! it only knows caches (`known`).
//!
//! **Birth and end.** A cache ends, under its heap's lock, when it has no memory and its pool or its stream is gone, or
//! may be. Then its heap gets no more memory, its pool no longer lists it, and the last [`ServingCache`] drops the pool
//! and the stream. The cache is born again, for any pool, only once nothing *names* it. A cache is named by its pool's
//! list, by the list that a walk through the caches follows, by a request on its way, and by each thread that knows it.
//! So a name leads a thread to the cache that it found, or to an ended one, which gives and takes nothing: a request
//! that finds an ended cache starts anew. The thread that ends a cache forgets it at once. Other threads forget it when
//! they look for caches that they do not know, and when they end. Only calls that go by an address, above all frees,
//! have no name: they check, under the heap's lock, whose page it is (`has_block_at`). Caches are asked for free memory
//! in the order of their births, whatever their numbers.
//!
//! *An example.* Thread A asks pool P for 3 MiB on stream S. A knows no such cache, and P's list has none. So one is
//! born, with number 7, and P and A name it. Its heap is empty, so the request is a miss. The request names the cache
//! too, on its way through the steps, and adds two pages of 2 MiB, which get the number 7. Thread B frees the block: it
//! goes from the address to the page and to number 7, locks that heap, sees that the page is still 7's and that the
//! block is live, and joins the block with what is free beside it. Then S is dropped. Thread C needs a new cache and
//! finds that only cache 7 still has S. C takes the pages out, ends the cache and takes it off P's list, which destroys
//! S. A still knows the cache, so C's new cache has another number. A's next request on S would find an ended cache,
//! and look for another. Since A does not know that one, it forgets number 7, which is born again when a cache is
//! needed.
//!
//! **A request** is led to a cache by the thread's scopes and captures (`route`), most often to the one that served the
//! thread last. There it locks the heap and takes a free block. It makes no driver call, unless a stream of other code
//! must be identified. If another thread has the mutex, the request is left for that thread (`Requests`), which may
//! serve it too if it has the mutex for a request or a free. Otherwise the asking thread serves it, once it has the
//! lock. If nothing fits, the request goes through the steps of `serve/acquire.rs`, which find free memory elsewhere
//! (`serve/take.rs`), add some (`serve/pages.rs`), give some back, or wait.
//!
//! **A free** (`serve/free.rs`) goes from the address to its page, and from there to the cache and the block
//! (`device/pages.rs`). The freeing thread frees the block under the heap's lock, or the thread that has the lock does,
//! as for a request (`stream_cache/blocks.rs`). It checks that the block is live. A thread that does not own the heap
//! also checks that the page is still that cache's. So of two threads that free one block, the second gets an error,
//! unless the block was handed out again meanwhile. A block that other streams use waits for them (`serve/trim.rs`).
//!
//! **The last page.** If two threads ask for the last free page, the first to lock the heap gets it, and the other goes
//! on with the steps. Memory that a thread has taken out of one place and not yet put into another is under way
//! (`device/under_way.rs`). A search waits for such memory. If there was any, or blocks were taken or freed meanwhile,
//! the search starts again, a few times; requests repeat it one after another. Only then come the program's callbacks
//! and the error. While new pages are created, other threads can take the free pages beside them; then a second try
//! moves or creates all that the request needs.
//!
//! **A graph's memory** is in caches of its own, one for each stream of a capture, with the role of graphs, or of a
//! feed that is captured. Graphs of one pool and stream share a cache. They use its blocks whenever they run, so its
//! free blocks serve only captures of that pool and stream (or `allocate_at`, for a caller that names them) while the
//! pool has a graph's use: a capture, the `GraphMemory` that a capture left, or a graph pool's id. After the last such
//! use, its free pages are taken like others, once all work on the device is done (`serve/take.rs`). A feed's blocks
//! belong to another allocator. A lender lends slabs to caches without pages. Pinned blocks that graphs use are noted
//! one by one (`graph_use`).
//!
//! **Stream order.** Work of a cache's stream may still use a free block, but later work of that stream comes after it.
//! So nothing is recorded or checked, unless the stream may end at any time (`last_work`). Memory that leaves a cache
//! for another stream, another address or the driver waits for the work so far. That is `Until`, recorded after the
//! memory was taken out, or before, if nothing has changed there since. Other streams that used a block are noted
//! (`uses`), and a freed block waits for them (`waiting`).
//!
//! **Locks**, from the outer to the inner: the lock for reading all heaps (`Frozen` in `report/snapshot.rs`); a heap;
//! what its cache keeps beside it (what it serves, uses, waiting blocks, recorded blocks), a device's free addresses
//! and slab numbers; a device's list of pools; a pool's ledger; the list of caches that nothing names. No driver call,
//! callback or Python runs under any of them. So no [`ServingCache`] is dropped under one, since it may be the last
//! that holds a stream.
//!
//! **Orderings.** The heap's lock is cheap for its owner, the thread that came first (`OwnerLock`). The owner stores
//! that it is inside, and loads whether another thread has come. The other thread stores that it has come, makes every
//! core pass a barrier, and loads whether the owner is inside. One of them sees the other. Everything else that a
//! thread acts on without the lock is a pair of release and acquire: a request to the thread with the lock, and its
//! answer; the number of a page's cache, stored once the cache has the page and loaded by the thread that frees there.
//! The rest is checked again under the lock.

mod block_user;
mod device_caches;
mod event;
mod heap;
mod known;
mod recorded_blocks;
mod service;
mod stream_cache;

pub(in crate::memory) use block_user::{BlockUser, Sharing, Waiting};
pub(in crate::memory) use device_caches::{DeviceCaches, Discardable, MOST_DEVICES, ToDiscard};
pub(in crate::memory) use event::{
    EventCallback, To, each_event, events, is_recorded, note_oom, note_snapshot, observe,
};
pub use event::{MemoryAction, MemoryEvent};
pub(in crate::memory) use heap::{
    ALL, Amount, Amounts, BLOCK_BYTES_MAX, Company, Counts, Heap, HeapBlock, HeapSearch, LivePiece, Misfit, Moved,
    MovedPages, Portion, Restoration,
};
pub(crate) use known::GivenKey;
pub(in crate::memory) use known::{
    CacheKey, Found, add, forget_last, forget_some, known, last, last_given, remember, remember_given,
};
pub(in crate::memory) use recorded_blocks::{Freed, RecordedGuard};
pub(crate) use service::Order;
pub(in crate::memory) use service::{Role, Service};
pub(in crate::memory) use stream_cache::{NotAdded, ServingCache, StreamCache, WorkMark};
