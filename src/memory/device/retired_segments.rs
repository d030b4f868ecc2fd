//! Segments of pinned memory that are to go: given back by a thread of gpupool's own, or by a call that needs the memory.
//!
//! The driver waits for running kernels before it lets a segment go, whatever they use. Until then its bytes count as
//! reserved.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use super::device_memory::DeviceMemory;
use super::supply::{PINNED_GONE, Supply};
use crate::error::Result;
use crate::sync::{lock, wait};

/// A segment that is to go.
#[derive(Debug)]
pub(super) struct RetiredSegment {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The pool's, which may be gone by then.
    pub(super) supply: Arc<Supply>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<RetiredSegment>,
    /// Those that a thread is just giving back.
    under_way: usize,
}

/// The segments of one NUMA node that are to go.
#[derive(Debug, Default)]
pub(super) struct RetiredSegments {
    state: Mutex<State>,
    /// Told when nothing is under way any more.
    done: Condvar,
}

impl DeviceMemory {
    /// Takes a segment that is in no cache any more.
    pub(super) fn retire_segment(&self, segment: RetiredSegment) {
        lock(&self.retired_segments.state).waiting.push(segment);
    }

    /// Gives back the segments that are to go, waiting for kernels that are running, and for other threads that are at it.
    /// Returns the bytes that went.
    ///
    /// # Errors
    /// The first refusal of the driver. What it refused is tried again later.
    pub(super) fn end_retired_segments(&self) -> Result<u64> {
        let retired = &self.retired_segments;
        let segments = {
            let mut state = lock(&retired.state);
            let segments = std::mem::take(&mut state.waiting);
            state.under_way += segments.len();
            segments
        };
        let taken = segments.len();
        let mut outcome = Ok(());
        let mut released = 0;
        let mut refused = Vec::new();
        for segment in segments {
            let RetiredSegment { address, bytes, supply } = &segment;
            self.range.count_driver_call();
            // SAFETY: as in `retire`, which the segment came by.
            match PINNED_GONE.time(|| unsafe { supply.source.free(*address, *bytes, None) }) {
                Ok(()) => self.uncount(*bytes, supply, &mut released),
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    refused.push(segment);
                }
            }
        }
        let mut state = lock(&retired.state);
        state.waiting.append(&mut refused);
        state.under_way -= taken;
        if state.under_way == 0 {
            retired.done.notify_all();
        }
        while state.under_way > 0 {
            state = wait(&retired.done, &retired.state, state);
        }
        outcome.map(|()| released)
    }

    /// As [`DeviceMemory::end_retired_segments`], on a thread of its own, so that the caller waits for no kernel. Returns the
    /// bytes that went already, which are some where the system has no thread to give.
    ///
    /// # Errors
    /// As [`DeviceMemory::end_retired_segments`], in that case.
    pub(in crate::memory) fn begin_ending_segments(&'static self) -> Result<u64> {
        if lock(&self.retired_segments.state).waiting.is_empty() {
            return Ok(0);
        }
        let thread = thread::Builder::new().name("gpupool-unpin".to_owned());
        // What the driver refuses is tried again whenever memory is given back.
        match thread.spawn(|| drop(self.end_retired_segments())) {
            Ok(_) => Ok(0),
            Err(_) => self.end_retired_segments(),
        }
    }
}
