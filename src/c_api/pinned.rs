//! Pinned memory of the host. Its blocks are freed and recorded on streams by the calls for any block.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::header::c_struct;
use super::sized::{SizedStruct, write};
use crate::error::Result;
use crate::memory::plug::call::{address_of, answer_or_none, count, run};
use crate::memory::report::DeviceStats;
use crate::memory::{device, host, route};
use crate::observe::recording::{Purpose, hold_stack};
use crate::runtime;

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
    let allocate = || route::allocate(bytes, &host::node_of((numa != -1).then_some(numa.into()), None)?);
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "pointer", ptr::null_mut(), || address_of(bytes, allocate)) }
}

pub(super) unsafe extern "C" fn warm_pinned(bytes: u64, numa: c_int, background: c_int) -> c_int {
    run(|| host::warm_pinned(bytes, number_of_node(numa)?, background != 0))
}

pub(super) unsafe extern "C" fn empty_pinned_cache(bytes: *mut u64) -> c_int {
    let release = || {
        let _stack = hold_stack(Purpose::Free);
        host::empty_pinned_cache()
    };
    // SAFETY: the caller passes a place for a number, or null.
    unsafe { count(bytes, release) }
}

pub(super) unsafe extern "C" fn set_pinned_limit(bytes: u64) -> c_int {
    run(|| host::set_pinned_limit((bytes != u64::MAX).then_some(bytes)))
}

pub(super) unsafe extern "C" fn pinned_stats(numa: c_int, stats: *mut DeviceStats) -> c_int {
    // SAFETY: the caller passes statistics of its version, whose size it has set, or null.
    run(|| unsafe { write(stats, host::pinned_device_stats(number_of_node(numa)?)?) })
}

pub(super) unsafe extern "C" fn reset_peak_pinned_stats(numa: c_int) -> c_int {
    run(|| host::reset_peak_pinned_stats(number_of_node(numa)?))
}

pub(super) unsafe extern "C" fn pinned_times(made: *mut Durations, given_back: *mut Durations) -> c_int {
    run(|| {
        for (place, durations) in [made, given_back].into_iter().zip(host::pinned_times()?) {
            if !place.is_null() {
                // SAFETY: the caller passes durations of its version, whose size it has set, or null.
                unsafe { write(place, durations.into()) }?;
            }
        }
        Ok(())
    })
}
