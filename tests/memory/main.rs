//! Device memory: blocks, pools, streams and threads, what a full device does, and what is reported of all of them.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod bookkeeping;
mod broken_extents;
mod copies;
mod ended_caches;
mod faults;
mod few;
mod foreign_captures;
mod lent_bytes;
mod many_streams;
mod moves;
mod neighbours;
mod old_drivers;
mod out_of_memory;
mod peaks;
mod peers;
mod pinned;
mod pools;
mod ranges;
mod recording;
mod refused_calls;
mod registration;
mod reserve;
mod settings;
mod several_streams;
mod shared_pages;
mod slabs;
mod sleep;
mod sleep_helpers;
mod sleep_meets;
mod sleep_submissions;
mod sleep_threads;
mod stream_addresses;
mod stream_lives;
mod streams;
mod summary;
mod threads;
mod under_way;
mod whole_search;
mod whose_block;
