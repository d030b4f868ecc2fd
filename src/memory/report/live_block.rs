//! A live block that is found by its address.

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::cache::HeapBlock;
use crate::memory::pool::PoolId;
use crate::memory::serve;
use crate::observe::recording::Stack;
use crate::process;

/// A block that a caller holds, and the memory without a gap that it is cut from.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct LiveBlock {
    pub(in crate::memory) address: u64,
    /// As cut.
    pub(in crate::memory) bytes: u64,
    pub(in crate::memory) requested: u64,
    pub(in crate::memory) device: Device,
    /// The address of the stream that it was allocated on.
    pub(in crate::memory) stream: usize,
    pub(in crate::memory) pool: PoolId,
    /// Where the memory without a gap starts.
    pub(in crate::memory) segment: u64,
    pub(in crate::memory) segment_bytes: u64,
    /// The stack that it was allocated under.
    pub(in crate::memory) stack: Stack,
}

/// Returns the live block that starts at an address.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; `ErrorKind::Forked` in a forked child.
pub(in crate::memory) fn live_block(address: u64) -> Result<LiveBlock> {
    process::refuse_forked()?;
    let block = serve::find(address, None)?;
    serve::check_live(block)?;
    let (cache, offset) = (block.cache, block.offset);
    let heap = cache.visit();
    let found = heap.live_block(&cache.memory.pages, offset).zip(cache.service());
    let Some(((HeapBlock { size, requested, .. }, segment), service)) = found else {
        return Err(Error::invalid_value(format!("the block at {address:#x} is just being freed by another thread")));
    };
    Ok(LiveBlock {
        address,
        bytes: size,
        requested,
        device: cache.memory.device,
        stream: cache.stream_address(),
        pool: service.pool.id,
        segment: cache.memory.address(segment.start),
        segment_bytes: segment.end - segment.start,
        stack: cache.recording.lock().stack(offset),
    })
}

/// Returns where the live block starts that an address lies in, and the bytes that were asked for.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; `ErrorKind::Forked` in a forked child.
pub(in crate::memory) fn block_around(address: u64) -> Result<(u64, u64)> {
    process::refuse_forked()?;
    let block = serve::find(address, None)?;
    let (cache, offset) = (block.cache, block.offset);
    let memory = cache.memory;
    let heap = cache.visit();
    if let Some((found, _)) = heap.live_block(&memory.pages, offset) {
        return Ok((address, found.requested));
    }
    // Any other than a block's start is looked for.
    let blocks = heap.views(&memory.pages).into_iter().flatten();
    let held = blocks.filter(|block| block.is_live && !block.is_waiting);
    let around = held.filter(|block| (block.start..block.start + block.requested).contains(&offset));
    around.map(|block| (memory.address(block.start), block.requested)).next().ok_or_else(|| {
        Error::invalid_value(format!(
            "{address:#x} lies in no block that gpupool has handed out; give a pointer into one"
        ))
    })
}
