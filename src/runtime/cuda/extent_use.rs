//! What extents are made for: for other processes, for network cards, or for this process alone. A driver announces the
//! uses by attributes, and may still refuse them. So the first extent of a device tries them in turn, and its use is
//! kept.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::runtime::ExtentUse;

#[derive(Debug, Default)]
pub(super) struct KnownUse(AtomicU8);

impl KnownUse {
    const KNOWN: u8 = 4;

    pub(super) fn get(&self) -> Option<ExtentUse> {
        let bits = self.0.load(Ordering::Relaxed);
        (bits & Self::KNOWN != 0).then_some(ExtentUse { is_shareable: bits & 1 != 0, is_rdma: bits & 2 != 0 })
    }

    pub(super) fn set(&self, extent_use: ExtentUse) {
        let bits = u8::from(extent_use.is_shareable) | u8::from(extent_use.is_rdma) << 1;
        self.0.store(bits | Self::KNOWN, Ordering::Relaxed);
    }
}

/// Returns the uses to try in turn, if the driver refuses the first.
pub(super) fn lesser(wanted: ExtentUse) -> impl Iterator<Item = ExtentUse> {
    let tried = [wanted, ExtentUse { is_rdma: false, ..wanted }, ExtentUse::PRIVATE];
    let is_new = move |index: usize| tried[..index].iter().all(|before| *before != tried[index]);
    (0..tried.len()).filter(move |&index| is_new(index)).map(move |index| tried[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lesser_use_is_tried_once() {
        let all = ExtentUse { is_shareable: true, is_rdma: true };
        let shareable = ExtentUse { is_shareable: true, is_rdma: false };
        let rdma = ExtentUse { is_shareable: false, is_rdma: true };
        assert_eq!(lesser(all).collect::<Vec<_>>(), [all, shareable, ExtentUse::PRIVATE]);
        assert_eq!(lesser(shareable).collect::<Vec<_>>(), [shareable, ExtentUse::PRIVATE]);
        assert_eq!(lesser(rdma).collect::<Vec<_>>(), [rdma, ExtentUse::PRIVATE]);
        assert_eq!(lesser(ExtentUse::PRIVATE).collect::<Vec<_>>(), [ExtentUse::PRIVATE]);
    }
}
