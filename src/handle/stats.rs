//! What a pool counts.

use std::ops::AddAssign;
use std::time::Duration;

/// A pool's counts, on one device or summed over all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HandleStats {
    /// Handles created so far.
    pub created: u64,
    /// Handles destroyed so far, by trimming.
    pub destroyed: u64,
    /// Handles that no thread holds.
    pub idle: u64,
    /// Handles that threads hold.
    pub held: u64,
    /// Requests that the thread's own handle served.
    pub hits: u64,
    /// Requests that went to the pool.
    pub misses: u64,
    /// Misses served by a handle that another thread had held, or that was made ahead of need.
    pub hand_overs: u64,
    /// Requests and creations that failed.
    pub failures: u64,
    /// Time spent creating handles, summed over threads.
    pub create_time: Duration,
    /// Device memory that the handles took when they were created, in bytes.
    pub device_bytes: u64,
}

impl AddAssign for HandleStats {
    fn add_assign(&mut self, other: Self) {
        self.created += other.created;
        self.destroyed += other.destroyed;
        self.idle += other.idle;
        self.held += other.held;
        self.hits += other.hits;
        self.misses += other.misses;
        self.hand_overs += other.hand_overs;
        self.failures += other.failures;
        self.create_time += other.create_time;
        self.device_bytes += other.device_bytes;
    }
}
