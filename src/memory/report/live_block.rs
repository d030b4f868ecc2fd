//! Live blocks, found by address.

use super::snapshot::{BlockView, SegmentView, block_view, segment_view};
use crate::error::{Error, Result};
use crate::memory::serve::{self, Allocation};
use crate::process;

/// Returns the live block that starts at an address, and the gapless memory that it is cut from.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; `ErrorKind::Forked` in a forked child.
pub(crate) fn live_block(address: u64) -> Result<(SegmentView, BlockView)> {
    process::refuse_forked()?;
    let block = serve::find(address, None)?;
    serve::check_live(block)?;
    let cache = block.cache;
    let heap = cache.lock_by_mutex();
    let found = heap.live_block(&cache.memory.pages, block.offset).zip(cache.serving());
    let Some(((block, segment), of)) = found else {
        return Err(Error::invalid_value(format!("the block at {address:#x} was freed meanwhile by another thread")));
    };
    let recorded = cache.recording.lock();
    let segment = segment_view(&of, &heap, segment);
    let mut found = block_view(cache.memory, &recorded, block);
    // It was held when it was looked up, even if another thread has recorded its free since.
    found.is_waiting = false;
    Ok((segment, found))
}

/// Returns the start and the requested bytes of the live block that contains an address.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; `ErrorKind::Forked` in a forked child.
pub(in crate::memory) fn block_around(address: u64) -> Result<(u64, u64)> {
    process::refuse_forked()?;
    let Allocation { cache, offset } = serve::find(address, None)?;
    let memory = cache.memory;
    let heap = cache.lock_by_mutex();
    if let Some((found, _)) = heap.live_block(&memory.pages, offset) {
        return Ok((address, found.requested));
    }
    // Any address but a block's start takes a search.
    let blocks = heap.views(&memory.pages).into_iter().flatten();
    let held = blocks.filter(|block| block.is_live && !block.is_waiting);
    let around = held.filter(|block| (block.start..block.start + block.requested).contains(&offset));
    around.map(|block| (memory.address(block.start), block.requested)).next().ok_or_else(|| {
        Error::invalid_value(format!(
            "{address:#x} lies in no block that gpupool has handed out; give a pointer into one"
        ))
    })
}
