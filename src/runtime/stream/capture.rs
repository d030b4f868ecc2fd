//! Whether a stream is captured into a graph, and uses of it that a capture forbids.
//!
//! The driver answers for this stream alone, which is asked each time: nothing is kept. What is known of all captures on a
//! device is in `known_captures.rs`.

use super::Stream;
use crate::error::{Error, Result};
use crate::ids::CaptureStatus;
use crate::runtime::{BoundDevice, Capture, get};

impl Stream {
    /// Returns whether work on the stream is recorded into a graph.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses.
    pub fn capture_status(&self) -> Result<CaptureStatus> {
        let _bound = self.bind_default()?;
        // SAFETY: the stream is alive: ours until the last clone, a foreign one by `from_raw`'s contract.
        unsafe { get()?.stream_capture_status(self.raw) }.map_err(|e| e.on(self.device))
    }

    /// Returns whether what is submitted to the stream goes to a graph, or to a capture that was invalidated. The legacy
    /// default stream is never captured, whatever is captured beside it, and is not asked.
    pub(crate) fn is_captured(&self) -> Result<bool> {
        Ok(!self.raw.is_legacy() && self.capture_status()? != CaptureStatus::None)
    }

    /// Returns the capture that work on the stream goes to, if the driver identifies it.
    pub(crate) fn capture(&self) -> Result<Option<Capture>> {
        let _bound = self.bind_default()?;
        // SAFETY: the stream is alive: ours until the last clone, a foreign one by `from_raw`'s contract.
        unsafe { get()?.stream_capture(self.raw) }.map_err(|e| e.on(self.device))
    }

    /// Makes a use of the stream possible, and refuses one that would invalidate the capture of a blocking stream.
    ///
    /// # Errors
    /// As [`Stream::query`].
    pub(crate) fn begin_use(&self) -> Result<Option<BoundDevice>> {
        let bound = self.bind_default()?;
        if self.raw.is_legacy() && self.capture_status()? == CaptureStatus::Implicit {
            return Err(Error::invalid_value(format!(
                "a blocking stream of {} is being captured, and any use of the legacy default stream would invalidate that \
                 capture: use another stream, or do this after the capture",
                self.device
            )));
        }
        Ok(bound)
    }
}
