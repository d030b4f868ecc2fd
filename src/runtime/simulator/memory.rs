//! How many bytes of the simulated devices' memory are used, by all processes that have the devices together, and what the
//! operating system maps for it: bytes of a file, or nothing, at addresses of ours. Under Miri, which maps no files,
//! addresses are numbers without memory.
//!
//! With `GPUPOOL_HOST_SHARED=FOLDER` several processes have the devices together, as they have a GPU: the memory is that of
//! all processes with the same folder. Each process has a file there with the bytes that it uses, which it keeps locked:
//! the system ends the lock with the process, however that ends, and a file without one counts for nothing and is
//! removed. Another lock, which ends so too, is held for the few system calls of each change.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use rustix::fs::{FlockOperation, flock};
use rustix::mm::{MprotectFlags, mprotect, munmap};

use super::fault::{OUT_OF_MEMORY, refused, system_error};
use crate::environment::text;
use crate::error::{Error, Result};
use crate::ids::{Device, MemoryLocation, NumaNode};
use crate::runtime::no_such_device;
use crate::sync::lock;

/// The granularity of physical memory and of mappings, as on NVIDIA GPUs.
pub(super) const PAGE: u64 = 2 << 20;

/// How many bytes the devices have and use: simulated handles, which are numbers only, and physical memory.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) capacity: u64,
    pub(super) devices: u32,
    /// Of each device, and of each NUMA node of the host, which has as many bytes as a device.
    used: BTreeMap<MemoryLocation, AtomicU64>,
    /// The other processes that use the same devices, if there may be some.
    together: Option<SharedDevices>,
}

pub(super) const NODES: u32 = 2;

impl Memory {
    pub(super) fn new(devices: u32, capacity: u64, together: Option<SharedDevices>) -> Self {
        let nodes = (0..NODES).map(|node| NumaNode::from_number(node).into());
        let places = (0..devices).map(|ordinal| Device::from_ordinal(ordinal).into()).chain(nodes);
        let used = places.map(|place: MemoryLocation| (place, AtomicU64::new(0))).collect();
        Self { capacity, devices, used, together }
    }

    fn slot(&self, location: MemoryLocation) -> Result<&AtomicU64> {
        self.used.get(&location).ok_or_else(|| no_such_device(location.number(), self.devices as usize))
    }

    /// Refuses a device, or a node, that does not exist.
    pub(super) fn check(&self, location: impl Into<MemoryLocation>) -> Result<()> {
        self.slot(location.into()).map(drop)
    }

    /// Returns the bytes that no process uses.
    pub(super) fn free(&self, location: impl Into<MemoryLocation>) -> Result<u64> {
        let location = location.into();
        let used = self.slot(location)?;
        let others = match self.shared(location) {
            Some((together, device)) => together.alone()?.used_by_others(device)?,
            None => 0,
        };
        Ok(self.capacity.saturating_sub(used.load(Ordering::Relaxed)).saturating_sub(others))
    }

    /// Returns a number of the processes that have the devices together.
    pub(super) fn folder_number(&self) -> Option<u64> {
        self.together.as_ref().map(|together| together.number)
    }

    /// Returns what is to be told to the other processes that use a device.
    fn shared(&self, location: MemoryLocation) -> Option<(&SharedDevices, usize)> {
        Some((self.together.as_ref()?, location.device()?.ordinal()))
    }

    pub(super) fn take(&self, function: &str, location: MemoryLocation, bytes: u64) -> Result<()> {
        let slot = self.slot(location)?;
        let take = |left: u64| {
            let fits = |used: u64| used.checked_add(bytes).filter(|&after| after <= left);
            let taken = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
            taken.map(|before| before + bytes).map_err(|_| refused(function, OUT_OF_MEMORY))
        };
        let Some((together, device)) = self.shared(location) else { return take(self.capacity).map(drop) };
        let alone = together.alone()?;
        let used = take(self.capacity.saturating_sub(alone.used_by_others(device)?))?;
        alone.publish(device, used)
    }

    pub(super) fn give_back(&self, location: MemoryLocation, bytes: u64) -> Result<()> {
        let slot = self.slot(location)?;
        let give_back = || slot.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        let Some((together, device)) = self.shared(location) else {
            give_back();
            return Ok(());
        };
        let alone = together.alone()?;
        alone.publish(device, give_back())
    }
}

/// The folder of the processes that have their simulated devices together.
const SHARED_VARIABLE: &str = "GPUPOOL_HOST_SHARED";
const ALONE: &str = "alone";
const OF_PROCESS: &str = "process-";

/// What this process has in the folder.
#[derive(Debug)]
pub(super) struct SharedDevices {
    folder: PathBuf,
    /// The folder's own number.
    number: u64,
    /// The name of `own`.
    name: String,
    /// The bytes that this process uses of each device, 8 bytes each. Locked as long as the process lives.
    own: File,
    /// Locked by the process that changes anything, and, since such a lock is the process's, by its thread.
    alone: Mutex<File>,
}

/// No other thread of any of the processes changes anything while this lives.
struct Alone<'a> {
    of: &'a SharedDevices,
    file: MutexGuard<'a, File>,
}

impl SharedDevices {
    /// Returns what the environment asks for.
    pub(super) fn from_environment() -> Result<Option<Self>> {
        let Some(folder) = text(SHARED_VARIABLE)? else { return Ok(None) };
        Self::new(PathBuf::from(&folder)).map(Some).map_err(|error| {
            Error::invalid_value(format!(
                "{SHARED_VARIABLE}={folder:?} is no folder that this process can use: {error}"
            ))
        })
    }

    fn new(folder: PathBuf) -> io::Result<Self> {
        let file = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(folder.join(name))
        };
        let alone = file(ALONE)?;
        let name = format!("{OF_PROCESS}{}", std::process::id());
        flock(&alone, FlockOperation::LockExclusive)?;
        // What a process of the same number has left counts no more.
        let _ = fs::remove_file(folder.join(&name));
        let own = file(&name)?;
        flock(&own, FlockOperation::LockExclusive)?;
        flock(&alone, FlockOperation::Unlock)?;
        let number = fs::metadata(&folder)?.ino();
        Ok(Self { folder, number, name, own, alone: Mutex::new(alone) })
    }

    fn alone(&self) -> Result<Alone<'_>> {
        let file = lock(&self.alone);
        flock(&*file, FlockOperation::LockExclusive).map_err(|error| system_error("flock", error))?;
        Ok(Alone { of: self, file })
    }
}

impl Alone<'_> {
    /// Returns how many bytes of a device the other living processes use.
    fn used_by_others(&self, device: usize) -> Result<u64> {
        self.sum(device).map_err(|error| system_error("read", error))
    }

    fn sum(&self, device: usize) -> io::Result<u64> {
        let mut sum = 0;
        for entry in fs::read_dir(&self.of.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_other = name.to_str().is_some_and(|name| name.starts_with(OF_PROCESS) && *name != *self.of.name);
            let Some(file) = is_other.then(|| File::open(entry.path()).ok()).flatten() else { continue };
            if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
                fs::remove_file(entry.path())?;
                continue;
            }
            let mut used = [0; 8];
            // A process that has used nothing has written nothing.
            if file.read_exact_at(&mut used, device as u64 * 8).is_ok() {
                sum += u64::from_le_bytes(used);
            }
        }
        Ok(sum)
    }

    /// Tells the others how many bytes this process uses.
    fn publish(&self, device: usize, used: u64) -> Result<()> {
        let written = self.of.own.write_all_at(&used.to_le_bytes(), device as u64 * 8);
        written.map_err(|error| system_error("write", error))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // It ends with the process at the latest.
        let _ = flock(&*self.file, FlockOperation::Unlock);
    }
}

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Under Miri, the next free address, far from real ones.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1 << 46);

/// What `mmap` puts at addresses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behind {
    /// Nothing: the addresses are only kept from others.
    Nothing,
    /// Bytes of a file from an offset on, without access.
    Closed(RawFd, u64),
    /// Such bytes, to read and write.
    Open(RawFd, u64),
}

/// Calls `mmap` at free addresses, or over these.
///
/// # Safety
/// Nothing uses what is at `over` now.
pub(super) unsafe fn map(function: &str, over: Option<u64>, bytes: u64, behind: Behind) -> Result<u64> {
    if cfg!(miri) {
        return Ok(over.unwrap_or_else(|| NEXT_NUMBER.fetch_add(bytes + PAGE, Ordering::Relaxed)));
    }
    const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (protection, flags, file, offset) = match behind {
        Behind::Nothing => (libc::PROT_NONE, ANONYMOUS, -1, 0),
        Behind::Closed(file, offset) => (libc::PROT_NONE, libc::MAP_SHARED, file, offset),
        Behind::Open(file, offset) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, offset),
    };
    let flags = if over.is_some() { flags | libc::MAP_FIXED } else { flags };
    let at = over.map_or(ptr::null_mut(), pointer);
    // SAFETY: fixed addresses are ones of ours that the caller vouches for, others are chosen by the system.
    let mapped = unsafe { libc::mmap(at, bytes as usize, protection, flags, file, offset as libc::off_t) };
    if mapped == libc::MAP_FAILED {
        Err(system_error(function, io::Error::last_os_error()))
    } else {
        Ok(mapped.expose_provenance() as u64)
    }
}

/// # Safety
/// These are addresses of ours that nothing uses any more.
pub(super) unsafe fn unmap(function: &str, address: u64, bytes: u64) -> Result<()> {
    if bytes == 0 || cfg!(miri) {
        return Ok(());
    }
    // SAFETY: the caller vouches for the addresses.
    unsafe { munmap(pointer(address), bytes as usize) }.map_err(|error| system_error(function, error))
}

/// Lets the process read and write a range of mappings made by [`map`], where more access does no harm.
pub(super) fn open(function: &str, address: u64, bytes: u64) -> Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    // SAFETY: access alone changes, of mappings of ours.
    let opened = unsafe { mprotect(pointer(address), bytes as usize, MprotectFlags::READ | MprotectFlags::WRITE) };
    opened.map_err(|error| system_error(function, error))
}
