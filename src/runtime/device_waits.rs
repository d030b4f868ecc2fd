//! Waits for a whole device, in place of an event of one: drivers before CUDA 12.5 have no such event.
//!
//! Events of the streams that are known would not do. What stands for a whole device is a stream that may be gone by then: none
//! of those, and not seen by the legacy default stream either, unless it blocks. Much may wait for one device; so it is noted
//! when the last wait began, and what was submitted before that needs no other.

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
/// Where the last wait for each device began.
static BEGUN: Mutex<BTreeMap<Device, Point>> = Mutex::new(BTreeMap::new());

impl Point {
    /// Returns a point that is after all that the calling thread has done.
    pub(crate) fn now() -> Self {
        Self(LAST.fetch_add(1, Ordering::SeqCst))
    }
}

/// Waits for all work that was submitted to the device before a point, on whichever streams, destroyed ones too. Returns
/// false, with nothing done, while a capture is known of there, which that would spoil.
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
