//! CUDA's rules on calls that are unsafe while a stream is captured. An unsafe call of a thread in global mode spoils
//! every global capture, and the thread's own thread-local ones; in thread-local mode only its own captures; in relaxed
//! mode none: see `cuThreadExchangeStreamCaptureMode` in NVIDIA's driver API reference. In any mode, any use of the
//! legacy default stream spoils the captures of blocking streams of its device, except the query whether it is
//! captured, which is refused, too: see `cuStreamIsCapturing` there.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fault::{CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, ILLEGAL_STATE, refused};
use super::timeline::{StreamKey, Timeline, timeline};
use super::uses::{self, User};
use crate::error::Result;
use crate::ids::{CaptureMode, CaptureStatus, Device, RawStream};
use crate::sync::{ThisThread, ThreadNumber};

thread_local! {
    pub(super) static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// How many captures there are, so that calls outside of any need not look for one.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

pub(super) struct SimulatedCapture {
    pub(super) mode: CaptureMode,
    pub(super) thread: ThreadNumber,
    pub(super) is_valid: bool,
    pub(super) graph: Graph,
}

/// A graph that a capture made. It keeps what was given to it until it is dropped.
#[derive(Default)]
pub struct Graph {
    /// The capture's; 0 for none.
    pub(super) id: u64,
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
        Self { mode, thread: ThisThread::get().number(), is_valid: true, graph: Graph { id, kept: Vec::new() } }
    }
}

impl Drop for SimulatedCapture {
    fn drop(&mut self) {
        CAPTURES.fetch_sub(1, Ordering::Relaxed);
    }
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
        return Err(refused("an unsafe call during a capture", CAPTURE_UNSUPPORTED));
    }
    Ok(())
}

impl Timeline {
    /// Returns the captures beside which a stream must not be used: if it is the legacy default one, those of blocking
    /// streams of its device.
    fn captures_beside(&mut self, key: StreamKey) -> impl Iterator<Item = &mut SimulatedCapture> {
        let legacy = key.default_of.filter(|_| key.raw == RawStream::LEGACY);
        // Each use of a stream asks, so those of thousands are looked at for the legacy stream alone.
        let streams = legacy.map(|device| {
            self.streams.values_mut().filter(move |stream| stream.is_blocking && stream.device == device)
        });
        streams.into_iter().flatten().filter_map(|stream| stream.capture.as_mut())
    }

    /// Refuses to use a stream beside a capture, which that spoils, in any mode.
    pub(super) fn check_not_beside_capture(&mut self, function: &str, key: StreamKey) -> Result<()> {
        match self.captures_beside(key).map(|capture| capture.is_valid = false).count() {
            0 => Ok(()),
            _ => Err(refused(function, CAPTURE_IMPLICIT)),
        }
    }

    pub(super) fn captures(&mut self) -> impl Iterator<Item = &mut SimulatedCapture> {
        self.streams.values_mut().filter_map(|stream| stream.capture.as_mut())
    }

    pub(super) fn spoil_captures_on(&mut self, device: Device) -> bool {
        let on_device = self.streams.values_mut().filter(|stream| stream.device == device);
        let captures = on_device.filter_map(|stream| stream.capture.as_mut());
        captures.map(|capture| capture.is_valid = false).count() > 0
    }

    /// Refuses to query or wait for a stream that is captured, or beside a capture, in any mode, and spoils the
    /// capture.
    pub(super) fn check_not_captured(&mut self, key: StreamKey) -> Result<()> {
        self.check_not_beside_capture("a question about the legacy default stream", key)?;
        let Some(capture) = &mut self.stream(key)?.capture else { return Ok(()) };
        capture.is_valid = false;
        Err(refused("a question about a captured stream", CAPTURE_UNSUPPORTED))
    }

    pub(super) fn begin_capture(&mut self, key: StreamKey, mode: CaptureMode) -> Result<()> {
        if key.raw == RawStream::LEGACY {
            return Err(refused("begin_capture", CAPTURE_UNSUPPORTED));
        }
        let id = self.unused() as u64;
        let stream = self.stream(key)?;
        if stream.capture.is_some() {
            return Err(refused("begin_capture", ILLEGAL_STATE));
        }
        stream.capture = Some(SimulatedCapture::new(id, mode));
        Ok(())
    }

    pub(super) fn end_capture(&mut self, key: StreamKey) -> Result<SimulatedCapture> {
        let capture = self.stream(key)?.capture.take();
        capture.ok_or_else(|| refused("end_capture", ILLEGAL_STATE))
    }

    /// Returns the capture that the stream's work goes to, if it was not spoilt.
    pub(super) fn capture(&mut self, key: StreamKey) -> Result<Option<&mut SimulatedCapture>> {
        match self.capture_status(key)? {
            CaptureStatus::Implicit => Err(refused("stream_capture", CAPTURE_IMPLICIT)),
            CaptureStatus::Active => Ok(self.stream(key)?.capture.as_mut()),
            CaptureStatus::None | CaptureStatus::Invalidated => Ok(None),
        }
    }

    /// The query spoils nothing.
    pub(super) fn capture_status(&mut self, key: StreamKey) -> Result<CaptureStatus> {
        if self.captures_beside(key).next().is_some() {
            return Ok(CaptureStatus::Implicit);
        }
        Ok(match &self.stream(key)?.capture {
            None => CaptureStatus::None,
            Some(capture) if capture.is_valid => CaptureStatus::Active,
            Some(_) => CaptureStatus::Invalidated,
        })
    }
}
