//! Captures that are known of: those on streams that can be asked, and those that were announced.
//!
//! No driver tells of all captures on a device. So streams are asked one by one, and what a caller says it is about to capture
//! is asked, too, or taken for captured where its stream may be gone by the time it would be asked.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::stream::alive_on;
use super::{BoundDevice, Runtime, Stream, get, scope};
use crate::error::{Error, Result};
use crate::ids::{CaptureStatus, Device, RawStream};
#[cfg(feature = "python")]
use crate::process;
use crate::sync::lock;

/// A stream that will be captured.
#[derive(Debug)]
struct CapturedStream {
    /// What tells it from others, and from the same stream noted again.
    number: u64,
    stream: Stream,
}

/// Streams that a caller of [`note_capture`] is about to capture.
static CAPTURED: Mutex<Vec<CapturedStream>> = Mutex::new(Vec::new());

/// A note that a stream is captured. The stream is asked about as long as this lives.
#[derive(Debug)]
pub(crate) struct KnownCapture {
    number: u64,
}

/// Notes that a foreign stream is about to be captured, which no driver would tell. Its owner keeps it alive meanwhile.
pub(crate) fn note_capture(stream: &Stream) -> KnownCapture {
    let mut captured = lock(&CAPTURED);
    let number = captured.iter().map(|noted| noted.number + 1).max().unwrap_or(0);
    captured.push(CapturedStream { number, stream: stream.clone() });
    KnownCapture { number }
}

impl Drop for KnownCapture {
    fn drop(&mut self) {
        let ended = {
            let mut captured = lock(&CAPTURED);
            let index = captured.iter().position(|noted| noted.number == self.number);
            index.map(|index| captured.swap_remove(index))
        };
        // Outside the lock: the last clone of a stream destroys it.
        drop(ended);
    }
}

/// How many callers of [`expect_captures`] there are for each device.
static EXPECTING: Mutex<BTreeMap<Device, usize>> = Mutex::new(BTreeMap::new());

/// Takes it that streams of the device are captured, whichever they are, until as many calls of
/// [`end_expecting_captures`].
pub(crate) fn expect_captures(device: Device) {
    *lock(&EXPECTING).entry(device).or_default() += 1;
}

/// Ends one call of [`expect_captures`]; false if there is none.
pub(crate) fn end_expecting_captures(device: Device) -> bool {
    let mut expecting = lock(&EXPECTING);
    let Some(count) = expecting.get_mut(&device).filter(|count| **count > 0) else { return false };
    *count -= 1;
    true
}

/// Captures on a device that are expected until this is dropped, as [`expect_captures`].
#[cfg(feature = "python")]
#[derive(Debug)]
pub(crate) struct ExpectedCaptures {
    device: Device,
}

#[cfg(feature = "python")]
impl ExpectedCaptures {
    pub(crate) fn new(device: Device) -> Self {
        expect_captures(device);
        Self { device }
    }
}

#[cfg(feature = "python")]
impl Drop for ExpectedCaptures {
    fn drop(&mut self) {
        // The lock may be held for ever in a forked child.
        if !process::is_forked() {
            end_expecting_captures(self.device);
        }
    }
}

/// Waits for all work of the device, on every stream.
///
/// # Errors
/// `ErrorKind::InvalidValue` while a stream is captured that gpupool knows of, as waiting would invalidate the capture;
/// `ErrorKind::Library` if the driver refuses, also for an error of earlier work.
pub fn synchronize(device: Device) -> Result<()> {
    let runtime = get()?;
    if is_known_stream_capturing(runtime, device)? {
        return Err(Error::invalid_value(format!(
            "a stream of {device} is being captured, which waiting for the whole device would invalidate: wait after the capture, \
             or for another stream alone"
        )));
    }
    let _bound = BoundDevice::new(runtime, device)?;
    runtime.context_synchronize().map_err(|e| e.on(device))
}

/// Returns whether a stream of the device that can be asked is captured: one of our own, the thread's current one, one
/// that was noted, or any blocking one; also where captures of others are expected.
pub(crate) fn is_known_stream_capturing(runtime: &'static dyn Runtime, device: Device) -> Result<bool> {
    if lock(&EXPECTING).get(&device).is_some_and(|count| *count > 0) {
        return Ok(true);
    }
    let _bound = BoundDevice::new(runtime, device)?;
    let owned = alive_on(device);
    let noted: Vec<_> = {
        let captured = lock(&CAPTURED);
        captured.iter().map(|noted| noted.stream.clone()).filter(|stream| stream.device() == device).collect()
    };
    let known = owned.iter().chain(&noted).map(Stream::raw);
    // The legacy default stream tells of the blocking ones.
    for stream in [RawStream::LEGACY].into_iter().chain(known).chain([scope::current(device)]) {
        // SAFETY: the legacy default stream always exists, clones keep our own alive, and who noted or entered another keeps
        // it alive meanwhile.
        let status = unsafe { runtime.stream_capture_status(stream) }.map_err(|e| e.on(device))?;
        if status != CaptureStatus::None {
            return Ok(true);
        }
    }
    Ok(false)
}
