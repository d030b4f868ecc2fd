//! Pools: how they are made, used, found by id, and ended with their last use; and the devices whose memory they have, each
//! made when first needed, with the process's limit, and with other devices that may access it.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::acquire::{acquire_new, make_room};
use super::out_of_memory::{no_memory_left, settle_in};
use super::reserve::make_reserve;
use super::trim::trim;
use crate::error::{Error, GPUPOOL, Result};
use crate::ids::{Device, MemoryLocation};
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{DeviceMemory, Patience, Source, Supply, UNKNOWN, reaches};
use crate::memory::pool::{LifeChange, Pool, PoolId, Rules, Stage, UseOf, closed, lock_limit};
use crate::memory::tuning::{A_FEW, PAGE};
use crate::sync::{Ordering, ThisThread};
use crate::{process, runtime};

/// The numbers of pools, by which threads find their caches; 0 is a default pool's.
static NUMBERS: AtomicU32 = AtomicU32::new(1);

#[derive(Debug, Default)]
pub(crate) struct PoolSettings {
    pub(crate) rules: Rules,
    /// Where its memory comes from; by default as the device's.
    pub(crate) source: Option<Source>,
    pub(crate) limit: Option<u64>,
    /// The bytes that it keeps from birth to end.
    pub(crate) reserve: u64,
    /// Its name in messages, beside its id.
    pub(crate) name: Option<String>,
    /// What its first use is for.
    pub(crate) first: UseOf,
}

/// One of a pool's uses, until it is dropped: of its owner, a scope, a capture, a memory range, or a library. The pool ends
/// with the last.
#[derive(Debug)]
pub(crate) struct PoolUse {
    pool: Arc<Pool>,
    of: UseOf,
    ending: Ending,
}

/// When the memory of a pool goes after its last use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// Now, by driver calls.
    Now,
    /// When memory is next given back: the thread is ending, and may call no driver.
    Later,
}

impl PoolUse {
    /// # Errors
    /// `ErrorKind::InvalidValue` if the pool is gone or closed; `ErrorKind::Forked` in a forked child.
    pub(crate) fn new(pool: &Arc<Pool>, of: UseOf) -> Result<Self> {
        process::refuse_forked()?;
        match pool.life.change(LifeChange::Begin(of)) {
            Ok(_) => Ok(Self { pool: Arc::clone(pool), of, ending: Ending::Now }),
            Err(Stage::Ended) => Err(Error::invalid_value(format!(
                "pool {} was dropped; keep the MemPool as long as it is used",
                pool.label()
            ))),
            Err(Stage::InUse | Stage::Closed) => Err(closed(pool)),
        }
    }

    /// Returns another use for the same.
    ///
    /// # Errors
    /// As [`PoolUse::new`].
    pub(crate) fn again(&self) -> Result<Self> {
        Self::new(&self.pool, self.of)
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns whether it is a use of this pool for that.
    pub(in crate::memory) fn is_of(&self, pool: &Pool, of: UseOf) -> bool {
        self.pool.number == pool.number && self.of == of
    }

    /// Ends the use without a driver call, for an ending thread.
    pub(in crate::memory) fn abandon(mut self) {
        self.ending = Ending::Later;
    }
}

impl Drop for PoolUse {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // A closed pool gives back what this use kept.
        if let Ok(Stage::Closed | Stage::Ended) = self.pool.life.change(LifeChange::End(self.of)) {
            close_caches(&self.pool);
            if self.ending == Ending::Now {
                // What the driver refuses to take back now is tried again whenever memory is given back.
                let _ = trim(&self.pool, ThisThread::get(), Patience::Ask);
            }
        }
    }
}

/// Makes a pool, adds it to its device, and returns its first use.
///
/// # Errors
/// As [`device_caches`]; `ErrorKind::Unavailable` if a pool that never sleeps is to sleep for others; `ErrorKind::OutOfMemory` if the device has not enough for the reserve, and
/// `ErrorKind::InvalidValue` if the pool can have none.
pub(crate) fn make_pool(device: Device, id: PoolId, options: PoolSettings) -> Result<PoolUse> {
    let PoolSettings { rules, source, limit, reserve, name, first } = options;
    refuse_offer(rules)?;
    let caches = device_caches(device)?;
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let supply = Supply::new(source.unwrap_or_else(|| caches.memory.default_source()), limit);
    let pool = Arc::new(Pool::new(id, number, &caches.memory, rules, name, supply, first));
    if reserve > 0 {
        check_reserve(&pool, reserve)?;
        // First from what the device has, then from what other pools and the user's callbacks give back.
        let made = acquire_new(&pool, reserve, || make_reserve(&pool, reserve));
        made.map_err(|error| no_memory_left(&pool, reserve, error))?;
    }
    caches.pools.add(&pool);
    Ok(PoolUse { pool, of: first, ending: Ending::Now })
}

/// Refuses to offer a pool that can never sleep to other processes.
fn refuse_offer(rules: Rules) -> Result<()> {
    if rules.wakes_on_use && !rules.sleeps_for_others {
        return Err(Error::invalid_value(
            "a pool wakes on use when it sleeps for other processes: give sleeps_for_others, too, or leave wakes_on_use out",
        ));
    }
    if rules.sleeps_for_others && (rules.no_split || rules.has_own_source) {
        return Err(Error::unavailable(
            "a pool whose segments stay where they are cannot sleep for others: leave out allocator, segments and no_split, or \
             sleeps_for_others",
        ));
    }
    Ok(())
}

fn check_reserve(pool: &Pool, bytes: u64) -> Result<()> {
    let device = pool.memory.location;
    if pool.keeps_segments() {
        return Err(Error::invalid_value(
            "a reserve is of gpupool's own pages, and stays where it is: leave out allocator, segments and no_split",
        ));
    }
    if !pool.source().is_pages() {
        return Err(Error::invalid_value(format!(
            "{device} has no virtual memory management, which a reserve needs: leave it out"
        )));
    }
    match pool.budget().limit() {
        Some(limit) if limit < bytes.next_multiple_of(PAGE) => Err(Error::invalid_value(format!(
            "the pool's limit, {limit} bytes, is less than its reserve, {bytes} bytes in pages of 2 MiB: raise the limit"
        ))),
        _ if bytes > pool.memory.total => {
            let refused = Error::no_memory(GPUPOOL, "No device has that many bytes: request less");
            Err(no_memory_left(pool, bytes, refused))
        }
        _ => Ok(()),
    }
}

/// Returns the device's pool with this id; none if the id was handed out and has no pool yet.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the id is no pool's, or of a pool that is gone or another device's; as
/// [`device_caches`].
pub(crate) fn pool_of_id(device: Device, id: PoolId) -> Result<Option<Arc<Pool>>> {
    let caches = device_caches(runtime::existing(device)?)?;
    // Read first: an id is unused until its pool can be found.
    let is_unused = id.is_unused();
    match caches.pools.in_use(id) {
        None if !is_unused => Err(refuse_id(id, Some(device))),
        found => Ok(found),
    }
}

/// As [`pool_of_id`], on any device if none is named. No device is taken into use.
#[cfg(feature = "python")]
pub(in crate::memory) fn pool_anywhere(id: PoolId, device: Option<Device>) -> Result<Option<Arc<Pool>>> {
    process::refuse_forked()?;
    let is_unused = id.is_unused();
    match DeviceCaches::all().find_map(|caches| caches.pools.in_use(id)) {
        Some(pool) if device.is_none_or(|device| pool.memory.location == device) => Ok(Some(pool)),
        None if is_unused => Ok(None),
        _ => Err(refuse_id(id, device)),
    }
}

/// Returns the error for an id that is no pool's on the device, or on any.
#[cold]
fn refuse_id(id: PoolId, device: Option<Device>) -> Error {
    let on = device.map_or_else(String::new, |device| format!(" on {device}"));
    if !id.is_known() {
        return Error::invalid_value(format!(
            "{id}{on} is not a pool's id; take one from graph_pool_handle() or a MemPool"
        ));
    }
    let owner = DeviceCaches::all().find(|all| all.pools.in_use(id).is_some()).map(|all| all.memory.location);
    Error::invalid_value(match (owner, device) {
        (Some(owner), Some(device)) => {
            format!("pool {id} is of {owner}, not of {device}: name {owner}, or take a pool of {device}")
        }
        _ => format!(
            "pool {id}{on} is gone: its last use has ended, and no pool gets its id again; make another MemPool, or \
             take an id from graph_pool_handle()"
        ),
    })
}

/// Closes a pool in use, and returns the bytes that go at once.
///
/// # Errors
/// `ErrorKind::Forked`; as [`trim`], and the pool is closed all the same where the driver refuses.
pub(in crate::memory) fn close_pool(pool: &Arc<Pool>) -> Result<u64> {
    process::refuse_forked()?;
    let _ = pool.life.change(LifeChange::Close);
    close_caches(pool);
    trim(pool, ThisThread::get(), Patience::Report)
}

/// Has the caches of a pool that serves no more requests give back what is freed, without a driver call.
fn close_caches(pool: &Pool) {
    DeviceCaches::caches_of(pool).into_iter().for_each(|cache| cache.close());
}

/// Returns the memory, pools and caches of a device, or of a node of the host.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; `ErrorKind::Library` if the driver refuses;
/// `ErrorKind::Forked` in a forked child, where its locks may be held for ever.
pub(crate) fn device_caches(location: impl Into<MemoryLocation>) -> Result<&'static DeviceCaches> {
    process::refuse_forked()?;
    let location = location.into();
    match DeviceCaches::known(location) {
        Some(caches) => Ok(caches),
        None => make(location),
    }
}

#[cold]
fn make(location: MemoryLocation) -> Result<&'static DeviceCaches> {
    // Complete, with its default pool, before any other thread sees it.
    let caches = DeviceCaches::new(DeviceMemory::reserve(location)?);
    let memory = &caches.memory;
    let supply = Supply::new(memory.default_source(), None);
    caches.set_default_pool(Arc::new(Pool::new(
        PoolId::NONE,
        0,
        memory,
        Rules::default(),
        None,
        supply,
        UseOf::Requests,
    )));
    // A call that sets the limit of all devices either comes before, or finds this device.
    let limit = lock_limit();
    if !memory.is_of_host() {
        memory.budget.set_limit(limit.on(memory.total));
    }
    let installed = caches.install()?;
    drop(limit);
    if !std::ptr::eq(installed, caches) {
        // SAFETY: another thread was first, so nothing was ever mapped in this range.
        unsafe { memory.range.free() };
    } else {
        settle_in(location);
    }
    Ok(installed)
}

/// Grants `peer` access to all present and later memory of `device`, whatever other threads do with it meanwhile. Pages
/// that the driver opens to no other device any more go back to it, if they are free.
///
/// # Errors
/// `ErrorKind::InvalidValue` if the two cannot reach each other; `ErrorKind::Library` if the driver refuses: no
/// peer then, and the call may be repeated.
pub(crate) fn enable_peer(device: Device, peer: Device) -> Result<()> {
    let caches = device_caches(device)?;
    if peer == device {
        return Ok(());
    }
    if !reaches(peer, device)? {
        return Err(Error::invalid_value(format!(
            "{peer} cannot reach the memory of {device}: the two are not connected by NVLink or peer-to-peer PCIe; copy \
             through the host instead"
        )));
    }
    for attempt in 0.. {
        match caches.memory.range.let_in(peer) {
            Err(refused) if refused.is_status(UNKNOWN) && attempt < A_FEW => {
                make_room(caches, |pool: &Pool| !pool.no_split());
            }
            Err(refused) if refused.is_status(UNKNOWN) => {
                return Err(refused.advised(format!(
                    "It opens some pages in use, which have moved, to no other device any more: free blocks of {device} and \
                     call again, or enable access before there are any"
                )));
            }
            outcome => return outcome,
        }
    }
    Ok(())
}
