//! Other processes of the same user. A process shares blocks with them by tokens, which the others attach. Neighbours,
//! which are processes that use gpupool on the same device, give memory back before one of them fails.
//!
//! Both use the same parts: sockets, descriptors and pidfds (`socket.rs`), a table of messages between processes
//! (`codec.rs`), one thread that answers (`service.rs`) by one kind of connection (`connection.rs`), and tasks that
//! this thread tries until they are done (`tasks.rs`). Two modules handle the requests.
//!
//! Sharing (`sharing.rs`) hands out descriptors of blocks, and knows which processes hold them. (`shared_block.rs` is
//! below this module, because a pool that falls asleep looks there.) A freed block is reused once every process has let
//! it go, just as it waits for streams. The other side asks for a block (`owner.rs`, `attach.rs`), maps its region, and
//! lets the block go once its work is done. The region stays mapped for the next block there (`mapping_cache.rs`),
//! until the owner says that an extent goes back to the driver. A token (`token.rs`) holds the secret that the owner
//! asks for.
//!
//! Giving (`giving.rs`) tells what this process holds (`status.rs`, `claims.rs`), what it was told to keep
//! (`settings.rs`) and what the system lets it have (`system_limit.rs` above), and gives memory back. A process
//! remembers nothing about its neighbours except which are stopped. To learn more, it finds where the others listen
//! (`place.rs`), connects, asks (`ask.rs`), and uses the answers that come in time. It finds no ended process, and
//! passes by stopped ones. Requests come here by `help.rs`. All of this is off until a program uses it, or the
//! environment asks for it. A process that only looks at neighbours (`listing.rs`, `available.rs`) is not one.

mod ask;
mod attach;
mod available;
mod claims;
mod codec;
mod connection;
mod giving;
mod help;
mod listing;
mod mapping_cache;
mod owner;
mod place;
mod service;
mod settings;
mod sharing;
mod socket;
mod status;
mod tasks;
mod token;

use std::sync::Arc;

use rustix::process::geteuid;

use self::codec::BlockKey;
use self::token::TokenFields;
use super::report;
use super::serve::{self, Allocation};
use super::shared_block::{self, SharedBlock};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::process;
use crate::runtime::{self, KnownUuids, Stream, get};

pub(in crate::memory) use attach::{AttachedBuffer, attach};
#[cfg(feature = "python")]
pub(crate) use available::claim_unless_interrupted;
pub use available::{available_memory, claim, claim_within};
pub use claims::MemoryClaim;
#[cfg(all(feature = "fault-injection", feature = "python"))]
pub(crate) use claims::set_clock;
pub(in crate::memory) use giving::give_way;
pub use help::set_neighbour;
pub(crate) use help::{join, watch};
pub use listing::{Neighbour, NeighbourPool, neighbours, neighbours_with_pools};
pub use settings::NeighbourSettings;
pub use token::ShareToken;
pub(crate) use token::wrong_size;

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
    let name = service::start()?;
    let boot = token::boot()?;
    let device = KnownUuids::Devices.of(memory.device()?)?;
    let shared = shared_block::share(block, bytes, stream)?;
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
        key: BlockKey { block: shared.number, secret: shared.secret },
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
        processes: sharing::holders(shared.number),
    };
    Ok(shared_block::all().into_iter().filter(on_device).map(summarize).collect())
}
