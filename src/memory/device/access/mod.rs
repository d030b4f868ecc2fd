//! Access to a device's memory: its peers, what is mapped for them, and the extents that the driver works on.

mod busy_extents;
mod mapped;
mod peers;

pub(super) use busy_extents::ExtentTurn;
pub(super) use mapped::Mapped;
pub(in crate::memory) use mapped::Placed;
pub(in crate::memory) use peers::{Peers, reaches};
