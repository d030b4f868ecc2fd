//! The counts of a pool of handles, for C.

use std::ffi::c_int;
use std::time::Duration;

use super::super::header::c_struct;
use super::super::sized::{self, SizedStruct};
use super::pool_of;
use crate::handle::{HandleStats, handle_counters};
use crate::memory::plug::call::{one_or_all, run};

/// A counter as C has it: a number, microseconds if it is a time.
trait Count {
    fn count(self) -> u64;
}

impl Count for u64 {
    fn count(self) -> u64 {
        self
    }
}

impl Count for Duration {
    fn count(self) -> u64 {
        u64::try_from(self.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Makes C's struct of the counters of [`HandleStats`].
macro_rules! handle_counts {
    ([$($counter:ident as $shown:ident,)*]) => {
        c_struct! {
            /// `gpupool_handle_stats`: [`HandleStats`], with times in microseconds.
            #[derive(Default)]
            #[expect(missing_docs, reason = "they are those of HandleStats")]
            pub struct HandleCounts as "gpupool_handle_stats" {
                pub size: u64,
                $(pub $counter: u64,)*
            }
        }

        impl From<HandleStats> for HandleCounts {
            fn from(stats: HandleStats) -> Self {
                Self { size: size_of::<Self>() as u64, $($counter: stats.$counter.count(),)* }
            }
        }
    };
}

handle_counters! { handle_counts! {} }

// SAFETY: numbers alone, the size first.
unsafe impl SizedStruct for HandleCounts {}

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

pub(in super::super) unsafe extern "C" fn reset_peak_handle_stats(library: c_int, device: c_int) -> c_int {
    run(|| pool_of(library)?.reset_peak_stats(one_or_all(device)?))
}
