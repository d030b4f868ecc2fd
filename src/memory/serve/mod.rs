//! What a request does when its cache has no free block: from pages that move or grow to what is tried when memory runs
//! out; and the way back.

mod abandoned;
mod devices;
mod free;
mod grow;
mod make_room;
mod miss;
mod out_of_memory;
mod peers;
mod pools;
mod request;
mod settle;
mod take;
mod trim;

pub(in crate::memory) use abandoned::end_abandoned;
pub(in crate::memory) use devices::device_caches;
#[cfg(feature = "python")]
pub(in crate::memory) use free::check_stream;
pub(crate) use free::free;
#[cfg(feature = "python")]
pub(in crate::memory) use free::let_streams_end;
pub(crate) use free::owns;
pub(in crate::memory) use free::{check_live, find, free_after_all_work, record_consumer, record_stream};
pub use grow::SegmentGuard;
pub(in crate::memory) use grow::{extent_for_waking, on_segment, pages_asleep, retire_extents, warm_by_segments};
pub(in crate::memory) use miss::Miss;
pub use out_of_memory::{OomCallback, OomGuard, on_oom};
pub(in crate::memory) use out_of_memory::{no_memory_left, without_callbacks};
pub(in crate::memory) use peers::enable_peer;
#[cfg(feature = "python")]
pub(in crate::memory) use pools::pool_anywhere;
pub(in crate::memory) use pools::{Ending, PoolOptions, close_pool, end_pool, make_pool, pool_of_id};
pub(crate) use request::Allocation;
pub(in crate::memory) use settle::{Patience, settle};
pub(in crate::memory) use trim::{trim, trim_pools};
