//! Snapshots: memory block by block, and the recorded events, passed to a visitor.

use std::ffi::{c_int, c_void};

use super::block::Block;
use super::event::Event;
use super::header::c_struct;
use super::recording::number_of;
use super::sized::{SizedStruct, read};
use crate::error::Result;
use crate::ids::MemoryLocation;
use crate::memory::plug::call::{one_or_all, pointer, run};
use crate::memory::pool::PoolId;
use crate::memory::report::{self, BlockView, MemorySnapshot, SegmentView};

c_struct! {
    /// `gpupool_segment`: contiguous memory of one pool and one stream.
    pub struct Segment as "gpupool_segment" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// The device.
        pub device: c_int,
        /// The start address.
        pub address: *mut c_void,
        /// The size in bytes.
        pub bytes: u64,
        /// The stream whose requests it serves.
        pub stream: *mut c_void,
        /// The pool that it belongs to.
        pub pool: PoolId,
        /// Whether its pages can be moved.
        pub is_movable: c_int,
        /// Whether all its blocks are small.
        pub is_small: c_int,
        /// The stack of the request that it was allocated for, if recorded; otherwise 0.
        pub stack: u32,
    }
}

c_struct! {
    /// `gpupool_snapshot_visitor`: what [`Api::snapshot`](super::Api::snapshot) calls.
    pub struct SnapshotVisitor as "gpupool_snapshot_visitor" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// The first argument of the functions.
        pub context: *mut c_void,
        /// Called for each segment.
        pub segment: Option<unsafe extern "C" fn(*mut c_void, *const Segment)>,
        /// Called for each block of the segment.
        pub block: Option<unsafe extern "C" fn(*mut c_void, *const Block)>,
        /// Called for each event, after all segments.
        pub event: Option<unsafe extern "C" fn(*mut c_void, *const Event)>,
    }
}

// SAFETY: numbers, pointers and functions that may be none, the size first.
unsafe impl SizedStruct for SnapshotVisitor {}

impl SnapshotVisitor {
    /// Calls one of the functions, if there is one.
    ///
    /// # Safety
    /// It is the visitor's, and takes its context.
    unsafe fn call<T>(&self, function: Option<unsafe extern "C" fn(*mut c_void, *const T)>, of: &T) {
        if let Some(function) = function {
            // SAFETY: the caller promises that the function takes this context.
            unsafe { function(self.context, of) };
        }
    }
}

/// Splits movable memory into slabs and what is between them: a segment of PyTorch's has either small or large blocks, and
/// its statistics are separate for the two.
fn by_kind(view: SegmentView) -> Vec<SegmentView> {
    if !view.is_movable {
        return vec![view];
    }
    let SegmentView { blocks, .. } = &view;
    let part = |blocks: &[BlockView]| SegmentView {
        address: blocks.first().map_or(view.address, |block| block.address),
        nbytes: blocks.iter().map(|block| block.nbytes).sum(),
        blocks: blocks.to_vec(),
        ..view.clone()
    };
    blocks.chunk_by(|one, next| one.is_small == next.is_small).map(part).collect()
}

pub(super) fn segment_of(view: &SegmentView) -> Segment {
    Segment {
        size: size_of::<Segment>() as u64,
        device: view.location.number() as c_int,
        address: pointer(view.address),
        bytes: view.nbytes,
        stream: pointer(view.stream as u64),
        pool: view.pool,
        is_movable: view.is_movable.into(),
        is_small: view.blocks.iter().all(|block| block.is_small).into(),
        stack: number_of(view.stack),
    }
}

pub(super) fn block_of(segment: &Segment, view: &BlockView) -> Block {
    Block {
        size: size_of::<Block>() as u64,
        address: pointer(view.address),
        bytes: view.nbytes,
        requested: view.requested,
        is_live: (view.is_live && !view.is_waiting).into(),
        is_waiting: view.is_waiting.into(),
        device: segment.device,
        stream: segment.stream,
        pool: segment.pool,
        segment: segment.address,
        segment_bytes: segment.bytes,
        stack: number_of(view.stack),
    }
}

pub(super) unsafe extern "C" fn snapshot(device: c_int, pool: *const PoolId, visitor: *const SnapshotVisitor) -> c_int {
    let take = || {
        // SAFETY: the caller passes an id, or null.
        let pool = unsafe { pool.as_ref() };
        let mut taken = report::take_snapshot(one_or_all(device)?)?;
        taken.segments.retain(|segment| pool.is_none_or(|pool| *pool == segment.pool));
        Ok(taken)
    };
    // Pinned memory is of no device.
    // SAFETY: the caller passes a visitor of its version, whose functions take its context, or null.
    unsafe { visit(visitor, take, |location| location.device().is_some()) }
}

pub(super) unsafe extern "C" fn pinned_snapshot(visitor: *const SnapshotVisitor) -> c_int {
    // SAFETY: the caller passes a visitor of its version, whose functions take its context, or null.
    unsafe { visit(visitor, || report::take_snapshot(None), |location| location.device().is_none()) }
}

/// Calls a visitor for the segments, blocks and events of a snapshot that are of wanted locations.
///
/// # Safety
/// The visitor is null, or of the caller's version, which begins with its size. Its functions take its context.
unsafe fn visit(
    visitor: *const SnapshotVisitor,
    take: impl FnOnce() -> Result<MemorySnapshot>,
    is_wanted: impl Fn(MemoryLocation) -> bool,
) -> c_int {
    run(|| {
        // SAFETY: as the caller promises.
        let visitor = unsafe { read(visitor) }?;
        let MemorySnapshot { mut segments, events } = take()?;
        segments.retain(|segment| is_wanted(segment.location));
        segments.sort_by_key(|segment| (segment.location, segment.address));
        for view in segments.into_iter().flat_map(by_kind) {
            let segment = segment_of(&view);
            // SAFETY: the caller's functions take the visitor's context.
            unsafe { visitor.call(visitor.segment, &segment) };
            for block in &view.blocks {
                // SAFETY: the caller's functions take the visitor's context.
                unsafe { visitor.call(visitor.block, &block_of(&segment, block)) };
            }
        }
        for event in events.iter().filter(|event| is_wanted(event.location)) {
            // SAFETY: the caller's functions take the visitor's context.
            unsafe { visitor.call(visitor.event, &event.into()) };
        }
        Ok(())
    })
}
