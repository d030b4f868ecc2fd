//! Captures of streams with HIP, which reports whether a stream is captured, but not the capture: so no graph keeps
//! anything.

use super::{Hip, NOT_SUPPORTED, as_stream};
use crate::error::Result;
use crate::ids::{CaptureMode, CaptureStatus, RawStream};
use crate::runtime::symbols::Status;
use crate::runtime::{Capture, CaptureCalls, RawGraph};

/// `hipErrorStreamCaptureImplicit`.
const CAPTURE_IMPLICIT: Status = 906;

impl CaptureCalls for Hip {
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut exchanged = mode.number();
        // SAFETY: the mode is a valid one, and the library writes the previous one in its place.
        let status = unsafe { (self.symbols.exchange_capture_mode)(&mut exchanged) };
        self.check("hipThreadExchangeStreamCaptureMode", status)?;
        Ok(CaptureMode::of(exchanged))
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        let mut status = 0;
        // SAFETY: the caller promises that the stream is alive.
        let asked = unsafe { (self.symbols.stream_is_capturing)(as_stream(stream), &mut status) };
        // Only of the legacy default stream. The query harms no capture.
        if asked == CAPTURE_IMPLICIT {
            self.forget_last_error();
            return Ok(CaptureStatus::Implicit);
        }
        self.check("hipStreamIsCapturing", asked)?;
        Ok(CaptureStatus::of(status))
    }

    unsafe fn stream_capture(&self, _stream: RawStream) -> Result<Option<Capture>> {
        Err(self.refused("hipStreamGetCaptureInfo", NOT_SUPPORTED))
    }

    unsafe fn graph_retain(&self, _graph: RawGraph, _kept: Box<dyn Send>) -> Result<()> {
        Err(self.refused("hipGraphRetainUserObject", NOT_SUPPORTED))
    }
}
