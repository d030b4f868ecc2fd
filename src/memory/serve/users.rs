//! The holders of memory, as errors list them.

use std::sync::Arc;

use crate::error::{Bytes, MemoryUse};
use crate::ids::MemoryLocation;
use crate::library::in_use::handles_in_use;
use crate::memory::cache::{ALL, DeviceCaches};
use crate::memory::pool::Pool;
use crate::sync::ThisThread;

/// Returns what each pool has of the memory there, and each library's handles.
pub(crate) fn users(location: MemoryLocation) -> Vec<MemoryUse> {
    let describe = |pool: Arc<Pool>| {
        let counts = DeviceCaches::counts_of(&pool, ThisThread::get());
        let name =
            if pool.is_default() { "default memory pool".to_owned() } else { format!("memory pool {}", pool.label()) };
        let in_ranges = DeviceCaches::ranges_of(&pool).map_or(0, |cache| cache.lock(ThisThread::get()).live());
        let name = if in_ranges > 0 { format!("{name} ({} of it in ranges)", Bytes(in_ranges)) } else { name };
        let live = counts.now[ALL];
        let (bytes, live_bytes) = (pool.budget().reserved(), Some(live.bytes));
        MemoryUse { pool: name, count: live.blocks as usize, bytes, live_bytes }
    };
    let pools = DeviceCaches::known(location).map(|caches| caches.pools.all()).unwrap_or_default();
    let used = pools.into_iter().map(describe).filter(|used| used.bytes > 0);
    used.chain(location.device().into_iter().flat_map(handles_in_use)).collect()
}
