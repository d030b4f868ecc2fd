//! CUDA's rules on calls that are unsafe while a stream is captured.
//!
//! A thread in global mode spoils every global capture, and its own thread-local ones, by an unsafe call; a thread in
//! thread-local mode its own captures only; a relaxed thread none. See `cuThreadExchangeStreamCaptureMode` in NVIDIA's
//! driver API reference.

use std::cell::Cell;
use std::thread;

use super::refused;
use super::timeline::{Capture, Timeline};
use crate::error::{Result, StatusKind};
use crate::stream::CaptureMode;

thread_local! {
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

pub(super) fn exchange_mode(mode: CaptureMode) -> CaptureMode {
    MODE.replace(mode)
}

/// Refuses a call such as an allocation where a capture forbids it, and spoils that capture.
pub(super) fn check_unsafe_call(timeline: &mut Timeline) -> Result<()> {
    let this = thread::current().id();
    let mode = MODE.get();
    let forbids = |capture: &Capture| {
        capture.mode != CaptureMode::Relaxed
            && match mode {
                CaptureMode::Global => capture.thread == this || capture.mode == CaptureMode::Global,
                CaptureMode::ThreadLocal => capture.thread == this,
                CaptureMode::Relaxed => false,
            }
    };
    let mut forbidden = false;
    for capture in timeline.captures().filter(|capture| forbids(capture)) {
        capture.is_valid = false;
        forbidden = true;
    }
    if forbidden {
        let status = ("HOST_ERROR_STREAM_CAPTURE_UNSUPPORTED", 900);
        return Err(refused("an unsafe call during a capture", status, StatusKind::Other));
    }
    Ok(())
}
