//! Waits for a whole device, in place of a device-wide event, which drivers before CUDA 12.5 lack, and HIP. Events of the
//! known streams would not do: they miss a stream that may be gone, and so does the legacy default stream, unless that
//! one blocks. Much may wait for one device, so the start of the last wait is kept: earlier work needs no other.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::known_captures::synchronize_unless_captured;
use crate::error::Result;
use crate::ids::Device;
use crate::sync::lock;

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
