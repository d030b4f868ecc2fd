//! How far a request goes to find pages.

/// How far a request goes to find pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::memory::serve) enum Effort {
    /// Free pages of the same pool that are ready now.
    Ready,
    /// Free pages of the same pool, waiting for the streams that used them.
    Pool,
    /// Free pages of the device's pools that help others too.
    Device,
}
