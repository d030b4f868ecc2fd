//! Who uses a cache's blocks beside its own stream: further streams and other processes, for which a freed block waits, and
//! other pools, for which it does not.

use std::collections::HashMap;
use std::sync::Arc;

use super::StreamCache;
use crate::memory::cache::block_user::BlockUser;
use crate::memory::cache::sharing::Sharing;

/// Returns whether this one is among the users of a block.
fn has(users: &[BlockUser], wanted: &BlockUser) -> bool {
    users.iter().any(|user| user.is(wanted))
}

impl StreamCache {
    /// Notes who else uses a live block.
    pub(in crate::memory) fn add_use(&self, offset: u64, user: BlockUser) {
        self.uses.change(|uses| {
            let users = uses.entry(offset).or_default();
            if users.iter().all(|known| !known.is(&user)) {
                users.push(user);
            }
        });
    }

    /// Returns what other processes have of a live block, from now on; made if it is not shared yet.
    pub(in crate::memory) fn share_block(&self, offset: u64) -> Arc<Sharing> {
        self.uses.change(|uses| {
            let users = uses.entry(offset).or_default();
            let known = users.iter().find_map(BlockUser::sharing);
            known.cloned().unwrap_or_else(|| {
                let sharing = Arc::<Sharing>::default();
                users.push(BlockUser::Processes(Arc::clone(&sharing)));
                sharing
            })
        })
    }

    /// Returns whether any block is used by further streams, other processes or other pools.
    #[inline]
    pub(in crate::memory) fn has_uses(&self) -> bool {
        !self.uses.is_empty()
    }

    /// Returns the blocks that other pools use, as offsets.
    pub(in crate::memory) fn used_by_other_pools(&self) -> Vec<u64> {
        self.uses.change(|uses| {
            let lent = uses.iter().filter(|(_, users)| has(users, &BlockUser::OtherPool));
            lent.map(|(offset, _)| *offset).collect()
        })
    }

    /// Returns whether gpupool itself holds the block at the offset.
    pub(in crate::memory) fn is_gpupools(&self, offset: u64) -> bool {
        let is_own = |users: &Vec<BlockUser>| has(users, &BlockUser::Gpupool);
        self.has_uses() && self.uses.change(|uses| uses.get(&offset).is_some_and(is_own))
    }

    /// Returns the further streams that use each block.
    pub(in crate::memory) fn all_uses(&self) -> Vec<(u64, Vec<BlockUser>)> {
        let copy = |(offset, users): (&u64, &Vec<BlockUser>)| (*offset, users.clone());
        self.uses.change(|uses| uses.iter().map(copy).collect())
    }

    /// Forgets the further streams that use blocks, but for those at the offsets that are kept, whose streams may be gone
    /// by the time they are freed. Returns what was forgotten: the last clone of a stream destroys it, which is for a time
    /// without locks.
    #[must_use]
    pub(in crate::memory) fn keep_uses(&self, is_kept: impl Fn(u64) -> bool) -> HashMap<u64, Vec<BlockUser>> {
        self.uses.change(|uses| {
            let (kept, forgotten) = std::mem::take(uses).into_iter().partition(|(offset, _)| is_kept(*offset));
            *uses = kept;
            uses.values_mut().for_each(|users| users.iter_mut().for_each(BlockUser::become_fleeting));
            forgotten
        })
    }

    /// Notes that the further streams that use a block may be gone by the time it is freed.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn let_streams_end(&self, offset: u64) {
        self.uses.change(|uses| uses.get_mut(&offset).into_iter().flatten().for_each(BlockUser::become_fleeting));
    }

    /// Returns the further streams that use a block, which end with it.
    pub(in crate::memory) fn take_uses(&self, offset: u64) -> Vec<BlockUser> {
        self.uses.change(|uses| uses.remove(&offset).unwrap_or_default())
    }
}
