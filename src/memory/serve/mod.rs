//! What a request does when its cache has no free block: move pages, grow, and make room when memory runs out; and how
//! memory is freed and given back.

mod abandoned;
mod asleep;
mod at_address;
mod devices;
mod extents;
mod free;
mod growth;
mod in_place;
mod make_room;
mod miss;
mod out_of_memory;
mod pages;
mod peers;
mod pools;
mod ranges;
mod request;
mod reserve;
mod segments;
mod settle;
mod slabs;
mod take;
mod trim;
mod users;

pub(in crate::memory) use abandoned::end_abandoned;
pub(in crate::memory) use asleep::{extent_for_waking, pages_asleep};
pub(crate) use at_address::allocate_at;
pub(crate) use devices::device_caches;
pub(in crate::memory) use extents::{make_ready, retire_extents};
pub(in crate::memory) use free::check_stream;
#[cfg(feature = "python")]
pub(in crate::memory) use free::let_streams_end;
pub(in crate::memory) use free::{check_live, free_after_all_work, record_consumer};
pub(crate) use free::{find, free, free_kept, owns, record_stream};
pub(crate) use make_room::make_room_for;
pub(in crate::memory) use make_room::{Vicinity, set_vicinity, wake_if_taken};
pub(in crate::memory) use miss::Miss;
#[cfg(feature = "python")]
pub(crate) use out_of_memory::on_oom_as;
pub use out_of_memory::{OomGuard, on_oom, oom_callbacks};
pub(in crate::memory) use out_of_memory::{no_memory_left, no_room_for_claim, without_callbacks};
pub(crate) use peers::enable_peer;
#[cfg(feature = "python")]
pub(in crate::memory) use pools::pool_anywhere;
pub(in crate::memory) use pools::{Ending, close_pool, end_pool};
pub(crate) use pools::{PoolSettings, make_pool, pool_of_id};
pub(in crate::memory) use ranges::{commit_run, decommit_blocks, free_places, ranges_cache, release_places};
pub(crate) use request::Allocation;
pub use segments::SegmentGuard;
pub(crate) use segments::on_segment;
pub(in crate::memory) use segments::warm_by_segments;
pub(crate) use settle::Patience;
pub(crate) use trim::trim;
pub(in crate::memory) use trim::{release_ready, settle, sum_of_all, trim_pools, trim_some};
pub(crate) use users::users;
