//! Empty slabs, one of which stays for each small size: a large request that fits nowhere else has them joined with what is
//! free beside them, before any memory is added or moved. All sizes together keep some 10 MiB, in as many places.

use crate::memory::serve::request::AllocationRequest;
use crate::memory::tuning::SMALL_MAX;

/// Serves a large request from its cache's free memory after dropping its empty slabs: the offset of the block.
pub(in crate::memory::serve) fn serve_from_empty_slabs(request: &AllocationRequest) -> Option<u64> {
    let AllocationRequest { cache, ref service, thread, bytes, .. } = *request;
    if bytes <= SMALL_MAX || cache.is_lender() || !service.pool.source().is_pages() {
        return None;
    }
    let mut heap = cache.lock_in(service, thread)?;
    if !heap.drop_empty_slabs_at_times(&cache.memory.pages) {
        return None;
    }
    cache.allocate_locked(&mut heap, bytes)
}
