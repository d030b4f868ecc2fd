//! Pools that sleep: their device memory goes back to the driver while their addresses stay, and returns when they
//! wake, so that programs take turns on a device. Live memory is copied to pinned memory, or discarded. A sleeping heap
//! hands out nothing, as if it were closed, and its blocks can be freed: so requests and frees need no further check.
//! Memory goes part by part as it is copied, and only once the backup is whole; whatever the driver refuses, the pool
//! is afterwards either awake with all that it had, or asleep with all of its backup.

mod asleep;
mod awake;
mod backup;
mod device;
mod extents;
mod parts;
mod pieces;
mod refusal;

pub(crate) use asleep::sleep as sleep_pool;
pub(in crate::memory) use asleep::sleep_for_others;
pub(crate) use awake::wake as wake_pool;
pub use backup::Backup;
pub(crate) use device::sleep as sleep_pools;
pub use device::wake;
