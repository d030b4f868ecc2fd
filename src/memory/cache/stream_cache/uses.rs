//! Users of a cache's blocks other than its own stream: further streams and other processes, which a freed block waits
//! for, and other pools, which it does not wait for.

use std::collections::HashMap;
use std::sync::Arc;

use super::StreamCache;
use crate::memory::cache::block_user::BlockUser;
use crate::memory::cache::sharing::Sharing;

fn has(users: &[BlockUser], wanted: &BlockUser) -> bool {
    users.iter().any(|user| user.is(wanted))
}

impl StreamCache {
    /// Notes another user of a live block.
    pub(in crate::memory) fn add_use(&self, offset: u64, user: BlockUser) {
        self.uses.change(|uses| {
            let users = uses.entry(offset).or_default();
            if users.iter().all(|known| !known.is(&user)) {
                users.push(user);
            }
        });
    }

    /// Returns how other processes use a live block, from now on; made if it is not shared yet.
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

    /// Returns whether any block has users other than its stream.
    #[inline]
    pub(in crate::memory) fn has_uses(&self) -> bool {
        !self.uses.is_empty()
    }

    /// Returns the offsets of blocks that other pools use.
    pub(in crate::memory) fn used_by_other_pools(&self) -> Vec<u64> {
        self.uses.change(|uses| {
            let lent = uses.iter().filter(|(_, users)| has(users, &BlockUser::OtherPool));
            lent.map(|(offset, _)| *offset).collect()
        })
    }

    pub(in crate::memory) fn is_gpupools(&self, offset: u64) -> bool {
        let is_own = |users: &Vec<BlockUser>| has(users, &BlockUser::Gpupool);
        self.has_uses() && self.uses.change(|uses| uses.get(&offset).is_some_and(is_own))
    }

    pub(in crate::memory) fn all_uses(&self) -> Vec<(u64, Vec<BlockUser>)> {
        let copy = |(offset, users): (&u64, &Vec<BlockUser>)| (*offset, users.clone());
        self.uses.change(|uses| uses.iter().map(copy).collect())
    }

    /// Forgets the further users of all blocks but those at kept offsets, whose streams may be gone by the free.
    /// Returns the forgotten ones, to be dropped without locks: the last clone of a stream destroys it.
    #[must_use]
    pub(in crate::memory) fn keep_uses(&self, is_kept: impl Fn(u64) -> bool) -> HashMap<u64, Vec<BlockUser>> {
        self.uses.change(|uses| {
            let (kept, forgotten) = std::mem::take(uses).into_iter().partition(|(offset, _)| is_kept(*offset));
            *uses = kept;
            uses.values_mut().for_each(|users| users.iter_mut().for_each(BlockUser::become_fleeting));
            forgotten
        })
    }

    /// Notes that the further streams of a block may be gone by its free.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn let_streams_end(&self, offset: u64) {
        self.uses.change(|uses| uses.get_mut(&offset).into_iter().flatten().for_each(BlockUser::become_fleeting));
    }

    /// Returns the further users of a block, which end with it.
    pub(in crate::memory) fn take_uses(&self, offset: u64) -> Vec<BlockUser> {
        self.uses.change(|uses| uses.remove(&offset).unwrap_or_default())
    }
}
