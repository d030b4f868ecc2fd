//! Recording for C: what to keep of what happens, with stacks that the program takes.

use std::ffi::{c_int, c_void};

use super::call::run;
use super::sized::SizedStruct;
use crate::error::Error;

/// Returns the number of the calling thread's stack; 0 for none.
pub type TakeStack = unsafe extern "C" fn() -> u32;

/// `gpupool_recording`: what is recorded.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Recording {
    /// Of this struct.
    pub size: u64,
    /// How many of the newest events are kept.
    pub most_events: u64,
    /// The stack of each live block.
    pub live_stacks: c_int,
    /// Of each allocation among the events.
    pub alloc_stacks: c_int,
    /// Of each free among them.
    pub free_stacks: c_int,
    /// A bit, `1 << action`, for each that is left out.
    pub skipped_actions: u32,
    /// Called with no lock of gpupool's held; none for no stacks.
    pub take_stack: Option<TakeStack>,
}

// SAFETY: numbers and a function that may be none, the size first.
unsafe impl SizedStruct for Recording {
    const NAME: &'static str = "gpupool_recording";
}

pub(super) unsafe extern "C" fn record(_recording: *const Recording) -> c_int {
    run(|| Err(Error::internal("not there yet")))
}

pub(super) unsafe extern "C" fn visit_stacks(
    _context: *mut c_void,
    _visit: Option<unsafe extern "C" fn(*mut c_void, u32)>,
) -> c_int {
    run(|| Err(Error::internal("not there yet")))
}
