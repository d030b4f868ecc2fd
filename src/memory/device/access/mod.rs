//! Which devices may read and write a device's memory: its peers, and all that is mapped for them.

mod mapped;
mod peers;

pub(super) use mapped::Mapped;
pub(in crate::memory) use mapped::Placed;
pub(super) use peers::Peers;
pub(in crate::memory) use peers::reaches;
