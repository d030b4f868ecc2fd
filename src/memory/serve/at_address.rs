//! Allocation at an address that the caller names, whose memory was its own, is free, and was not moved or given back:
//! a graph uses its addresses as long as it lives, so a program that freed a tensor of its graph may want it again.

use super::free::find;
use super::request::Allocation;
use crate::error::{Error, Result};
use crate::memory::cache::is_recorded;
use crate::memory::pool;
use crate::observe::delivery::Delivery;
use crate::observe::recording::{self, Purpose};
use crate::process;
use crate::runtime::Stream;
use crate::sync::ThisThread;

/// Allocates bytes at an address from the pool that has the memory there, in the order of the stream.
///
/// # Errors
/// `ErrorKind::InvalidValue` if so many bytes are not free there in one piece, or the memory serves another stream;
/// `ErrorKind::Forked`.
pub(crate) fn allocate_at(address: u64, bytes: u64, stream: &Stream) -> Result<Allocation> {
    process::refuse_forked()?;
    let _delivery = Delivery::at_end();
    let _stack = recording::hold_stack(Purpose::Allocation);
    let block = find(address, Some(stream.device()))?;
    let cache = block.cache;
    let refused = |why: &str| {
        Error::invalid_value(format!(
            "{bytes} bytes at {address:#x} on {} cannot be allocated again: {why}",
            cache.memory.location
        ))
    };
    let service =
        cache.service().filter(|_| !cache.is_lender()).ok_or_else(|| refused("the pool gave the memory up"))?;
    // A graph's memory is its graph's, whatever stream is named.
    let may_use = service.role.is_captured() || service.is_of(stream);
    if !may_use {
        return Err(refused("the memory serves another stream; name that one"));
    }
    if service.pool.sleep.is_asleep() {
        return Err(pool::asleep(&service.pool));
    }
    let allocated = cache.lock_in(&service, ThisThread::get()).and_then(|mut heap| {
        // The page may have left the cache before the lock.
        let is_there = cache.has_block_at(block.offset);
        let offset = is_there.then(|| heap.allocate_at(&cache.memory.pages, block.offset, bytes)).flatten()?;
        if is_recorded() {
            cache.record_alloc(offset, bytes);
        }
        Some(offset)
    });
    allocated.map(|_| block).ok_or_else(|| refused("so many bytes are not free there in one piece"))
}
