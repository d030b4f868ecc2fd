//! What is sent to other processes: extents and events, by file descriptors and names, and which device is meant.

mod known_uuids;

use std::os::fd::{BorrowedFd, OwnedFd};

pub(crate) use known_uuids::KnownUuids;

/// What the extents of a device can be used for outside this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentUse {
    /// Whether they can be exported to other processes, as a file descriptor.
    pub is_shareable: bool,
    /// Whether network cards can register them (GPUDirect RDMA).
    pub is_rdma: bool,
}

impl ExtentUse {
    /// Only for this process.
    pub const PRIVATE: Self = Self { is_shareable: false, is_rdma: false };
}

/// An event as it is exported to another process.
#[derive(Debug)]
pub struct ExportedEvent {
    /// Its name (`CUipcEventHandle`).
    pub name: [u8; 64],
    /// A descriptor that belongs to the name; only simulated devices have one.
    pub descriptor: Option<OwnedFd>,
}

/// A device's UUID, the same in every process.
pub type DeviceUuid = [u8; 16];

/// An extent as another process exported it.
pub type ExportedExtent<'a> = BorrowedFd<'a>;
