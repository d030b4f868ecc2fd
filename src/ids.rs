//! Devices and streams as plain values.
//!
//! Nothing here calls a driver: a [`Device`] is an ordinal, a [`RawStream`] is a stream's address as the vendor's API
//! sees it, and the capture types mirror CUDA's. What a runtime does with them is in [`crate::runtime`].

use std::ffi::c_void;
use std::fmt;

/// A GPU, by its ordinal among those the process sees (0, 1, ...), as in `cuDeviceGet`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Device(u32);

impl Device {
    /// Makes the device with this ordinal. Whether it exists is checked where it is used; [`crate::device`] checks at
    /// once.
    pub const fn from_ordinal(ordinal: u32) -> Self {
        Self(ordinal)
    }

    /// Returns the ordinal, for indexing.
    pub const fn ordinal(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

/// A stream's address: `CUstream`, `cudaStream_t` or `hipStream_t` as a number.
///
/// Three addresses are names, not pointers, and stand for a stream of the thread's current device:
/// 0 and 1 the legacy default stream, 2 the per-thread default stream.
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

/// Whether work on a stream is recorded into a graph (`CUstreamCaptureStatus`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureStatus {
    /// Work runs.
    None,
    /// Work is recorded.
    Active,
    /// A forbidden call spoiled the capture; it can only be ended.
    Invalidated,
}
