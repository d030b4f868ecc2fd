//! What travels to other processes: extents and events, by file descriptors and names.

use std::os::fd::{BorrowedFd, OwnedFd};

/// What the extents of a device can be used for beside this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentUse {
    /// Whether they can be exported to other processes, as a file descriptor.
    pub is_shareable: bool,
    /// Whether network cards can register them (GPUDirect RDMA).
    pub is_rdma: bool,
}

impl ExtentUse {
    /// For this process alone.
    pub const PRIVATE: Self = Self { is_shareable: false, is_rdma: false };
}

/// An event as another process is told of it.
#[derive(Debug)]
pub struct ExportedEvent {
    /// Its name (`CUipcEventHandle`).
    pub name: [u8; 64],
    /// What goes with the name, of simulated devices alone.
    pub descriptor: Option<OwnedFd>,
}

/// A device's UUID, the same in every process.
pub type DeviceUuid = [u8; 16];

/// An extent as another process exported it.
pub type ExportedExtent<'a> = BorrowedFd<'a>;
