//! How a request is served when its cache has no free block: pages move, the pool grows, and room is made when memory
//! runs out; and how memory is freed and given back.

mod acquire;
mod extents;
mod free;
mod growth;
mod in_place;
mod miss;
mod out_of_memory;
mod pages;
mod pools;
mod ranges;
mod reserve;
mod segments;
mod slabs;
mod take;
mod trim;

pub(crate) use super::device::Patience;
pub(in crate::memory) use acquire::extent_for_waking;
pub(crate) use acquire::make_room_for;
pub(in crate::memory) use extents::{make_ready, retire_extents};
pub(crate) use free::{allocate_at, find, free, free_kept, owns, record_stream};
pub(in crate::memory) use free::{check_live, check_stream, free_after_all_work, record_consumer};
pub(in crate::memory) use miss::Miss;
pub(crate) use out_of_memory::{Help, Helper, all_holders, holders, users};
pub use out_of_memory::{OomGuard, on_oom, oom_callbacks};
pub(in crate::memory) use out_of_memory::{
    held_by_others, no_memory_left, no_room_for_claim, wake_if_taken, without_callbacks,
};
pub(in crate::memory) use pools::close_pool;
pub(crate) use pools::{PoolSettings, PoolUse, device_caches, enable_peer, make_pool, pool_of_id};
pub(in crate::memory) use ranges::{commit_run, decommit_blocks, free_places, ranges_cache, release_places};
pub(crate) use segments::on_segment;
pub(in crate::memory) use segments::warm_by_segments;
pub(crate) use take::Allocation;
pub(crate) use trim::trim;
pub(in crate::memory) use trim::{
    end_abandoned, pages_asleep, release_ready, settle, sum_of_all, trim_pools, trim_some,
};

#[cfg(feature = "python")]
pub(crate) use out_of_memory::on_oom_as;
#[cfg(feature = "python")]
pub(in crate::memory) use {free::let_streams_end, pools::pool_anywhere};
