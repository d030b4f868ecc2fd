//! Simulated captures: a thread's mode, what a stream is captured into, and what a graph keeps.

use crate::error::{Result, StatusKind};
use crate::ids::{CaptureMode, CaptureStatus, RawStream};
use crate::runtime::host::refusal::{INVALID_HANDLE, refused};
use crate::runtime::host::{Call, Host, capture, check, timeline};
use crate::runtime::{Capture, CaptureCalls, RawGraph};

impl CaptureCalls for Host {
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        check(Call::ExchangeCaptureMode)?;
        Ok(capture::exchange_mode(mode))
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        check(Call::StreamCaptureStatus)?;
        timeline().capture_status(Self::key(stream))
    }

    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Option<Capture>> {
        check(Call::StreamCapture)?;
        let mut timeline = timeline();
        let capture = timeline.capture(Self::key(stream))?;
        Ok(capture.map(|capture| Capture { id: capture.id, graph: RawGraph(capture.id as usize) }))
    }

    unsafe fn graph_retain(&self, graph: RawGraph, kept: Box<dyn Send>) -> Result<()> {
        check(Call::GraphRetain)?;
        let mut timeline = timeline();
        match timeline.captures().find(|capture| capture.id == graph.0 as u64) {
            Some(capture) => capture.graph.kept.push(kept),
            None => return Err(refused("graph_retain", INVALID_HANDLE, StatusKind::Other)),
        }
        Ok(())
    }
}
