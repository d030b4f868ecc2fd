//! Snapshots: memory block by block, and what was recorded, told to a visitor.

use std::ffi::{c_int, c_void};

use super::block::Block;
use super::call::run;
use super::event::Event;
use super::sized::SizedStruct;
use crate::error::Error;
use crate::memory::pool::PoolId;

/// `gpupool_segment`: memory without a gap, of one pool and one stream.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Of this struct.
    pub size: u64,
    /// The device.
    pub device: c_int,
    /// Where it starts.
    pub address: *mut c_void,
    /// Its bytes.
    pub bytes: u64,
    /// The stream whose requests it serves.
    pub stream: *mut c_void,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// Whether it is of pages that can be mapped elsewhere.
    pub is_movable: c_int,
    /// Whether all its blocks are of at most a MiB.
    pub is_small: c_int,
    /// The stack of the request for which it came, where that was recorded; else 0.
    pub stack: u32,
}

/// `gpupool_snapshot_visitor`: what [`Api::snapshot`](super::Api::snapshot) calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SnapshotVisitor {
    /// Of this struct.
    pub size: u64,
    /// What the functions are called with.
    pub context: *mut c_void,
    /// Called for each segment.
    pub segment: Option<unsafe extern "C" fn(*mut c_void, *const Segment)>,
    /// Called for each block of the segment.
    pub block: Option<unsafe extern "C" fn(*mut c_void, *const Block)>,
    /// Called for each event, after all segments.
    pub event: Option<unsafe extern "C" fn(*mut c_void, *const Event)>,
}

// SAFETY: numbers, pointers and functions that may be none, the size first.
unsafe impl SizedStruct for SnapshotVisitor {
    const NAME: &'static str = "gpupool_snapshot_visitor";
}

pub(super) unsafe extern "C" fn snapshot(
    _device: c_int,
    _pool: *const PoolId,
    _visitor: *const SnapshotVisitor,
) -> c_int {
    run(|| Err(Error::internal("not there yet")))
}
