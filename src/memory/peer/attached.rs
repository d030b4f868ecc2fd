//! Attached memory: what a buffer of it has instead of a block of its own, and how it is let go. Once a buffer is
//! freed, the thread that talks to other processes lets its memory go as soon as its work is done: no caller waits, and the owner can reuse
//! the memory at once. The memory stays mapped for the next time, or is unmapped.

use std::sync::{Arc, Mutex};

use super::codec::{BlockKey, BlockQuestion, Question};
use super::mapping::AttachedMapping;
use super::mapping_cache::{self, MappedBlock};
use super::owner::OwnerProcess;
use super::tasks;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::cache::{BlockUser, Waiting};
use crate::memory::device::{DeviceMemory, Patience, reaches};
use crate::memory::shared_block::Hold;
use crate::process;
use crate::runtime::Stream;
use crate::sync::{ThisThread, lock};

/// Attached memory, let go by [`AttachedBuffer::free`].
#[derive(Debug)]
pub(in crate::memory) struct AttachedBuffer {
    hold: BlockHold,
    pub(in crate::memory) address: u64,
    pub(in crate::memory) bytes: u64,
    memory: &'static DeviceMemory,
    /// Its own stream, which the thread that attached it named.
    own: BlockUser,
    users: Mutex<Vec<BlockUser>>,
}

/// What prevents the owner from reusing the memory.
#[derive(Debug)]
pub(super) enum BlockHold {
    /// A block of another process, which is held there.
    Others(Attachment),
    /// A block of this process, attached by itself.
    Own(Hold),
}

/// A block of another process, in a region that is mapped here.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) block: MappedBlock,
    /// The device that has it.
    pub(super) source: Device,
    pub(super) owner: Arc<OwnerProcess>,
    pub(super) key: BlockKey,
    /// Its mapping, once that was taken out of the cache: it ends before the block is let go.
    pub(super) ending: Option<Box<AttachedMapping>>,
}

impl Attachment {
    /// Returns what lets it go, with the number of the mapping that stays, or 0.
    const fn let_go(&self, mapping: u64) -> Question {
        Question::OfBlock(self.key, BlockQuestion::LetGo { mapping })
    }

    /// Lets the block go. Its region stays mapped if possible; otherwise it is unmapped before. False if there is no
    /// room for the message to the owner: then this is to be called again.
    ///
    /// # Errors
    /// Those of the driver; then it is to be called again, too.
    fn end(&mut self) -> Result<bool> {
        if self.ending.is_none()
            && let Some(channel) = self.owner.channel()
            && mapping_cache::may_stay(&self.block)
        {
            // If this fails, the owner could not ask for the end of the mapping any more, so that does not stay.
            if let Ok(is_sent) = channel.send(&self.let_go(self.block.mapping)) {
                if is_sent {
                    mapping_cache::end_use(&self.block, true);
                }
                return Ok(is_sent);
            }
        }
        if self.ending.is_none() {
            self.ending = mapping_cache::take_last(&self.block).map(Box::new);
        }
        if let Some(mapping) = &mut self.ending {
            mapping.end()?;
            self.ending = None;
        }
        let is_let_go = self.owner.notify(&self.let_go(0));
        if is_let_go {
            mapping_cache::end_use(&self.block, false);
        }
        Ok(is_let_go)
    }
}

impl AttachedBuffer {
    /// Attached memory that the calling thread uses on its own stream.
    pub(super) fn new(hold: BlockHold, address: u64, bytes: u64, memory: &'static DeviceMemory, own: &Stream) -> Self {
        let own = BlockUser::new(own);
        Self { hold, address, bytes, memory, own, users: Mutex::default() }
    }

    /// Refuses a stream of a device that cannot reach the memory.
    pub(in crate::memory) fn check_stream(&self, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        let (own, other) = (self.memory.location, stream.device());
        let reaches_source = || match &self.hold {
            BlockHold::Others(attachment) => reaches(other, attachment.source),
            BlockHold::Own(_) => Ok(true),
        };
        if own == other || (self.memory.range.peers.has(other) && reaches_source()?) {
            return Ok(());
        }
        Err(Error::invalid_value(format!(
            "{:#x} was attached for {own}, and a stream of {other} cannot use it: give a stream of {own}, attach the token for \
             {other} as well, or call enable_peer_access first",
            self.address
        )))
    }

    /// Returns whether the thread can name its own stream.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn is_nameable_by(&self, thread: ThisThread) -> bool {
        self.own.is_nameable_by(thread)
    }

    /// Keeps the memory, once freed, until the stream's work at that time is done.
    pub(in crate::memory) fn record_stream(&self, stream: &Stream, is_fleeting: bool) -> Result<()> {
        self.check_stream(stream)?;
        let user = BlockUser::new(stream);
        let user = if is_fleeting { user.fleeting() } else { user };
        let mut users = lock(&self.users);
        if users.iter().all(|known| !known.is(&user)) {
            users.push(user);
        }
        Ok(())
    }

    /// Lets the memory go once the work so far is done on its streams: `own`, which may be gone, and `on`.
    pub(in crate::memory) fn free(self, own: &Stream, on: Option<&Stream>) -> Result<()> {
        process::refuse_forked()?;
        let thread = ThisThread::get();
        let mut users = self.users.into_inner().unwrap_or_default();
        let on = on.map(BlockUser::new);
        // Of a stream that may be gone, another one may have the address.
        let lasts = own.is_lasting() || own.raw().is_default();
        if !(lasts && on.as_ref().is_some_and(|on| on.is(&self.own))) {
            users.push(self.own.fleeting());
        }
        users.extend(on);
        let (mut hold, memory) = (self.hold, self.memory);
        let mut until = Waiting::for_users(0, &users, &memory.events, Some(thread)).until;
        tasks::later(move || {
            Ok(until.is_done(&memory.events, Patience::Ask)?
                && match &mut hold {
                    BlockHold::Others(attachment) => attachment.end()?,
                    // It goes with this.
                    BlockHold::Own(_hold) => true,
                })
        });
        Ok(())
    }
}

const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Arc<AttachedBuffer>>();
};
