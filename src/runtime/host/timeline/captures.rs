//! Captures of streams, and the calls that they forbid.

use super::{StreamKey, Timeline};
use crate::error::{Result, StatusKind};
use crate::ids::{CaptureMode, CaptureStatus, Device, RawStream};
use crate::runtime::host::capture::{self, SimulatedCapture};
use crate::runtime::host::refusal::refused;

/// The error of a capture that is begun twice, or ended without being begun.
const ILLEGAL_STATE: (&str, i32) = ("HOST_ERROR_ILLEGAL_STATE", 401);

impl Timeline {
    /// Returns the captures beside which a stream must not be used: if it is the legacy default one, those of blocking
    /// streams of its device.
    fn captures_beside(&mut self, key: StreamKey) -> impl Iterator<Item = &mut SimulatedCapture> {
        let legacy = key.default_of.filter(|_| key.raw == RawStream::LEGACY);
        // Each use of a stream asks, so those of thousands are looked at for the legacy stream alone.
        let streams = legacy.map(|device| {
            self.streams().values_mut().filter(move |stream| stream.is_blocking && stream.device == device)
        });
        streams.into_iter().flatten().filter_map(|stream| stream.capture.as_mut())
    }

    /// Returns whether the stream must not be used, beside a capture. The query spoils nothing.
    fn is_beside_capture(&mut self, key: StreamKey) -> bool {
        self.captures_beside(key).next().is_some()
    }

    /// Refuses to use a stream beside a capture, which that spoils, in any mode.
    pub(in super::super) fn check_not_beside_capture(&mut self, function: &str, key: StreamKey) -> Result<()> {
        match self.captures_beside(key).map(|capture| capture.is_valid = false).count() {
            0 => Ok(()),
            _ => Err(refused(function, capture::IMPLICIT, StatusKind::Other)),
        }
    }

    pub(in super::super) fn captures(&mut self) -> impl Iterator<Item = &mut SimulatedCapture> {
        self.streams().values_mut().filter_map(|stream| stream.capture.as_mut())
    }

    pub(in super::super) fn spoil_captures_on(&mut self, device: Device) -> bool {
        let on_device = self.streams().values_mut().filter(|stream| stream.device == device);
        let captures = on_device.filter_map(|stream| stream.capture.as_mut());
        captures.map(|capture| capture.is_valid = false).count() > 0
    }

    /// Refuses to query or wait for a stream that is captured, or beside a capture, in any mode, and spoils the
    /// capture.
    pub(in super::super) fn check_not_captured(&mut self, key: StreamKey) -> Result<()> {
        self.check_not_beside_capture("a question about the legacy default stream", key)?;
        let Some(capture) = &mut self.stream(key)?.capture else { return Ok(()) };
        capture.is_valid = false;
        Err(refused("a question about a captured stream", capture::UNSUPPORTED, StatusKind::Other))
    }

    pub(in super::super) fn begin_capture(&mut self, key: StreamKey, mode: CaptureMode) -> Result<()> {
        if key.raw == RawStream::LEGACY {
            return Err(refused("begin_capture", capture::UNSUPPORTED, StatusKind::Other));
        }
        self.next_capture += 1;
        let id = self.next_capture;
        let stream = self.stream(key)?;
        if stream.capture.is_some() {
            return Err(refused("begin_capture", ILLEGAL_STATE, StatusKind::Other));
        }
        stream.capture = Some(SimulatedCapture::new(id, mode));
        Ok(())
    }

    pub(in super::super) fn end_capture(&mut self, key: StreamKey) -> Result<SimulatedCapture> {
        let capture = self.stream(key)?.capture.take();
        capture.ok_or_else(|| refused("end_capture", ILLEGAL_STATE, StatusKind::Other))
    }

    /// Returns the capture that the stream's work goes to, if it was not spoilt.
    pub(in super::super) fn capture(&mut self, key: StreamKey) -> Result<Option<&mut SimulatedCapture>> {
        if self.is_beside_capture(key) {
            return Err(refused("stream_capture", capture::IMPLICIT, StatusKind::Other));
        }
        Ok(self.stream(key)?.capture.as_mut().filter(|capture| capture.is_valid))
    }

    pub(in super::super) fn capture_status(&mut self, key: StreamKey) -> Result<CaptureStatus> {
        if self.is_beside_capture(key) {
            return Ok(CaptureStatus::Implicit);
        }
        Ok(match &self.stream(key)?.capture {
            None => CaptureStatus::None,
            Some(capture) if capture.is_valid => CaptureStatus::Active,
            Some(_) => CaptureStatus::Invalidated,
        })
    }
}
