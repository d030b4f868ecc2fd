//! Known captures: those on streams that can be queried, and announced ones. No driver reports all captures on a
//! device. So streams are queried one by one, also those that a caller announces to capture, or these count as captured
//! if their stream may be gone by then. A call for a whole device, which would invalidate every capture there, is made
//! while none is announced, and an announcement waits for such calls to end: so no capture begins during one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::stream::alive_on;
use super::{BoundDevice, Runtime, Stream, existing, get, guard};
use crate::error::{Error, Result};
use crate::ids::{CaptureStatus, Device, RawStream};
use crate::process;
use crate::sync::{MayWait, lock, wait};

/// What is announced, and the calls that must not meet it.
struct KnownCaptures {
    /// Streams that a caller of [`note_capture`] is about to capture. The same stream may be noted again.
    captured: Vec<Arc<Stream>>,
    /// The device of each caller of [`expect_captures`].
    expecting: Vec<Device>,
    /// That of each call for a whole device that is in progress.
    whole: Vec<Device>,
}

static KNOWN: Mutex<KnownCaptures> =
    Mutex::new(KnownCaptures { captured: Vec::new(), expecting: Vec::new(), whole: Vec::new() });
static ENDED: Condvar = Condvar::new();

/// Takes one of the device's entries out; false if there is none.
fn take_one(devices: &mut Vec<Device>, device: Device) -> bool {
    let place = devices.iter().position(|one| *one == device);
    place.map(|place| devices.swap_remove(place)).is_some()
}

/// Waits until no call for the whole device is in progress. None begins after an announcement. One that destroys handles
/// may be in a function of the program's.
fn wait_for_calls(mut known: MutexGuard<'_, KnownCaptures>, device: Device) -> Result<()> {
    let may_wait = MayWait::until("no call for the whole device, such as one that destroys handles, is in progress");
    while known.whole.contains(&device) {
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
    fn begin_unannounced(device: Device, gone: &[Arc<Stream>]) -> Option<Self> {
        let mut known = lock(&KNOWN);
        let is_gone = |noted: &Arc<Stream>| gone.iter().any(|gone| Arc::ptr_eq(gone, noted));
        let is_announced = known.captured.iter().any(|noted| noted.device() == device && !is_gone(noted));
        if is_announced || known.expecting.contains(&device) {
            return None;
        }
        known.whole.push(device);
        Some(Self { device })
    }

    /// Begins a call for a whole device; none while there is a known capture.
    pub(crate) fn begin(runtime: &'static dyn Runtime, device: Device) -> Result<Option<Self>> {
        // Before the queries, so that no announced capture begins in between.
        let Some(whole) = Self::begin_unannounced(device, &gone_on(runtime, device)?) else { return Ok(None) };
        Ok(if is_known_stream_capturing(runtime, device)? { None } else { Some(whole) })
    }
}

fn captured_on(device: Device) -> Vec<Arc<Stream>> {
    lock(&KNOWN).captured.iter().filter(|noted| noted.device() == device).cloned().collect()
}

/// Returns the announced captures of a device that cannot begin any more, as their streams went with their contexts.
fn gone_on(runtime: &'static dyn Runtime, device: Device) -> Result<Vec<Arc<Stream>>> {
    let mut noted = captured_on(device);
    if noted.is_empty() {
        return Ok(noted);
    }
    let _bound = BoundDevice::of(runtime, device)?;
    // SAFETY: the caller that noted a stream keeps it alive meanwhile.
    noted.retain(|stream| unsafe { runtime.stream_is_gone(stream.raw()) });
    Ok(noted)
}

impl Drop for WholeDevice {
    fn drop(&mut self) {
        take_one(&mut lock(&KNOWN).whole, self.device);
        ENDED.notify_all();
    }
}

/// A note that a stream is captured. The stream is queried as long as this lives.
#[derive(Debug)]
pub(crate) struct KnownCapture {
    stream: Arc<Stream>,
}

/// Notes that a foreign stream is about to be captured, which no driver reports. Its owner keeps it alive meanwhile.
///
/// # Errors
/// `ErrorKind::InvalidValue` in a callback that may not wait.
pub(crate) fn note_capture(stream: &Stream) -> Result<KnownCapture> {
    let mut known = lock(&KNOWN);
    let noted = KnownCapture { stream: Arc::new(stream.clone()) };
    known.captured.push(Arc::clone(&noted.stream));
    wait_for_calls(known, stream.device())?;
    Ok(noted)
}

impl Drop for KnownCapture {
    fn drop(&mut self) {
        // The lock may be held for ever in a forked child. The last clone of a stream destroys it, which this is, outside the
        // lock.
        if !process::is_forked() {
            lock(&KNOWN).captured.retain(|noted| !Arc::ptr_eq(noted, &self.stream));
        }
    }
}

/// Assumes that any streams of the device are captured, until as many calls of [`end_expecting_captures`].
///
/// # Errors
/// `ErrorKind::InvalidValue` in a callback that may not wait.
pub(crate) fn expect_captures(device: Device) -> Result<()> {
    let mut known = lock(&KNOWN);
    known.expecting.push(device);
    wait_for_calls(known, device).inspect_err(|_| _ = end_expecting_captures(device))
}

/// Ends one call of [`expect_captures`]; false if there is none.
pub(crate) fn end_expecting_captures(device: Device) -> bool {
    take_one(&mut lock(&KNOWN).expecting, device)
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
    if lock(&KNOWN).expecting.contains(&device) {
        return Ok(true);
    }
    let _bound = BoundDevice::of(runtime, device)?;
    let owned = alive_on(device);
    let noted = captured_on(device);
    let current = guard::scoped(device);
    let known = owned.iter().chain(noted.iter().map(Arc::as_ref)).chain(&current).map(Stream::raw);
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
        assert_ends_in_forked_child(|| drop(KnownCapture { stream: Arc::clone(&known.stream) }));
        drop(held);
        drop(known);
        assert!(lock(&KNOWN).captured.iter().all(|noted| noted.device().ordinal() != 77));
        Ok(())
    }
}
