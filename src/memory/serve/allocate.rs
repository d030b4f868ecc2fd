//! Allocation and freeing: the way from a request to a block and back.

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::cache::event as trace;
use crate::memory::cache::heap::Invalid;
use crate::memory::cache::thread as local;
use crate::memory::cache::thread_cache::ThreadCache;
use crate::memory::device::device_memory::DeviceMemory;
use crate::memory::serve::miss as oom;
use crate::memory::serve::settle as order;
use crate::memory::serve::settle::User;
use crate::memory::serve::trim as release;
use crate::observe::recording::{self, Purpose};
use crate::process;
use crate::runtime::{self, Stream};

/// A block that somebody holds.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Allocation {
    pub(in crate::memory) cache: &'static ThreadCache,
    pub(in crate::memory) offset: u64,
}

impl Allocation {
    #[inline]
    pub(in crate::memory) fn address(self) -> u64 {
        self.cache.device.address(self.offset)
    }
}

/// Allocates on the stream, from the pool that the calling thread's scope says.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough also after everything was tried; `ErrorKind::InvalidValue` for 0 bytes
/// or an unknown device; `ErrorKind::Library` if the driver refuses.
#[inline]
pub(in crate::memory) fn allocate(bytes: u64, stream: &Stream) -> Result<Allocation> {
    if !process::state().is_plain() {
        return allocate_recorded(bytes, stream);
    }
    let (cache, thread) = local::cache_for(stream)?;
    let offset = cache.lock(thread).allocate(&cache.device.pages, bytes);
    match offset {
        Some(offset) => Ok(Allocation { cache, offset }),
        None => allocate_slowly(cache, thread, bytes),
    }
}

/// [`allocate`] where the thread's cache has a block ready; none where more is to be done.
#[cfg(feature = "python")]
#[inline]
pub(in crate::memory) fn allocate_cached(bytes: u64, stream: &Stream) -> Result<Option<Allocation>> {
    if !process::state().is_plain() {
        return allocate_cached_recorded(bytes, stream);
    }
    let (cache, thread) = local::cache_for(stream)?;
    let offset = cache.lock(thread).allocate(&cache.device.pages, bytes);
    Ok(offset.map(|offset| Allocation { cache, offset }))
}

/// [`allocate`] while somebody records.
#[cold]
fn allocate_recorded(bytes: u64, stream: &Stream) -> Result<Allocation> {
    process::refuse_forked()?;
    let _stack = recording::hold_stack(Purpose::Allocation);
    let (cache, thread) = local::cache_for(stream)?;
    match cache.allocate(thread, bytes) {
        Some(offset) => Ok(Allocation { cache, offset }),
        None => allocate_slowly(cache, thread, bytes),
    }
}

/// [`allocate_cached`] while somebody records.
#[cfg(feature = "python")]
#[cold]
fn allocate_cached_recorded(bytes: u64, stream: &Stream) -> Result<Option<Allocation>> {
    process::refuse_forked()?;
    let _stack = recording::hold_stack(Purpose::Allocation);
    let (cache, thread) = local::cache_for(stream)?;
    Ok(cache.allocate(thread, bytes).map(|offset| Allocation { cache, offset }))
}

#[cold]
fn allocate_slowly(cache: &'static ThreadCache, thread: u64, bytes: u64) -> Result<Allocation> {
    if bytes == 0 {
        return Err(Error::invalid_value("an allocation of 0 bytes has no address"));
    }
    oom::allocate(cache, thread, bytes)
}

fn invalid(device: Device, address: u64, reason: Invalid) -> Error {
    Error::invalid_value(match reason {
        Invalid::NotABlock => format!(
            "{address:#x} is not the start of a block that gpupool handed out on {device}; free what was allocated, by its own address"
        ),
        Invalid::Freed => format!("{address:#x} on {device} was freed before; free each block once"),
    })
}

/// Frees a block; where other streams used it, once they are done. The stream is alive: the caller names it.
///
/// # Errors
/// `ErrorKind::InvalidValue` if no block starts there, it was freed before, or the stream is of a device that is no peer; `ErrorKind::Library` if the driver refuses to
/// take back memory of a pool that is gone: the block is freed all the same.
#[inline]
pub(in crate::memory) fn free(cache: &'static ThreadCache, offset: u64, on: Option<&Stream>) -> Result<()> {
    if cache.has_uses()
        || cache.has_duties()
        || !process::state().is_plain()
        || on.is_some_and(|stream| !cache.is_of(stream))
    {
        return free_slowly(cache, offset, on);
    }
    cache.free(local::owner(), offset).map_err(|reason| refuse(cache, offset, reason))
}

#[cold]
fn refuse(cache: &ThreadCache, offset: u64, reason: Invalid) -> Error {
    invalid(cache.device.device, cache.device.address(offset), reason)
}

#[cold]
fn free_slowly(cache: &'static ThreadCache, offset: u64, on: Option<&Stream>) -> Result<()> {
    process::refuse_forked()?;
    cache.check_live(offset).map_err(|reason| refuse(cache, offset, reason))?;
    let thread = local::thread();
    let (own, other) = on.map_or((None, None), |on| if cache.is_of(on) { (Some(on), None) } else { (None, Some(on)) });
    let other = other.map(|on| user(cache, offset, on)).transpose()?;
    let mut users = if cache.has_uses() { cache.take_uses(offset) } else { Vec::new() };
    users.extend(other.filter(|on| users.iter().all(|user| !user.is(on))));
    note_free(cache, offset, users.is_empty());
    if users.is_empty() {
        // A slot seldom makes a page free, which is not worth a visit to another thread's heap.
        let own = own.filter(|_| cache.is_lending() && (cache.is_owned_by(thread) || cache.is_large(offset)));
        cache.free(thread, offset).map_err(|reason| refuse(cache, offset, reason))?;
        if let Some(own) = own {
            let _ = cache.note_work(own, thread);
        }
    } else {
        cache.mark_waiting(offset).map_err(|reason| refuse(cache, offset, reason))?;
        order::defer(cache, thread, offset, &users);
    }
    if cache.is_closing() {
        release::leave_closed(cache, thread)?;
    }
    Ok(())
}

/// Writes a free down before anybody else can have the block, where somebody records.
fn note_free(cache: &ThreadCache, offset: u64, is_completed: bool) {
    if trace::is_on() {
        let _stack = recording::hold_stack(Purpose::Free);
        cache.trace_free(offset, is_completed);
    }
}

/// Frees a block whose streams nobody named: it is used again once all work on the device so far is done.
///
/// # Errors
/// As [`free`].
pub(in crate::memory) fn free_after_all_work(cache: &'static ThreadCache, offset: u64) -> Result<()> {
    process::refuse_forked()?;
    cache.check_live(offset).map_err(|reason| refuse(cache, offset, reason))?;
    let users = cache.take_uses(offset);
    note_free(cache, offset, false);
    cache.mark_waiting(offset).map_err(|reason| refuse(cache, offset, reason))?;
    order::defer_after_all_work(cache, offset, &users);
    if cache.is_closing() {
        return release::leave_closed(cache, local::thread());
    }
    // At once where the device has nothing to do.
    order::settle(cache, local::thread(), false)
}

/// A stream that uses a block, as the calling thread names it.
fn user(cache: &ThreadCache, offset: u64, stream: &Stream) -> Result<User> {
    let memory = cache.device;
    if stream.device() != memory.device && !memory.is_peer(stream.device()) {
        return Err(Error::invalid_value(format!(
            "{:#x} is memory of {}, which a stream of {} cannot use: give a stream of {}, or call enable_peer_access first",
            memory.address(offset),
            memory.device,
            stream.device(),
            memory.device
        )));
    }
    Ok(User::new(stream, local::thread()))
}

/// Whether a block can be freed on this stream.
#[cfg(feature = "python")]
pub(in crate::memory) fn check_stream(block: Allocation, stream: &Stream) -> Result<()> {
    process::refuse_forked()?;
    user(block.cache, block.offset, stream).map(drop)
}

/// Keeps a block, once freed, from being used again before the stream's work at that time is done.
///
/// # Errors
/// `ErrorKind::InvalidValue` if no live block starts there, or the stream is of a device that is no peer.
pub(in crate::memory) fn record_stream(cache: &ThreadCache, offset: u64, stream: &Stream) -> Result<()> {
    cache.check_live(offset).map_err(|reason| refuse(cache, offset, reason))?;
    if !cache.is_of(stream) {
        cache.add_use(offset, user(cache, offset, stream)?);
    }
    Ok(())
}

/// As [`record_stream`] for a stream that may be gone by the time the block is freed.
#[cfg(feature = "python")]
pub(in crate::memory) fn record_consumer(block: Allocation, stream: &Stream) -> Result<()> {
    let Allocation { cache, offset } = block;
    cache.check_live(offset).map_err(|reason| refuse(cache, offset, reason))?;
    if !cache.is_of(stream) {
        cache.add_use(offset, user(cache, offset, stream)?.fleeting());
    }
    Ok(())
}

/// The block at an address of any device.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the address is not in memory of gpupool's.
#[inline]
pub(in crate::memory) fn find(address: u64, device: Option<Device>) -> Result<Allocation> {
    let paged = match device {
        Some(device) => DeviceMemory::known(device).and_then(|memory| paged_block(memory, address)),
        None => DeviceMemory::all().find_map(|memory| paged_block(memory, address)),
    };
    match paged {
        Some(block) => Ok(block),
        None => find_in_segments(address, device),
    }
}

#[inline]
fn paged_block(memory: &'static DeviceMemory, address: u64) -> Option<Allocation> {
    let offset = memory.page_offset(address)?;
    Some(Allocation { cache: memory.cache_of(offset)?, offset })
}

#[cold]
fn find_in_segments(address: u64, device: Option<Device>) -> Result<Allocation> {
    for memory in DeviceMemory::all().filter(|memory| device.is_none_or(|device| device == memory.device)) {
        if let Some(offset) = memory.segment_offset(address)
            && let Some(cache) = memory.cache_of(offset)
        {
            return Ok(Allocation { cache, offset });
        }
    }
    not_found(address, device)
}

#[cold]
fn not_found(address: u64, device: Option<Device>) -> Result<Allocation> {
    runtime::get()?;
    let device = device.map_or_else(|| "any device".to_owned(), |device| device.to_string());
    Err(Error::invalid_value(format!("{address:#x} is not memory that gpupool handed out on {device}")))
}
