//! Freeing: from an address to its block, and what a freed block waits for; and allocation at an address that the caller
//! names, whose memory was its own, is free, and was not moved or given back: a graph uses its addresses as long as it lives,
//! so a program that freed a tensor of its graph may want it again.

use log::Level;

use super::take::{Allocation, mark_work};
use super::trim;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::cache::{BlockUser, DeviceCaches, Freed, StreamCache, Waiting, is_recorded};
use crate::memory::device::{Invalid, Patience, log_out};
use crate::memory::pool;
use crate::observe::delivery::{Delivery, deliver};
use crate::observe::recording::{self, Purpose};
use crate::process;
use crate::runtime::{self, Stream};
use crate::sync::ThisThread;

/// Frees a block, once the other streams that used it are done. The stream is alive, since the caller names it.
///
/// # Errors
/// `ErrorKind::InvalidValue` if no block starts there, it was freed before, or the stream is of a device that is no
/// peer. After an error the block is as it was.
#[inline]
pub(crate) fn free(block: Allocation, on: Option<&Stream>) -> Result<()> {
    let cache = block.cache;
    // The state is read first: a recording sets caches' duties before it ends.
    if !process::state().is_plain_for_frees()
        || cache.has_uses()
        || cache.has_duties()
        || on.is_some_and(|stream| !cache.is_of(stream))
    {
        return free_slowly(block, on);
    }
    let thread = ThisThread::get();
    cache.free(thread, block.offset).map_err(|reason| refuse(block, reason))?;
    // Read again, as the pool may have been closed before the block was free.
    if cache.is_closing() {
        leave_closed(cache, thread);
    }
    Ok(())
}

/// As [`free`], for a block that the caller has kept and not looked up: a wrong free by its address may have made its
/// page another cache's.
#[inline]
pub(crate) fn free_kept(block: Allocation, on: Option<&Stream>) -> Result<()> {
    if block.cache.has_block_at(block.offset) { free(block, on) } else { Err(refuse(block, Invalid::Freed)) }
}

#[cold]
fn refuse(block: Allocation, reason: Invalid) -> Error {
    let (address, device) = (block.address(), block.cache.memory.location);
    Error::invalid_value(match reason {
        Invalid::NotABlock => format!(
            "{address:#x} is not the start of a block that gpupool handed out on {device}; free what was allocated, by \
             its own address"
        ),
        Invalid::Freed => format!("{address:#x} on {device} was freed before; free each block once"),
    })
}

#[cold]
fn free_slowly(block: Allocation, on: Option<&Stream>) -> Result<()> {
    let Allocation { cache, offset } = block;
    check_live(block)?;
    let thread = ThisThread::get();
    let (own, other) = on.map_or((None, None), |on| if cache.is_of(on) { (Some(on), None) } else { (None, Some(on)) });
    let other = other.map(|on| user(block, on)).transpose()?;
    let mut users = if cache.has_uses() { cache.take_uses(offset) } else { Vec::new() };
    users.retain(BlockUser::is_left);
    users.extend(other.filter(|on| users.iter().all(|user| !user.is(on))));
    note_free(block, if users.is_empty() { Freed::AtOnce } else { Freed::Later });
    if users.is_empty() {
        let own = own.filter(|_| cache.marks_work());
        // Named while the block is live: afterwards the cache may end, and be born again for another stream.
        let marked = own.and_then(|own| Some((own, cache.serving().filter(|of| of.service.is_of(own))?)));
        cache.free(thread, offset).map_err(|reason| refuse(block, reason))?;
        if let Some((own, of)) = marked {
            // Without a mark the pages serve no other stream.
            let _ = mark_work(&of, own, thread);
        }
    } else {
        wait_for(block, &users, thread, Some(thread))?;
    }
    if cache.is_closing() {
        leave_closed(cache, thread);
    }
    Ok(())
}

/// Gives back what a closed pool has free. The block is freed by now, so a refusal of the driver fails no call, as its caller
/// would free once more: what the driver did not take goes when memory is next given back.
#[cold]
fn leave_closed(cache: &'static StreamCache, thread: ThisThread) {
    if let Err(error) = trim::leave_closed(cache, thread) {
        log_out(
            Level::Warn,
            format_args!("memory of a pool that is closed stays until memory is next given back: {error}"),
        );
    }
}

/// Keeps a freed block until its users are done, whose streams a thread names, or until all work is.
fn wait_for(block: Allocation, users: &[BlockUser], thread: ThisThread, named_by: Option<ThisThread>) -> Result<()> {
    let Allocation { cache, offset } = block;
    cache.begin_waiting(thread, offset).map_err(|reason| refuse(block, reason))?;
    trim::wait(cache, Waiting::for_users(offset, users, &cache.memory.events, named_by));
    Ok(())
}

fn note_free(block: Allocation, freed: Freed) {
    let _stack = recording::hold_stack(Purpose::Free);
    block.cache.note_free(block.offset, freed);
    deliver();
}

/// Frees a block whose streams are unknown: it is reused once all work so far on the device is done.
pub(in crate::memory) fn free_after_all_work(block: Allocation) -> Result<()> {
    let Allocation { cache, offset } = block;
    check_live(block)?;
    let users = cache.take_uses(offset);
    note_free(block, Freed::Later);
    let thread = ThisThread::get();
    wait_for(block, &users, thread, None)?;
    if cache.is_closing() {
        leave_closed(cache, thread);
        return Ok(());
    }
    // At once if the device is idle; what the driver does not answer is asked again.
    let _ = trim::settle(cache, thread, Patience::Ask);
    Ok(())
}

/// Refuses in a forked child, and a block that no caller holds.
pub(in crate::memory) fn check_live(block: Allocation) -> Result<()> {
    process::refuse_forked()?;
    block.cache.check_live(block.offset).map_err(|reason| refuse(block, reason))
}

fn user(block: Allocation, stream: &Stream) -> Result<BlockUser> {
    let memory = block.cache.memory;
    if memory.location != stream.device() && !memory.range.peers.has(stream.device()) {
        // Devices named by number, as from C, are checked only here.
        runtime::existing(stream.device())?;
        let (address, owner, device) = (block.address(), memory.location, stream.device());
        return Err(Error::invalid_value(format!(
            "{address:#x} is memory of {owner}, which a stream of {device} cannot use: give a stream of {owner}, or call \
             enable_peer_access first"
        )));
    }
    let user = BlockUser::new(stream);
    Ok(if memory.is_of_host() { user.with_graph() } else { user })
}

/// # Errors
/// `ErrorKind::InvalidValue` if the stream is of a device that is no peer; `ErrorKind::Forked`.
pub(in crate::memory) fn check_stream(block: Allocation, stream: &Stream) -> Result<()> {
    process::refuse_forked()?;
    user(block, stream).map(drop)
}

/// Keeps a block, once freed, from reuse before the stream's work at that time is done.
///
/// # Errors
/// `ErrorKind::InvalidValue` if no live block starts there, or the stream is of a device that is no peer.
pub(crate) fn record_stream(block: Allocation, stream: &Stream) -> Result<()> {
    add_user(block, stream, |user| user)
}

/// As [`record_stream`], for a stream that may be gone by the free.
pub(in crate::memory) fn record_consumer(block: Allocation, stream: &Stream) -> Result<()> {
    add_user(block, stream, BlockUser::fleeting)
}

/// Notes that the streams that a block was recorded on may be gone by its free. Not in a forked child.
#[cfg(feature = "python")]
pub(in crate::memory) fn let_streams_end(block: Allocation) {
    if !process::is_forked() && block.cache.has_uses() {
        block.cache.let_streams_end(block.offset);
    }
}

fn add_user(block: Allocation, stream: &Stream, as_what: impl FnOnce(BlockUser) -> BlockUser) -> Result<()> {
    check_live(block)?;
    if !block.cache.is_of(stream) {
        block.cache.add_use(block.offset, as_what(user(block, stream)?));
    }
    Ok(())
}

/// Returns the block at an address that a caller gives, of any device or of this one.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the address is not in memory of gpupool's, or is that of a block which gpupool holds itself.
#[inline]
pub(crate) fn find(address: u64, device: Option<Device>) -> Result<Allocation> {
    let paged = match device {
        Some(device) => DeviceCaches::known(device).and_then(|caches| block_in_pages(caches, address)),
        None => DeviceCaches::all().find_map(|caches| block_in_pages(caches, address)),
    };
    match paged {
        Some(block) if !block.cache.has_uses() => Ok(block),
        Some(block) => refuse_own(block),
        None => find_in_segments(address, device),
    }
}

/// Refuses blocks that gpupool holds for its own work, such as a sleeping pool's backup.
#[cold]
fn refuse_own(block: Allocation) -> Result<Allocation> {
    process::refuse_forked()?;
    let why = if block.cache.is_of_ranges() {
        "is in a MemoryRange, which alone commits and decommits its pages; call those"
    } else if block.cache.is_gpupools(block.offset) {
        "is memory that gpupool has for its own work: what a caller had there was freed before; free each block once"
    } else {
        return Ok(block);
    };
    Err(Error::invalid_value(format!("{:#x} on {} {why}", block.address(), block.cache.memory.location)))
}

/// Returns whether an address is in gpupool's memory; in a forked child, segments do not count.
pub(crate) fn owns(address: u64) -> bool {
    DeviceCaches::all().any(|caches| {
        let in_pages = block_in_pages(caches, address).is_some();
        // In a forked child the segments' lock may be held for ever.
        in_pages || (!process::is_forked() && caches.memory.segments.offset(address).is_some())
    })
}

#[inline]
fn block_in_pages(caches: &'static DeviceCaches, address: u64) -> Option<Allocation> {
    block_at(caches, caches.memory.range.offset(address)?)
}

#[inline]
fn block_at(caches: &'static DeviceCaches, offset: u64) -> Option<Allocation> {
    Some(Allocation { cache: caches.cache_at(offset)?, offset })
}

#[cold]
fn find_in_segments(address: u64, device: Option<Device>) -> Result<Allocation> {
    process::refuse_forked()?;
    let mut all = DeviceCaches::all().filter(|caches| device.is_none_or(|device| caches.memory.location == device));
    let found = all.find_map(|caches| block_at(caches, caches.memory.segments.offset(address)?));
    if let Some(block) = found {
        return refuse_own(block);
    }
    runtime::get()?;
    let device = device.map_or_else(|| "any device".to_owned(), |device| device.to_string());
    Err(Error::invalid_value(format!("{address:#x} is not memory that gpupool handed out on {device}")))
}

/// Allocates bytes at an address from the pool that has the memory there, in the order of the stream.
///
/// # Errors
/// `ErrorKind::InvalidValue` if so many bytes are not free there in one piece, or the memory serves another stream;
/// `ErrorKind::Forked`.
pub(crate) fn allocate_at(address: u64, bytes: u64, stream: &Stream) -> Result<Allocation> {
    process::refuse_forked()?;
    let _delivery = Delivery::at_end();
    let _stack = recording::hold_stack(Purpose::Allocation);
    let block = find(address, Some(stream.device()))?;
    let cache = block.cache;
    let refused = |why: &str| {
        Error::invalid_value(format!(
            "{bytes} bytes at {address:#x} on {} cannot be allocated again: {why}",
            cache.memory.location
        ))
    };
    let of = cache.serving().filter(|_| !cache.is_lender()).ok_or_else(|| refused("the pool gave the memory up"))?;
    let service = &of.service;
    // A graph's memory is its graph's, whatever stream is named.
    let may_use = service.role.is_captured() || service.is_of(stream);
    if !may_use {
        return Err(refused("the memory serves another stream; name that one"));
    }
    if service.pool.sleep.is_asleep() {
        return Err(pool::asleep(&service.pool));
    }
    let allocated = of.lock_awake().and_then(|mut heap| {
        // The page may have left the cache before the lock.
        let is_there = cache.has_block_at(block.offset);
        let offset = is_there.then(|| heap.allocate_at(&cache.memory.pages, block.offset, bytes)).flatten()?;
        if is_recorded() {
            cache.record_alloc(offset, bytes);
        }
        Some(offset)
    });
    allocated.map(|_| block).ok_or_else(|| refused("so many bytes are not free there in one piece"))
}
