//! CUDA's rules on calls that are unsafe while a stream is captured. An unsafe call of a thread in global mode spoils
//! every global capture, and the thread's own thread-local ones; in thread-local mode only its own captures; in relaxed
//! mode none: see `cuThreadExchangeStreamCaptureMode` in NVIDIA's driver API reference. In any mode, any use of the
//! legacy default stream spoils the captures of blocking streams of its device, except the query whether it is
//! captured, which is refused, too: see `cuStreamIsCapturing` there.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::refusal::refused;
use super::timeline;
use super::uses::{self, User};
use crate::error::{Result, StatusKind};
use crate::ids::CaptureMode;
use crate::sync::{ThisThread, ThreadNumber};

/// The error of a call that a capture forbids.
pub(super) const UNSUPPORTED: (&str, i32) = ("HOST_ERROR_STREAM_CAPTURE_UNSUPPORTED", 900);
/// The error of a wait, in a capture, for an event that the capture has not recorded.
pub(super) const ISOLATED: (&str, i32) = ("HOST_ERROR_STREAM_CAPTURE_ISOLATION", 905);
/// The error of a call on the legacy default stream while a blocking stream of its device is captured.
pub(super) const IMPLICIT: (&str, i32) = ("HOST_ERROR_STREAM_CAPTURE_IMPLICIT", 906);
/// The error of a capture that a forbidden call spoiled.
pub(super) const INVALIDATED: (&str, i32) = ("HOST_ERROR_STREAM_CAPTURE_INVALIDATED", 901);

thread_local! {
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// How many captures there are, so that calls outside of any need not look for one.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
pub(super) struct SimulatedCapture {
    pub(super) id: u64,
    pub(super) mode: CaptureMode,
    pub(super) thread: ThreadNumber,
    pub(super) is_valid: bool,
    pub(super) graph: Graph,
}

/// A graph that a capture made. It keeps what was given to it until it is dropped.
#[derive(Default)]
pub struct Graph {
    /// The capture's; 0 for none.
    id: u64,
    pub(super) kept: Vec<Box<dyn Send>>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("keeps", &self.kept.len()).finish()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        uses::end(|user| user == User::Graph(self.id));
    }
}

impl SimulatedCapture {
    pub(super) fn new(id: u64, mode: CaptureMode) -> Self {
        CAPTURES.fetch_add(1, Ordering::Relaxed);
        Self { id, mode, thread: ThisThread::get().number(), is_valid: true, graph: Graph { id, kept: Vec::new() } }
    }
}

impl Drop for SimulatedCapture {
    fn drop(&mut self) {
        CAPTURES.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn exchange_mode(mode: CaptureMode) -> CaptureMode {
    MODE.replace(mode)
}

/// Refuses a call such as an allocation where a capture forbids it, and spoils that capture.
#[inline]
pub(super) fn check_unsafe_call() -> Result<()> {
    if CAPTURES.load(Ordering::Relaxed) == 0 { Ok(()) } else { check_against_captures() }
}

#[cold]
fn check_against_captures() -> Result<()> {
    let this = ThisThread::get().number();
    let mode = MODE.get();
    let forbids = |capture: &SimulatedCapture| {
        capture.mode != CaptureMode::Relaxed
            && match mode {
                CaptureMode::Global => capture.thread == this || capture.mode == CaptureMode::Global,
                CaptureMode::ThreadLocal => capture.thread == this,
                CaptureMode::Relaxed => false,
            }
    };
    let mut forbidden = false;
    for capture in timeline().captures().filter(|capture| forbids(capture)) {
        capture.is_valid = false;
        forbidden = true;
    }
    if forbidden {
        return Err(refused("an unsafe call during a capture", UNSUPPORTED, StatusKind::Other));
    }
    Ok(())
}
