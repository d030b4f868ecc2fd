//! Blocks, for C: those that callers allocate and free, of devices and of pinned memory of the host, and what is known of an
//! address. Pinned blocks are freed and recorded on streams by the calls for any block.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::header::{SizedStruct, c_struct, write};
use super::pools::{PoolHandle, pool_of};
use super::recording::{block_of, segment_of};
use crate::error::Result;
use crate::memory::plug::call::{address_of, answer_or_none, count, device_of, run, status_of, stream_on};
use crate::memory::plug::{allocate_to_feed, default_pool, free_behind, free_in_order, free_to_feed};
use crate::memory::pool::PoolId;
use crate::memory::report::DeviceStats;
use crate::memory::{device, pinned, report, route, serve};
use crate::observe::recording::{Purpose, hold_stack};
use crate::runtime;
use crate::runtime::Stream;

#[inline]
pub(super) unsafe extern "C" fn allocate(
    bytes: u64,
    device: c_int,
    stream: *mut c_void,
    place: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller names a stream of the device, which is alive.
    let allocate = || route::allocate(bytes, &unsafe { stream_on(device, stream) }?);
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "pointer", ptr::null_mut(), || address_of(bytes, allocate)) }
}

pub(super) unsafe extern "C" fn allocate_at(
    address: *mut c_void,
    bytes: u64,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller names a stream of the device, which is alive.
    run(|| serve::allocate_at(address.addr() as u64, bytes, &unsafe { stream_on(device, stream) }?).map(drop))
}

pub(super) unsafe extern "C" fn deallocate(pointer: *mut c_void) -> c_int {
    status_of(|| free_in_order(pointer))
}

pub(super) unsafe extern "C" fn deallocate_on(pointer: *mut c_void, device: c_int, stream: *mut c_void) -> c_int {
    // SAFETY: the caller names a stream of the device, which is alive.
    status_of(|| free_behind(pointer, || unsafe { stream_on(device, stream) }))
}

pub(super) unsafe extern "C" fn feed_allocate(
    pool: *const PoolHandle,
    device: c_int,
    bytes: u64,
    place: *mut *mut c_void,
) -> c_int {
    let allocate = || {
        let device = device_of(device)?;
        let pool = if pool.is_null() { default_pool(device)? } else { pool_of(pool)? };
        address_of(bytes, || allocate_to_feed(&pool, bytes, &Stream::legacy(device)?))
    };
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "pointer", ptr::null_mut(), allocate) }
}

pub(super) unsafe extern "C" fn feed_deallocate(pointer: *mut c_void) -> c_int {
    status_of(|| free_to_feed(pointer))
}

pub(super) unsafe extern "C" fn record_stream(pointer: *mut c_void, device: c_int, stream: *mut c_void) -> c_int {
    status_of(|| {
        // SAFETY: the caller names a stream of the device, which is alive.
        let stream = unsafe { stream_on(device, stream) }?;
        serve::record_stream(serve::find(pointer.addr() as u64, None)?, &stream)
    })
}

c_struct! {
    /// `gpupool_block`: a block, and the contiguous memory that it is part of.
    pub struct Block as "gpupool_block" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// The start address.
        pub address: *mut c_void,
        /// The size in bytes, with rounding.
        pub bytes: u64,
        /// The requested size in bytes; 0 if it is free.
        pub requested: u64,
        /// Whether it is live.
        pub is_live: c_int,
        /// Whether it was freed and waits for streams.
        pub is_waiting: c_int,
        /// Its device.
        pub device: c_int,
        /// The stream that it was allocated on.
        pub stream: *mut c_void,
        /// Its pool.
        pub pool: PoolId,
        /// The start address of the contiguous memory.
        pub segment: *mut c_void,
        /// The size of the contiguous memory, in bytes.
        pub segment_bytes: u64,
        /// The stack that allocated it, if recorded; otherwise 0.
        pub stack: u32,
    }
}

// SAFETY: numbers and pointers alone, the size first.
unsafe impl SizedStruct for Block {}

pub(super) unsafe extern "C" fn owns(pointer: *const c_void) -> c_int {
    c_int::from(serve::owns(pointer.addr() as u64))
}

pub(super) unsafe extern "C" fn find_block(address: *const c_void, block: *mut Block) -> c_int {
    run(|| {
        let (segment, found) = report::live_block(address.addr() as u64)?;
        // SAFETY: the caller passes a block of its version, whose size it has set, or null.
        unsafe { write(block, block_of(&segment_of(&segment), &found)) }
    })
}

c_struct! {
    /// `gpupool_durations`: how long calls of one kind took, in microseconds.
    #[derive(Default, PartialEq, Eq)]
    pub struct Durations as "gpupool_durations" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// The sum.
        pub total: i64,
        /// The longest since the peaks were reset; 0 for none.
        pub max: i64,
        /// The shortest since then; 0 for none.
        pub min: i64,
        /// The number of calls.
        pub count: i64,
    }
}

// SAFETY: numbers alone, the size first.
unsafe impl SizedStruct for Durations {}

impl From<device::CallTimes> for Durations {
    fn from(durations: device::CallTimes) -> Self {
        let device::CallTimes { total, most, least, count } = durations;
        let [total, max, min, count] = [total, most, least, count].map(u64::cast_signed);
        Self { size: size_of::<Self>() as u64, total, max, min, count }
    }
}

/// Returns the number of the NUMA node that a caller names; none for -1. Whether it exists is checked where it is used.
fn number_of_node(numa: c_int) -> Result<Option<u32>> {
    (numa != -1).then(|| u32::try_from(numa).map_err(|_| runtime::no_host_node(numa))).transpose()
}

pub(super) unsafe extern "C" fn allocate_pinned(bytes: u64, numa: c_int, place: *mut *mut c_void) -> c_int {
    let allocate = || route::allocate(bytes, &pinned::node_of((numa != -1).then_some(numa.into()), None)?);
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "pointer", ptr::null_mut(), || address_of(bytes, allocate)) }
}

pub(super) unsafe extern "C" fn warm_pinned(bytes: u64, numa: c_int, background: c_int) -> c_int {
    let warm = if background == 0 { pinned::warm_pinned } else { pinned::warm_pinned_in_background };
    run(|| warm(bytes, number_of_node(numa)?))
}

pub(super) unsafe extern "C" fn empty_pinned_cache(bytes: *mut u64) -> c_int {
    let release = || {
        let _stack = hold_stack(Purpose::Free);
        pinned::empty_pinned_cache()
    };
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, release) }
}

pub(super) unsafe extern "C" fn set_pinned_limit(bytes: u64) -> c_int {
    run(|| pinned::set_pinned_limit((bytes != u64::MAX).then_some(bytes)))
}

pub(super) unsafe extern "C" fn pinned_stats(numa: c_int, stats: *mut DeviceStats) -> c_int {
    // SAFETY: the caller passes statistics of its version, whose size it has set, or null.
    run(|| unsafe { write(stats, pinned::pinned_device_stats(number_of_node(numa)?)?) })
}

pub(super) unsafe extern "C" fn reset_peak_pinned_stats(numa: c_int) -> c_int {
    run(|| pinned::reset_peak_pinned_stats(number_of_node(numa)?))
}

pub(super) unsafe extern "C" fn pinned_times(made: *mut Durations, given_back: *mut Durations) -> c_int {
    run(|| {
        for (place, durations) in [made, given_back].into_iter().zip(pinned::pinned_times()?) {
            if !place.is_null() {
                // SAFETY: the caller passes durations of its version, whose size it has set, or null.
                unsafe { write(place, durations.into()) }?;
            }
        }
        Ok(())
    })
}
