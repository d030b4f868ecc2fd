//! Captures of streams with HIP, which reports whether a stream is captured, but not the capture: so no graph keeps
//! anything.

use super::{Hip, NOT_SUPPORTED, as_stream};
use crate::error::Result;
use crate::ids::{CaptureMode, CaptureStatus, RawStream};
use crate::runtime::symbols::{CallStatus, Status};
use crate::runtime::{Capture, CaptureCalls, RawGraph};

/// `hipErrorStreamCaptureImplicit`.
const CAPTURE_IMPLICIT: Status = 906;

impl CaptureCalls for Hip {
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut exchanged = mode.number();
        // SAFETY: the mode is a valid one, and the library writes the previous one in its place.
        self.check(unsafe { self.symbols.exchange_capture_mode.call(&mut exchanged) })?;
        Ok(CaptureMode::of(exchanged))
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        let mut status = 0;
        // SAFETY: the caller promises that the stream is alive.
        let asked = unsafe { self.symbols.stream_is_capturing.call(as_stream(stream), &mut status) };
        // Only of the legacy default stream. The query harms no capture.
        if asked.status == CAPTURE_IMPLICIT {
            self.forget_last_error();
            return Ok(CaptureStatus::Implicit);
        }
        self.check(asked)?;
        Ok(CaptureStatus::of(status))
    }

    unsafe fn stream_capture(&self, _stream: RawStream) -> Result<Option<Capture>> {
        Err(self.refused(CallStatus { name: c"hipStreamGetCaptureInfo", status: NOT_SUPPORTED }))
    }

    unsafe fn graph_retain(&self, _graph: RawGraph, _kept: Box<dyn Send>) -> Result<()> {
        Err(self.refused(CallStatus { name: c"hipGraphRetainUserObject", status: NOT_SUPPORTED }))
    }
}
