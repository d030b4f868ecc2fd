//! Blocks that travel: a process shares one by a token, and others of the same user attach it.
//!
//! The owner's side (`sharing/`): the books of what is shared (`shared.rs`) and of who holds it (`peers.rs`), and one thread
//! (`broker.rs`) that listens under a random name, answers processes that show the token's secret (`connection.rs`), and learns
//! from pidfds which of them have ended. A shared block that is freed waits until every process has let go, as one waits for
//! streams.
//! The other side (`attached/`) asks, maps what it gets, and has the stream wait for the owner's events. What is freed is let go
//! by a thread of its own process once its work is done (`retired.rs`), so that the owner is told only of work that is over.
//! A block lies in a region, the list of its extents, which the owner numbers (`regions.rs`). It is the region that is mapped
//! (`mapping.rs`), by the blocks in it that are in use (`attachment.rs`), and that stays mapped for the next one (`books.rs`), until
//! its owner says (`mappings.rs`, `hearing.rs`) that one of its extents goes back to the driver.

mod attached;
mod bell;
mod broker;
mod devices;
mod secret;
mod sharing;
mod socket;
mod token;
mod wire;

use std::sync::Arc;

use rustix::process::geteuid;

use self::sharing::{SharedBlock, parcels, peers, shared};
use self::token::Told;
use super::report;
use super::serve::{self, Allocation};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::process;
use crate::runtime::{self, Stream, get};

pub(in crate::memory) use attached::{AttachedBuffer, attach};
pub(in crate::memory) use sharing::shared::refuse_held;
pub use token::ShareToken;
pub(in crate::memory) use token::wrong_size;

/// Shares a block of so many bytes, after what was submitted to the stream so far; with no stream, after nothing. One that `is_sent`
/// is held until another process has attached it.
///
/// # Errors
/// As [`DeviceBuffer::share`](crate::DeviceBuffer::share).
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
    let uuid = devices::uuid_of(memory.device)?;
    let shared = shared::share(block, bytes, stream)?;
    let parcel = if is_sent {
        parcels::hold(&shared).ok_or_else(|| Error::invalid_value("the buffer was freed while it was sent"))?
    } else {
        0
    };
    Ok(ShareToken::new(&Told {
        kind: token::number_of(runtime.kind()),
        boot,
        user: geteuid().as_raw(),
        process: std::process::id(),
        name,
        secret: shared.secret,
        block: shared.number,
        parcel,
        bytes,
        device: uuid,
    }))
}

/// Shares the live block that an address lies in, as [`share`] does; returns also how far into the block that is.
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
    pub bytes: u64,
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
        |shared: &Arc<SharedBlock>| shared.block.cache.memory.device == device && shared.sharing.holders() > 0;
    let summarize = |shared: Arc<SharedBlock>| SharedSummary {
        address: shared.block.address(),
        bytes: shared.bytes,
        is_freed: shared.sharing.is_freed(),
        processes: peers::holders(shared.number),
    };
    Ok(shared::all().into_iter().filter(on_device).map(summarize).collect())
}
