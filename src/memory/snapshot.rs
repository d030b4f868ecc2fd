//! Snapshots: a pool's memory, block by block, as it is at one moment.

use super::device_memory::DeviceMemory;
use super::heap::BlockView as Found;
use super::id::PoolId;
use super::local;
use super::pool::Pool;
use crate::error::Result;
use crate::stream::Device;

/// Memory without a gap, and the blocks in it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SegmentView {
    /// The device.
    pub device: Device,
    /// Where it starts.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The address of the stream whose requests it serves.
    pub stream: usize,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Whether its pages can be moved.
    pub is_movable: bool,
    /// Its blocks, by address.
    pub blocks: Vec<BlockView>,
}

/// A block that is free or held by a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BlockView {
    /// Where it starts.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The bytes asked for; 0 if it is free.
    pub requested: u64,
    /// Whether a caller holds it, or it waits for streams.
    pub is_live: bool,
    /// Whether it was freed and waits for streams.
    pub is_waiting: bool,
}

pub(super) fn of_pool(pool: &Pool) -> Vec<SegmentView> {
    let memory = pool.device;
    let mut segments = Vec::new();
    for cache in pool.caches() {
        let stream = cache.service().map_or(0, |service| service.stream.raw().address());
        let spans = cache.lock(local::thread()).views(&memory.pages);
        for span in spans {
            let Some(start) = span.first().map(|block| block.start) else { continue };
            segments.push(SegmentView {
                device: memory.device,
                address: memory.address(start),
                bytes: span.iter().map(|block| block.size).sum(),
                stream,
                pool: pool.id,
                is_movable: start < memory.room(),
                blocks: span.into_iter().map(|block| view(memory, block)).collect(),
            });
        }
    }
    segments
}

fn view(memory: &DeviceMemory, block: Found) -> BlockView {
    let Found { start, size, requested, is_live, is_waiting } = block;
    BlockView { address: memory.address(start), bytes: size, requested, is_live, is_waiting }
}

/// The memory of every pool of every device that was used.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn memory_snapshot() -> Result<Vec<SegmentView>> {
    crate::lifecycle::refuse_forked()?;
    Ok(DeviceMemory::all().flat_map(DeviceMemory::pools).flat_map(|pool| of_pool(&pool)).collect())
}
