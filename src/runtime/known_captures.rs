//! Known captures: those on streams that can be queried, and announced ones. No driver reports all captures on a
//! device. So streams are queried one by one, also those that a caller announces to capture, or these count as captured
//! if their stream may be gone by then. A call for a whole device, which would invalidate every capture there, is made
//! while none is announced, and an announcement waits for such calls to end: so no capture begins during one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use super::stream::alive_on;
use super::{BoundDevice, Runtime, Stream, existing, get, scope};
use crate::error::{Error, Result};
use crate::ids::{CaptureStatus, Device, RawStream};
use crate::process;
use crate::sync::{MayWait, lock, wait};

#[derive(Clone, Debug)]
struct CapturedStream {
    /// Distinguishes it from others, and from the same stream noted again.
    number: u64,
    stream: Stream,
}

/// What is announced, and the calls that must not meet it.
#[derive(Debug)]
struct KnownCaptures {
    /// Streams that a caller of [`note_capture`] is about to capture.
    captured: Vec<CapturedStream>,
    /// How many callers of [`expect_captures`] there are for each device.
    expecting: BTreeMap<Device, usize>,
    /// How many calls for a whole device are in progress.
    whole: BTreeMap<Device, usize>,
}

static KNOWN: Mutex<KnownCaptures> =
    Mutex::new(KnownCaptures { captured: Vec::new(), expecting: BTreeMap::new(), whole: BTreeMap::new() });
static ENDED: Condvar = Condvar::new();

fn count(counts: &BTreeMap<Device, usize>, device: Device) -> usize {
    counts.get(&device).copied().unwrap_or(0)
}

/// Waits until no call for the whole device is in progress. None begins after an announcement. One that destroys handles
/// may be in a function of the program's.
fn wait_for_calls(mut known: MutexGuard<'_, KnownCaptures>, device: Device) -> Result<()> {
    let may_wait = MayWait::until("no call for the whole device, such as one that destroys handles, is in progress");
    while count(&known.whole, device) > 0 {
        known = wait(&ENDED, &KNOWN, known, may_wait)?;
    }
    Ok(())
}

/// A call for a whole device, in progress while this lives.
#[derive(Debug)]
pub(crate) struct WholeDevice {
    device: Device,
}

impl WholeDevice {
    /// Begins a call for a whole device; none while a capture is announced there, except on streams that are gone.
    fn begin_unannounced(device: Device, gone: &[u64]) -> Option<Self> {
        let mut known = lock(&KNOWN);
        let is_announced = |noted: &CapturedStream| noted.stream.device() == device && !gone.contains(&noted.number);
        let is_announced = known.captured.iter().any(is_announced);
        if is_announced || count(&known.expecting, device) > 0 {
            return None;
        }
        *known.whole.entry(device).or_default() += 1;
        Some(Self { device })
    }

    /// Begins a call for a whole device; none while there is a known capture.
    pub(crate) fn begin(runtime: &'static dyn Runtime, device: Device) -> Result<Option<Self>> {
        // Before the queries, so that no announced capture begins in between.
        let Some(whole) = Self::begin_unannounced(device, &gone_on(runtime, device)?) else { return Ok(None) };
        Ok(if is_known_stream_capturing(runtime, device)? { None } else { Some(whole) })
    }
}

fn captured_on(device: Device) -> Vec<CapturedStream> {
    lock(&KNOWN).captured.iter().filter(|noted| noted.stream.device() == device).cloned().collect()
}

/// Returns the announced captures of a device that cannot begin any more, as their streams went with their contexts.
fn gone_on(runtime: &'static dyn Runtime, device: Device) -> Result<Vec<u64>> {
    let noted = captured_on(device);
    if noted.is_empty() {
        return Ok(Vec::new());
    }
    let _bound = BoundDevice::of(runtime, device)?;
    // SAFETY: the caller that noted a stream keeps it alive meanwhile.
    let is_gone = |stream: &Stream| unsafe { runtime.stream_is_gone(stream.raw()) };
    Ok(noted.iter().filter(|noted| is_gone(&noted.stream)).map(|noted| noted.number).collect())
}

impl Drop for WholeDevice {
    fn drop(&mut self) {
        let mut known = lock(&KNOWN);
        if let Some(count) = known.whole.get_mut(&self.device) {
            *count -= 1;
        }
        drop(known);
        ENDED.notify_all();
    }
}

/// A note that a stream is captured. The stream is queried as long as this lives.
#[derive(Debug)]
pub(crate) struct KnownCapture {
    number: u64,
}

/// Notes that a foreign stream is about to be captured, which no driver reports. Its owner keeps it alive meanwhile.
///
/// # Errors
/// `ErrorKind::InvalidValue` in a callback that may not wait.
pub(crate) fn note_capture(stream: &Stream) -> Result<KnownCapture> {
    let mut known = lock(&KNOWN);
    let number = known.captured.iter().map(|noted| noted.number + 1).max().unwrap_or(0);
    known.captured.push(CapturedStream { number, stream: stream.clone() });
    let noted = KnownCapture { number };
    wait_for_calls(known, stream.device())?;
    Ok(noted)
}

impl Drop for KnownCapture {
    fn drop(&mut self) {
        // The lock may be held for ever in a forked child.
        if process::is_forked() {
            return;
        }
        let ended = {
            let captured = &mut lock(&KNOWN).captured;
            let index = captured.iter().position(|noted| noted.number == self.number);
            index.map(|index| captured.swap_remove(index))
        };
        // Outside the lock: the last clone of a stream destroys it.
        drop(ended);
    }
}

/// Assumes that any streams of the device are captured, until as many calls of [`end_expecting_captures`].
///
/// # Errors
/// `ErrorKind::InvalidValue` in a callback that may not wait.
pub(crate) fn expect_captures(device: Device) -> Result<()> {
    let mut known = lock(&KNOWN);
    *known.expecting.entry(device).or_default() += 1;
    wait_for_calls(known, device).inspect_err(|_| _ = end_expecting_captures(device))
}

/// Ends one call of [`expect_captures`]; false if there is none.
pub(crate) fn end_expecting_captures(device: Device) -> bool {
    let expecting = &mut lock(&KNOWN).expecting;
    let Some(count) = expecting.get_mut(&device).filter(|count| **count > 0) else { return false };
    *count -= 1;
    true
}

/// Waits for all work of the device, on every stream.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is no such device, or while a stream is captured that gpupool knows of, as waiting would
/// invalidate the capture; `ErrorKind::Library` if the driver refuses, also for an error of earlier work.
pub fn synchronize(device: Device) -> Result<()> {
    let device = existing(device)?;
    if !synchronize_unless_captured(device)? {
        return Err(Error::invalid_value(format!(
            "a stream of {device} is being captured, which waiting for the whole device would invalidate: wait after the capture, \
             or for another stream alone"
        )));
    }
    Ok(())
}

/// Waits for all work on the device so far, on any stream, destroyed ones too. Returns false, with nothing done, if
/// that would spoil a known capture.
pub(crate) fn synchronize_unless_captured(device: Device) -> Result<bool> {
    let runtime = get()?;
    let Some(_whole) = WholeDevice::begin(runtime, device)? else { return Ok(false) };
    let _bound = BoundDevice::of(runtime, device)?;
    runtime.context_synchronize().map_err(|e| e.on(device)).map(|()| true)
}

/// Returns whether a known stream of the device is captured: gpupool's own, the thread's current one, a noted one, or
/// any blocking one; or whether captures are expected.
pub(crate) fn is_known_stream_capturing(runtime: &'static dyn Runtime, device: Device) -> Result<bool> {
    if count(&lock(&KNOWN).expecting, device) > 0 {
        return Ok(true);
    }
    let _bound = BoundDevice::of(runtime, device)?;
    let owned = alive_on(device);
    let noted = captured_on(device);
    let current = scope::scoped(device);
    let known = owned.iter().chain(noted.iter().map(|noted| &noted.stream)).chain(&current).map(Stream::raw);
    // The legacy default stream answers for the blocking ones.
    for stream in [RawStream::LEGACY].into_iter().chain(known) {
        // SAFETY: the legacy default stream always exists, clones keep our own alive, and the caller that noted or entered
        // another keeps it alive meanwhile.
        let status = unsafe { runtime.stream_capture_status(stream) }.map_err(|e| e.on(device))?;
        if status != CaptureStatus::None {
            return Ok(true);
        }
    }
    Ok(false)
}

// Waits for a whole device, in place of a device-wide event, which drivers before CUDA 12.5 lack, and HIP. Events of the
// known streams would not do: they miss a stream that may be gone, and so does the legacy default stream, unless that
// one blocks. Much may wait for one device, so the start of the last wait is kept: earlier work needs no other.

/// A point in the order of what the process's threads do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Point(u64);

static LAST: AtomicU64 = AtomicU64::new(0);
/// The start of the last wait for each device.
static BEGUN: Mutex<BTreeMap<Device, Point>> = Mutex::new(BTreeMap::new());

impl Point {
    /// Returns a point after all that the calling thread has done.
    pub(crate) fn now() -> Self {
        Self(LAST.fetch_add(1, Ordering::SeqCst))
    }
}

/// Waits for all work that was submitted to the device before a point, on any stream, destroyed ones too. Returns
/// false, with nothing done, if that would spoil a known capture.
pub(crate) fn wait_for_work_before(point: Point, device: Device) -> Result<bool> {
    if lock(&BEGUN).get(&device).is_some_and(|begun| *begun > point) {
        return Ok(true);
    }
    let begun = Point::now();
    if !synchronize_unless_captured(device)? {
        return Ok(false);
    }
    let mut all = lock(&BEGUN);
    let last = all.entry(device).or_insert(begun);
    *last = begun.max(*last);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::forked_child::assert_ends_in_forked_child;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no forks")]
    fn a_forked_child_ends_a_capture_though_the_lock_is_held_for_ever() -> Result<()> {
        let known = note_capture(&Stream::default_of(Device::from_ordinal(77)))?;
        let held = lock(&KNOWN);
        assert_ends_in_forked_child(|| drop(KnownCapture { number: known.number }));
        drop(held);
        drop(known);
        assert!(lock(&KNOWN).captured.iter().all(|noted| noted.stream.device().ordinal() != 77));
        Ok(())
    }
}
