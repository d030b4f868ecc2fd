//! Devices and streams as plain values.
//!
//! Nothing here calls a driver: a [`Device`] is an ordinal, or the number of a NUMA node of the host, a [`RawStream`]
//! is a stream's address as the vendor's API represents it, and the capture types mirror CUDA's. Their use by a runtime
//! is in [`crate::runtime`].

use std::ffi::{c_int, c_void};
use std::fmt;

/// A GPU, by its ordinal among those the process sees (0, 1, ...), as in `cuDeviceGet`.
///
/// Within the crate it is also a NUMA node of the host, whose pinned memory is managed as a device's memory is. Such a
/// value leaves the crate only in reports on pinned memory, and no call for a device accepts one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Device(u64);

/// Set in the number of a NUMA node of the host; no ordinal is as large.
const HOST_NODE: u64 = 1 << 32;

impl Device {
    /// Creates the device with this ordinal. Whether it exists is checked where it is used; [`crate::device`] checks at
    /// once.
    pub const fn from_ordinal(ordinal: u32) -> Self {
        Self(ordinal as u64)
    }

    /// Makes the NUMA node of the host with this number.
    pub(crate) const fn of_host_node(node: u32) -> Self {
        Self(HOST_NODE | node as u64)
    }

    /// Returns the number of the NUMA node of the host that this represents; none for a device.
    #[inline]
    pub const fn host_node(self) -> Option<u32> {
        if self.0 & HOST_NODE == 0 { None } else { Some(self.0 as u32) }
    }

    /// Returns how C and snapshots number it: the ordinal, and -1 less the node's number for a NUMA node of the host.
    pub(crate) const fn number(self) -> i64 {
        match self.host_node() {
            None => self.0.cast_signed(),
            Some(node) => -1 - node as i64,
        }
    }

    /// Returns the ordinal, for indexing.
    pub const fn ordinal(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_node() {
            None => write!(f, "device {}", self.0),
            Some(node) => write!(f, "NUMA node {node} of the host"),
        }
    }
}

/// A stream's address: `CUstream`, `cudaStream_t` or `hipStream_t` as a number.
///
/// Three addresses are names, not pointers, and represent a stream of the thread's current device: 0 and 1 the legacy
/// default stream, 2 the per-thread default stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct RawStream(usize);

impl RawStream {
    /// The legacy default stream of whichever device is current.
    pub const LEGACY: Self = Self(0);
    /// The calling thread's own default stream on whichever device is current.
    pub const PER_THREAD: Self = Self(2);

    pub(crate) const fn from_address(address: usize) -> Self {
        Self(address)
    }

    #[inline]
    pub(crate) fn from_ptr(stream: *mut c_void) -> Self {
        Self(stream.addr())
    }

    /// Returns the address as a number.
    pub const fn address(self) -> usize {
        self.0
    }

    /// Returns the address as the C API takes it.
    pub const fn as_ptr(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0)
    }

    /// Returns the stream as every HIP takes it: those before 6.2 know the legacy default stream by the null pointer
    /// alone.
    pub(crate) const fn as_hip_knows_it(self) -> Self {
        if self.0 == 1 { Self::LEGACY } else { self }
    }

    /// Returns whether this is the legacy default stream, by either of its names.
    pub const fn is_legacy(self) -> bool {
        self.0 <= 1
    }

    /// Returns whether this is one of the default streams, which name a stream of the current device.
    pub const fn is_default(self) -> bool {
        self.0 <= 2
    }
}

/// Which calls a thread may make while a stream is captured (`CUstreamCaptureMode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureMode {
    /// No potentially unsafe call while any thread captures in this mode.
    Global,
    /// No potentially unsafe call while this thread captures.
    ThreadLocal,
    /// Every call is allowed.
    Relaxed,
}

impl CaptureMode {
    /// Returns the number that CUDA and HIP have for it.
    pub(crate) const fn number(self) -> c_int {
        match self {
            Self::Global => 0,
            Self::ThreadLocal => 1,
            Self::Relaxed => 2,
        }
    }

    /// Returns the mode of a number that a driver wrote; of one that is not known, the strictest.
    pub(crate) const fn of(number: c_int) -> Self {
        match number {
            1 => Self::ThreadLocal,
            2 => Self::Relaxed,
            _ => Self::Global,
        }
    }
}

/// Whether work on a stream is recorded into a graph (`CUstreamCaptureStatus`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureStatus {
    /// Work runs.
    None,
    /// Work is recorded.
    Active,
    /// A forbidden call invalidated the capture; it can only be ended.
    Invalidated,
    /// This is the legacy default stream, which is never captured itself, and a blocking stream of its device is captured
    /// (`CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`). Any use of it would invalidate that capture: to submit work, to record or
    /// query it, or to wait.
    Implicit,
}

impl CaptureStatus {
    /// Returns the status of a number that CUDA or HIP wrote, if it is known.
    pub(crate) const fn known(number: c_int) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::Active),
            2 => Some(Self::Invalidated),
            _ => None,
        }
    }

    /// As [`CaptureStatus::known`]. A stream whose status is not known counts as captured: its memory may be part of a graph.
    pub(crate) fn of(number: c_int) -> Self {
        Self::known(number).unwrap_or(Self::Active)
    }
}
