//! Devices and streams as plain values. Nothing here calls a driver: a [`Device`] is an ordinal, a [`MemoryLocation`]
//! that or a NUMA node of the host, a [`RawStream`] is a stream's address as the vendor's API represents it, and the
//! capture types mirror CUDA's. Their use by a runtime is in [`crate::runtime`].

use std::ffi::{c_int, c_void};
use std::fmt;
use std::hash::{Hash, Hasher};

/// A GPU, by its ordinal among those the process sees (0, 1, ...), as in `cuDeviceGet`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Device(u32);

impl Device {
    /// Creates the device with this ordinal. Whether it exists is checked where it is used; [`crate::device`] checks at
    /// once.
    pub const fn from_ordinal(ordinal: u32) -> Self {
        Self(ordinal)
    }

    /// Returns the ordinal, for indexing.
    pub const fn ordinal(self) -> usize {
        self.0 as usize
    }

    /// Returns the ordinal as C takes it.
    pub(crate) const fn number(self) -> c_int {
        self.0.cast_signed()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

/// A NUMA node of the host, by its number, as `lscpu` lists them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct NumaNode(u32);

impl NumaNode {
    /// The one that every machine has.
    pub(crate) const FIRST: Self = Self(0);

    /// Creates the node with this number. Whether it exists is checked where it is used.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the number, for indexing.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NUMA node {} of the host", self.0)
    }
}

/// Where memory is (`CUmemLocation`): on a device, or pinned on a NUMA node of the host.
#[derive(Clone, Copy, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum MemoryLocation {
    /// Memory of this device.
    Device(Device),
    /// Pinned memory of the host on this node.
    Host(NumaNode),
}

impl MemoryLocation {
    /// Returns the device; none for memory of the host.
    #[inline]
    pub const fn device(self) -> Option<Device> {
        match self {
            Self::Device(device) => Some(device),
            Self::Host(_) => None,
        }
    }

    /// Returns the number of the NUMA node of the host; none for memory of a device.
    #[inline]
    pub const fn numa(self) -> Option<u32> {
        match self {
            Self::Device(_) => None,
            Self::Host(node) => Some(node.number()),
        }
    }

    /// Returns how C and snapshots number it: the ordinal, and -1 less the node's number for a NUMA node of the host.
    pub(crate) const fn number(self) -> i64 {
        match self {
            Self::Device(device) => device.0 as i64,
            Self::Host(node) => -1 - node.0 as i64,
        }
    }

    /// Returns all of it as one number, laid out as it is in memory, so that two are compared at once.
    #[inline]
    pub(crate) const fn packed(self) -> u64 {
        match self {
            Self::Device(device) => (device.0 as u64) << 32,
            Self::Host(node) => (node.0 as u64) << 32 | 1,
        }
    }
}

impl PartialEq for MemoryLocation {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.packed() == other.packed()
    }
}

impl PartialEq<Device> for MemoryLocation {
    #[inline]
    fn eq(&self, device: &Device) -> bool {
        *self == Self::Device(*device)
    }
}

impl Hash for MemoryLocation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.packed().hash(state);
    }
}

impl From<Device> for MemoryLocation {
    #[inline]
    fn from(device: Device) -> Self {
        Self::Device(device)
    }
}

impl From<NumaNode> for MemoryLocation {
    #[inline]
    fn from(node: NumaNode) -> Self {
        Self::Host(node)
    }
}

impl fmt::Display for MemoryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(f),
            Self::Host(node) => node.fmt(f),
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

    /// Returns the same stream by one name: the legacy default stream has two, of which HIP before 6.2 knows the null pointer
    /// alone.
    pub(crate) const fn by_one_name(self) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_one_word_and_a_node_is_no_device() {
        assert_eq!(size_of::<MemoryLocation>(), 8);
        let (device, node) = (Device::from_ordinal(1), NumaNode::from_number(1));
        let [on_device, on_node] = [MemoryLocation::from(device), node.into()];
        assert!(on_device == device && on_node != device && on_device != on_node && on_device < on_node);
        assert_eq!((on_device.device(), on_device.numa(), on_device.number()), (Some(device), None, 1));
        assert_eq!((on_node.device(), on_node.numa(), on_node.number()), (None, Some(1), -2));
        assert_eq!([on_device, on_node].map(|on| on.to_string()), ["device 1", "NUMA node 1 of the host"]);
    }
}
