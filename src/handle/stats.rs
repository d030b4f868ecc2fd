//! The counts of a pool.

use std::iter::Sum;
use std::ops::AddAssign;
use std::time::Duration;

use crate::counters::{self, counters};
use crate::error::{MemoryUse, OneLine};

counters! {
    $
    /// A pool's counts, on one device or summed over all.
    #[non_exhaustive]
    pub struct HandleStats as handle_counters {
        /// Handles created so far.
        pub created: u64,
        /// Handles destroyed so far, by trimming.
        pub destroyed: u64,
        /// Handles that were discarded and wait to be destroyed by trimming.
        pub discarded: u64,
        /// Handles that no thread or lease holds.
        pub idle: u64,
        /// Handles that threads hold in their windows.
        pub held: u64,
        /// Handles that leases hold.
        pub leased: u64,
        /// The peak of handles in use at the same time, by threads or leases. Never too low; too high by handles that
        /// were used one after another while more were idle than needed, as after [`warm`](super::HandlePool::warm) or
        /// [`reset_peak_stats`](super::HandlePool::reset_peak_stats): only the handle itself counts a thread's repeated
        /// lease, so that it touches no data that threads share. For several devices it is the sum.
        pub peak_in_use: u64,
        /// Requests served by the thread's own handle, or for a lease by the one that it released last.
        pub hits: u64,
        /// Requests that went to the pool.
        pub misses: u64,
        /// Misses served by a handle that another thread had held, or that was created in advance.
        pub hand_overs: u64,
        /// Requests that waited for a handle, since there was a limit.
        pub waits: u64,
        /// Requests and creations that failed.
        pub failures: u64,
        /// Time spent creating handles, summed over threads.
        pub create_time: Duration as create_seconds,
        /// Device memory that the handles used when they were created, in bytes.
        pub device_bytes: u64,
        /// The peak of `device_bytes`. For several devices it is the sum.
        pub peak_device_bytes: u64,
        /// Device memory that gpupool gave to the handles, and to graphs captured with them, as workspaces, in bytes,
        /// such as cuBLAS's.
        pub workspace_bytes: u64,
    }
}

impl HandleStats {
    /// Returns what the handles of a library hold of the device's memory.
    pub(super) fn memory_use(&self, library: &str) -> MemoryUse {
        MemoryUse {
            pool: OneLine(library).to_string(),
            count: (self.created - self.destroyed) as usize,
            bytes: self.device_bytes + self.workspace_bytes,
            live_bytes: None,
        }
    }
}

impl AddAssign for HandleStats {
    fn add_assign(&mut self, other: Self) {
        counters::Sum::add(self, &other);
    }
}

impl Sum for HandleStats {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), |mut sum, stats| {
            sum += stats;
            sum
        })
    }
}
