//! The counts of a pool of handles, for C.

use std::ffi::c_int;

use super::super::sized::{self, SizedStruct};
use super::{one_or_all, pool_of};
use crate::handle::HandleStats;
use crate::memory::plug::call::run;

/// `gpupool_handle_stats`: [`HandleStats`], with the time in microseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "they are those of HandleStats")]
pub struct HandleCounts {
    /// The size of this struct, in bytes.
    pub size: u64,
    pub created: u64,
    pub destroyed: u64,
    pub retired: u64,
    pub idle: u64,
    pub held: u64,
    pub leased: u64,
    pub peak_in_use: u64,
    pub hits: u64,
    pub misses: u64,
    pub hand_overs: u64,
    pub waits: u64,
    pub failures: u64,
    pub create_micros: u64,
    pub device_bytes: u64,
    pub peak_device_bytes: u64,
    pub workspace_bytes: u64,
}

// SAFETY: numbers alone, the size first.
unsafe impl SizedStruct for HandleCounts {
    const NAME: &'static str = "gpupool_handle_stats";
}

impl From<HandleStats> for HandleCounts {
    fn from(stats: HandleStats) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            created: stats.created,
            destroyed: stats.destroyed,
            retired: stats.retired,
            idle: stats.idle,
            held: stats.held,
            leased: stats.leased,
            peak_in_use: stats.peak_in_use,
            hits: stats.hits,
            misses: stats.misses,
            hand_overs: stats.hand_overs,
            waits: stats.waits,
            failures: stats.failures,
            create_micros: u64::try_from(stats.create_time.as_micros()).unwrap_or(u64::MAX),
            device_bytes: stats.device_bytes,
            peak_device_bytes: stats.peak_device_bytes,
            workspace_bytes: stats.workspace_bytes,
        }
    }
}

/// Says what a pool's handles are and what they have done, on one device or summed over all for -1.
pub(in super::super) unsafe extern "C" fn handle_stats(
    library: c_int,
    device: c_int,
    stats: *mut HandleCounts,
) -> c_int {
    run(|| {
        let counts = pool_of(library)?.stats(one_or_all(device)?)?;
        // SAFETY: the caller passes counts of its version, whose size it has set, or null.
        unsafe { sized::write(stats, counts.into()) }
    })
}

/// Starts the peaks of a pool's counts anew, on one device or on all for -1.
pub(in super::super) unsafe extern "C" fn reset_peak_handle_stats(library: c_int, device: c_int) -> c_int {
    run(|| pool_of(library)?.reset_peak_stats(one_or_all(device)?))
}
