//! Captures of streams into graphs: a thread's mode, what a stream is captured into, and what a graph keeps. A driver
//! answers for one stream at a time; `known_captures.rs` collects the captures, so that no call for a whole device
//! spoils one.

use crate::error::Result;
use crate::ids::{CaptureMode, CaptureStatus, RawStream};
use crate::runtime::{Capture, RawGraph};

/// A platform's calls on captures. The rules of [`Runtime`](crate::runtime::Runtime) apply.
pub trait CaptureCalls {
    /// Sets the calling thread's capture mode and returns the previous one (`cuThreadExchangeStreamCaptureMode`).
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode>;

    /// Returns whether work on the stream is recorded into a graph. Of the legacy default stream it returns whether a
    /// blocking stream of the current device is captured, with HIP of any device; other streams can only be queried one
    /// by one.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus>;
    /// Returns the capture that the stream's work is recorded into, if any (`cuStreamGetCaptureInfo`). Drivers older
    /// than CUDA 12.3, and HIP, refuse it.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Option<Capture>>;

    /// Keeps a value until the graph and all that was instantiated from it are destroyed and have run
    /// (`cuGraphRetainUserObject`). It is then dropped on a thread of the driver, where no driver call is allowed; if
    /// the driver refuses, at once.
    ///
    /// # Safety
    /// The graph is alive and of this runtime.
    unsafe fn graph_retain(&self, graph: RawGraph, kept: Box<dyn Send>) -> Result<()>;
}
