//! Blocks that other processes use: a process shares one by a token, and others of the same user attach it.
//!
//! The owner knows the blocks that it shares (`shared.rs`), and which processes hold them (`server.rs`). A freed one is
//! reused once every process has let it go, as a block waits for streams. The other side asks for a block (`client.rs`,
//! `attach.rs`), maps its region (`mapping.rs`), and lets it go once its work is done (`attached.rs`). The region stays
//! mapped for the next block there (`mapping_cache.rs`), until the owner sends that an extent goes back to the driver.
//! Both sides share the broker's thread (`broker.rs`, `background.rs`), which listens under a random name, answers
//! processes that show the token's secret (`token.rs`), and sees by pidfds (`socket.rs`) which have ended. It also does
//! the work of a guest (`guest.rs`).

mod attach;
mod attached;
mod background;
mod broker;
mod client;
mod guest;
mod mapping;
mod mapping_cache;
mod server;
mod shared;
mod socket;
mod token;
mod wire;

use std::sync::Arc;

use rustix::process::geteuid;

use self::shared::SharedBlock;
use self::token::TokenFields;
use super::report;
use super::serve::{self, Allocation};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::process;
use crate::runtime::{self, KnownUuids, Stream, get};

pub(in crate::memory) use attach::attach;
pub(in crate::memory) use attached::AttachedBuffer;
pub(in crate::memory) use guest::{Guest, admit};
pub(in crate::memory) use shared::{recall, refuse_held};
pub(in crate::memory) use socket::{
    Packet, accepted, connected_to, is_ready, listener_at, pidfd, receive, send, timespec,
};
pub use token::ShareToken;
pub(crate) use token::wrong_size;
pub(in crate::memory) use token::{Reader, random};

/// Shares a block of so many bytes. A process that attaches it waits for what was submitted to the stream so far, if
/// one is given. If it `is_sent` it is held until another process has attached it.
pub(in crate::memory) fn share(
    block: Allocation,
    bytes: u64,
    stream: Option<&Stream>,
    is_sent: bool,
) -> Result<ShareToken> {
    process::refuse_forked()?;
    let (memory, runtime) = (block.cache.memory, get()?);
    let name = broker::start()?;
    let boot = token::boot()?;
    let device = KnownUuids::Devices.of(memory.device()?)?;
    let shared = shared::share(block, bytes, stream)?;
    let in_flight = if is_sent {
        shared.send().ok_or_else(|| Error::invalid_value("the buffer was freed while it was sent"))?
    } else {
        0
    };
    Ok(ShareToken::new(&TokenFields {
        kind: token::number_of(runtime.kind()),
        boot,
        user: geteuid().as_raw(),
        process: std::process::id(),
        name,
        secret: shared.secret,
        block: shared.number,
        in_flight,
        bytes,
        device,
    }))
}

/// Shares the live block that contains an address, as [`share`]; also returns the address's offset in the block.
///
/// # Errors
/// As [`share`]; `ErrorKind::InvalidValue` if there is no block.
pub(crate) fn share_at(address: u64, stream: Option<&Stream>, is_sent: bool) -> Result<(ShareToken, u64)> {
    let (start, bytes) = report::block_around(address)?;
    Ok((share(serve::find(start, None)?, bytes, stream, is_sent)?, address - start))
}

/// A block that other processes have attached, as summaries show it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SharedSummary {
    /// The block's address.
    pub address: u64,
    /// The requested size in bytes.
    pub nbytes: u64,
    /// Whether this process has freed it, and only other processes keep it.
    pub is_freed: bool,
    /// The processes that have attached it.
    pub processes: Vec<i32>,
}

/// Returns the device's shared blocks that other processes have attached.
///
/// # Errors
/// As [`device`](crate::device).
pub fn shared_blocks(device: Device) -> Result<Vec<SharedSummary>> {
    let device = runtime::existing(device)?;
    let on_device =
        |shared: &Arc<SharedBlock>| shared.block.cache.memory.location == device && shared.sharing.holders() > 0;
    let summarize = |shared: Arc<SharedBlock>| SharedSummary {
        address: shared.block.address(),
        nbytes: shared.bytes,
        is_freed: shared.sharing.is_freed(),
        processes: server::holders(shared.number),
    };
    Ok(shared::all().into_iter().filter(on_device).map(summarize).collect())
}
