//! The simulated devices' memory: how many bytes of each are used, and a sparse file with the real ones.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::refusal::refused;
use super::together::SharedDevices;
use crate::error::{Error, Result, StatusKind};
use crate::ids::MemoryLocation;
use crate::runtime::no_such_device;

/// How many bytes the devices have and use: simulated handles, which are numbers only, and physical memory.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) capacity: u64,
    used: Vec<AtomicU64>,
    /// The same for the host's NUMA nodes, each with as many bytes as a device.
    used_of_nodes: [AtomicU64; NODES as usize],
    /// The other processes that use the same devices, if there may be some.
    together: Option<SharedDevices>,
}

pub(super) const NODES: u32 = 2;

impl Memory {
    pub(super) fn new(devices: u64, capacity: u64, together: Option<SharedDevices>) -> Self {
        let used = (0..devices).map(|_| AtomicU64::new(0)).collect();
        Self { capacity, used, used_of_nodes: Default::default(), together }
    }

    pub(super) fn devices(&self) -> usize {
        self.used.len()
    }

    fn slot(&self, location: MemoryLocation) -> Result<&AtomicU64> {
        let slot = match location {
            MemoryLocation::Device(device) => self.used.get(device.ordinal()),
            MemoryLocation::Host(node) => self.used_of_nodes.get(node.index()),
        };
        slot.ok_or_else(|| no_such_device(location.number(), self.used.len()))
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
        self.together.as_ref().map(SharedDevices::folder_number)
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
            taken.map(|before| before + bytes).map_err(|_| out_of_memory(function))
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

#[cold]
pub(super) fn out_of_memory(function: &str) -> Error {
    refused(function, ("HOST_ERROR_OUT_OF_MEMORY", 2), StatusKind::OutOfMemory)
}

#[cold]
pub(super) fn system_error(function: &str, error: &io::Error) -> Error {
    let refusal = match error.raw_os_error() {
        Some(libc::ENOMEM) => out_of_memory(function),
        _ => refused(function, ("HOST_ERROR_OPERATING_SYSTEM", 304), StatusKind::Other),
    };
    refusal.map_library(|refused| refused.advice = Some(error.to_string()))
}

/// A device's bytes. Places in the file are handed out first fit. It grows if no gap is large enough: as on a GPU,
/// physical memory is never too scattered, and only [`Memory`] limits it.
#[derive(Debug)]
pub(super) struct Store {
    /// None under Miri, which makes no such files.
    file: Option<File>,
    end: u64,
    /// Offset and size of the gaps before `end`; no two of them touch.
    gaps: BTreeMap<u64, u64>,
}

impl Store {
    pub(super) fn new() -> Result<Self> {
        if cfg!(miri) {
            return Ok(Self { file: None, end: 0, gaps: BTreeMap::new() });
        }
        // SAFETY: the name ends with a zero.
        let descriptor = unsafe { libc::memfd_create(c"gpupool".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(system_error("memfd_create", &io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just made, and only this function has it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        Ok(Self { file: Some(file), end: 0, gaps: BTreeMap::new() })
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub(super) fn take(&mut self, bytes: u64) -> Result<u64> {
        if let Some((&offset, &gap)) = self.gaps.iter().find(|&(_, &gap)| gap >= bytes) {
            self.gaps.remove(&offset);
            if gap > bytes {
                self.gaps.insert(offset + bytes, gap - bytes);
            }
            return Ok(offset);
        }
        let (offset, end) = (self.end, self.end.checked_add(bytes).ok_or_else(|| out_of_memory("ftruncate"))?);
        if let Some(file) = &self.file {
            file.set_len(end).map_err(|error| system_error("ftruncate", &error))?;
        }
        self.end = end;
        Ok(offset)
    }

    /// Takes a place back, and returns its memory to the machine.
    pub(super) fn give_back(&mut self, mut offset: u64, mut bytes: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        if let Some(file) = &self.file {
            // SAFETY: this changes only the file, where nothing uses this place any more. If it fails, the bytes stay until
            // the place is used again, which does no harm.
            unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, bytes as libc::off_t) };
        }
        if let Some(after) = self.gaps.remove(&(offset + bytes)) {
            bytes += after;
        }
        if let Some((&before, gap)) =
            self.gaps.range(..offset).next_back().filter(|(before, gap)| *before + *gap == offset)
        {
            bytes += gap;
            offset = before;
        }
        self.gaps.insert(offset, bytes);
    }
}
