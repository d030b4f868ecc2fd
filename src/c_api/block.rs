//! The block, and the owner, of an address.

use std::ffi::{c_int, c_void};

use super::header::c_struct;
use super::sized::{SizedStruct, write};
use super::snapshot::{block_of, segment_of};
use crate::memory::plug::call::run;
use crate::memory::pool::PoolId;
use crate::memory::{report, serve};

c_struct! {
    /// `gpupool_block`: a block, and the contiguous memory that it is part of.
    pub struct Block as "gpupool_block" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// The start address.
        pub address: *mut c_void,
        /// The size in bytes, with rounding.
        pub bytes: u64,
        /// The requested size in bytes; 0 if it is free.
        pub requested: u64,
        /// Whether it is live.
        pub is_live: c_int,
        /// Whether it was freed and waits for streams.
        pub is_waiting: c_int,
        /// Its device.
        pub device: c_int,
        /// The stream that it was allocated on.
        pub stream: *mut c_void,
        /// Its pool.
        pub pool: PoolId,
        /// The start address of the contiguous memory.
        pub segment: *mut c_void,
        /// The size of the contiguous memory, in bytes.
        pub segment_bytes: u64,
        /// The stack that allocated it, if recorded; otherwise 0.
        pub stack: u32,
    }
}

// SAFETY: numbers and pointers alone, the size first.
unsafe impl SizedStruct for Block {}

pub(super) unsafe extern "C" fn owns(pointer: *const c_void) -> c_int {
    c_int::from(serve::owns(pointer.addr() as u64))
}

pub(super) unsafe extern "C" fn find_block(address: *const c_void, block: *mut Block) -> c_int {
    run(|| {
        let (segment, found) = report::live_block(address.addr() as u64)?;
        // SAFETY: the caller passes a block of its version, whose size it has set, or null.
        unsafe { write(block, block_of(&segment_of(&segment), &found)) }
    })
}
