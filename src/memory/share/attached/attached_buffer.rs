//! What a buffer of attached memory has in place of a block of its own.

use std::sync::{Arc, Mutex};

use super::retired::{Use, retire};
use crate::error::{Error, Result};
use crate::memory::cache::{BlockUser, Waiting};
use crate::memory::device::{DeviceMemory, reaches};
use crate::process;
use crate::runtime::Stream;
use crate::sync::{ThisThread, lock};

/// Attached memory, let go by [`AttachedBuffer::free`].
#[derive(Debug)]
pub(in crate::memory) struct AttachedBuffer {
    used: Use,
    address: u64,
    bytes: u64,
    memory: &'static DeviceMemory,
    users: Mutex<Vec<BlockUser>>,
}

impl AttachedBuffer {
    pub(in crate::memory::share) fn new(used: Use, address: u64, bytes: u64, memory: &'static DeviceMemory) -> Self {
        Self { used, address, bytes, memory, users: Mutex::default() }
    }

    pub(in crate::memory) const fn address(&self) -> u64 {
        self.address
    }

    pub(in crate::memory) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Refuses a stream of a device that the memory was not attached for, and that is no peer which reaches it.
    pub(in crate::memory) fn check_stream(&self, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        let (own, other) = (self.memory.device, stream.device());
        let home = match &self.used {
            Use::Mapped(attachment) => attachment.home,
            Use::Own(_) => own,
        };
        if other == own || (self.memory.range.is_peer(other) && reaches(other, home)?) {
            return Ok(());
        }
        Err(Error::invalid_value(format!(
            "{:#x} was attached for {own}, and a stream of {other} cannot use it: give a stream of {own}, attach the token for \
             {other} as well, or call enable_peer_access first",
            self.address
        )))
    }

    /// Keeps the memory, once freed, from being let go before the stream's work at that time is done.
    pub(in crate::memory) fn record_stream(&self, stream: &Stream, is_fleeting: bool) -> Result<()> {
        self.check_stream(stream)?;
        let user = BlockUser::new(stream, ThisThread::get());
        let user = if is_fleeting { user.fleeting() } else { user };
        let mut users = lock(&self.users);
        if users.iter().all(|known| !known.is(&user)) {
            users.push(user);
        }
        Ok(())
    }

    /// Lets the memory go once the work so far on its streams is done: `own`, which need not be alive, and the one that is
    /// named.
    pub(in crate::memory) fn free(self, own: &Stream, on: Option<&Stream>) -> Result<()> {
        process::refuse_forked()?;
        let thread = ThisThread::get();
        let mut users = self.users.into_inner().unwrap_or_default();
        let own_user = BlockUser::new(own, thread);
        match on {
            // Of a stream that may be gone, another one may have the address.
            Some(on) if on.raw() == own.raw() && (own.is_lasting() || own.raw().is_default()) => users.push(own_user),
            Some(on) => users.extend([BlockUser::new(on, thread), own_user.fleeting()]),
            None => users.push(own_user.fleeting()),
        }
        let until = Waiting::for_users(0, &users, &self.memory.events, thread).until;
        retire(self.used, until, self.memory.device);
        Ok(())
    }
}

/// A buffer is sent between threads.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Arc<AttachedBuffer>>();
};
