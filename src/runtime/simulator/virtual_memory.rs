//! Simulated virtual memory: reserved addresses, and the devices' real bytes mapped there. As in CUDA, an extent lives
//! until it is released and unmapped, may be mapped at several addresses, and a mapping can be used once access was
//! set. As for memory that RDMA can use, other devices get access only by an extent's first mapping
//! (`benches/results/h100-peers`). Extents and mappings have a lock of their own, so that a call takes little more than
//! its system call.
//! Under Miri, which maps no files, addresses are numbers without memory.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::{mem, ptr};

use rustc_hash::{FxBuildHasher, FxHashMap};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, memfd_create, seek};
use rustix::mm::{MprotectFlags, mprotect, munmap};

use super::fault::{invalid, out_of_memory, system_error};
use super::memory::Memory;
use crate::error::Result;
use crate::ids::{Device, MemoryLocation};
use crate::runtime::Extent;
use crate::sync::lock;

/// The granularity of physical memory and of mappings, as on NVIDIA GPUs.
pub(super) const PAGE: u64 = 2 << 20;

/// All addresses of the simulated platform, and what is behind them.
#[derive(Debug)]
pub(super) struct Space {
    /// The real bytes of all devices and nodes, a sparse file. Places in it are handed out one behind the other, none twice:
    /// as on a GPU, physical memory is never too scattered, and only [`Memory`] limits it. None under Miri.
    file: Option<File>,
    end: u64,
    /// Address and size.
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, SimulatedMapping>,
    /// By number.
    extents: FxHashMap<u64, SimulatedExtent>,
    /// What `memory_allocate` returned.
    allocations: BTreeMap<u64, FileRange>,
    /// The files of other processes, by device and number, each kept by the extents imported from it.
    imported: BTreeMap<(u64, u64), Weak<File>>,
    next_extent: u64,
    /// Numbers of extents that are gone, to be reused if they are kept.
    gone_extents: Vec<u64>,
    keeps_gone: bool,
}

static SPACE: Mutex<Space> = Mutex::new(Space {
    file: None,
    end: 0,
    reservations: BTreeMap::new(),
    mappings: BTreeMap::new(),
    extents: FxHashMap::with_hasher(FxBuildHasher),
    allocations: BTreeMap::new(),
    imported: BTreeMap::new(),
    next_extent: 1,
    gone_extents: Vec::new(),
    keeps_gone: false,
});

/// Makes an extent get the number of the last one that went, as drivers may do. Otherwise no number is reused, so that
/// a late use is detected.
#[cfg(feature = "fault-injection")]
pub fn reuse_extent_numbers() {
    space().keeps_gone = true;
}

pub(super) fn space() -> MutexGuard<'static, Space> {
    lock(&SPACE)
}

/// Where in the file some bytes are.
#[derive(Clone, Copy, Debug)]
struct FileRange {
    location: MemoryLocation,
    offset: u64,
    bytes: u64,
}

#[derive(Debug)]
struct SimulatedExtent {
    /// The size of an imported one is not known before it is mapped.
    place: FileRange,
    /// The file of another process that has the bytes.
    imported: Option<Arc<File>>,
    mappings: u32,
    /// The address of the mapping that gives other devices access to all of them: of the first, or of the first since
    /// that was unmapped.
    first: Option<NonZero<u64>>,
    is_released: bool,
}

/// Physical bytes: a part of the file, or of another process's.
#[derive(Debug)]
pub(super) struct PhysicalBytes {
    file: RawFd,
    range: Range<u64>,
}

impl PhysicalBytes {
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.file == other.file && self.range.start < other.range.end && other.range.start < self.range.end
    }
}

#[derive(Debug)]
struct SimulatedMapping {
    bytes: u64,
    /// The number of what is mapped.
    extent: u64,
    /// The devices and nodes that have access.
    access: Vec<MemoryLocation>,
}

fn pages(function: &str, address: u64, bytes: u64) -> Result<Range<u64>> {
    if bytes == 0 || !bytes.is_multiple_of(PAGE) || !address.is_multiple_of(PAGE) {
        return Err(invalid(function, "these are not whole pages"));
    }
    let end = address.checked_add(bytes).ok_or_else(|| invalid(function, "these addresses do not exist"))?;
    Ok(address..end)
}

impl Space {
    fn take(&mut self, function: &str, memory: &Memory, location: MemoryLocation, bytes: u64) -> Result<FileRange> {
        memory.take(function, location, bytes)?;
        match self.grow(bytes) {
            Ok(offset) => Ok(FileRange { location, offset, bytes }),
            Err(error) => memory.give_back(location, bytes).and(Err(error)),
        }
    }

    /// Makes the file longer, and returns where the new place in it begins.
    fn grow(&mut self, bytes: u64) -> Result<u64> {
        let end = self.end.checked_add(bytes).ok_or_else(|| out_of_memory("ftruncate"))?;
        if !cfg!(miri) {
            let file = match &mut self.file {
                Some(file) => file,
                missing => {
                    let made = memfd_create("gpupool", MemfdFlags::CLOEXEC);
                    missing.insert(made.map_err(|error| system_error("memfd_create", error))?.into())
                }
            };
            file.set_len(end).map_err(|error| system_error("ftruncate", error))?;
        }
        Ok(mem::replace(&mut self.end, end))
    }

    fn descriptor(&self) -> RawFd {
        self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Returns a place's memory to the machine.
    fn give_back(&mut self, memory: &Memory, place: FileRange) -> Result<()> {
        if let Some(file) = &self.file {
            // If it fails, the bytes stay, which does no harm.
            let _ = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, place.offset, place.bytes);
        }
        memory.give_back(place.location, place.bytes)
    }

    pub(super) fn address_reserve(&mut self, bytes: u64) -> Result<u64> {
        const FUNCTION: &str = "address_reserve";
        pages(FUNCTION, 0, bytes)?;
        // A page more, so that whole pages can be cut out of it.
        let taken = bytes.checked_add(PAGE).ok_or_else(|| out_of_memory(FUNCTION))?;
        // SAFETY: the system chooses the addresses.
        let first = unsafe { map(FUNCTION, None, taken, Behind::Nothing) }?;
        let address = first.next_multiple_of(PAGE);
        let before = address - first;
        // SAFETY: both ends are of the range that was just mapped, and not of what is kept.
        unsafe {
            unmap(FUNCTION, first, before)?;
            unmap(FUNCTION, address + bytes, PAGE - before)?;
        }
        self.reservations.insert(address, bytes);
        Ok(address)
    }

    /// # Safety
    /// Nothing uses the reservation again.
    pub(super) unsafe fn address_free(&mut self, address: u64, bytes: u64) -> Result<()> {
        const FUNCTION: &str = "address_free";
        if self.reservations.get(&address) != Some(&bytes) {
            return Err(invalid(FUNCTION, "this is not a whole reservation"));
        }
        if self.mappings.range(address..address + bytes).next().is_some() {
            return Err(invalid(FUNCTION, "something is still mapped there"));
        }
        // SAFETY: the range was reserved here, nothing is mapped in it, and its owner gives it up.
        unsafe { unmap(FUNCTION, address, bytes) }?;
        self.reservations.remove(&address);
        Ok(())
    }

    pub(super) fn extent_create(&mut self, memory: &Memory, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        const FUNCTION: &str = "extent_create";
        pages(FUNCTION, 0, bytes)?;
        let place = self.take(FUNCTION, memory, location, bytes)?;
        Ok(self.add_extent(place, None))
    }

    fn add_extent(&mut self, place: FileRange, imported: Option<Arc<File>>) -> Extent {
        let number = self.gone_extents.pop().unwrap_or_else(|| {
            self.next_extent += 1;
            self.next_extent - 1
        });
        let extent = SimulatedExtent { place, imported, mappings: 0, first: None, is_released: false };
        self.extents.insert(number, extent);
        Extent(number)
    }

    /// Returns where an extent is, whether another process has its bytes, and the file that they are in.
    fn place_of(&mut self, function: &str, extent: Extent) -> Result<(FileRange, bool, RawFd)> {
        let own = self.descriptor();
        let SimulatedExtent { place, ref imported, .. } = *self.extent(function, extent.0)?;
        Ok((place, imported.is_some(), imported.as_ref().map_or(own, AsRawFd::as_raw_fd)))
    }

    /// Returns a descriptor of the device's file whose own offset is that of the extent.
    pub(super) fn extent_export(&mut self, extent: Extent) -> Result<OwnedFd> {
        const FUNCTION: &str = "extent_export";
        let (place, _, descriptor) = self.place_of(FUNCTION, extent)?;
        let path = format!("/proc/self/fd/{descriptor}");
        let opened = OpenOptions::new().read(true).write(true).open(path).and_then(|mut file| {
            file.seek(SeekFrom::Start(place.offset))?;
            Ok(file)
        });
        opened.map(OwnedFd::from).map_err(|error| system_error(FUNCTION, error))
    }

    pub(super) fn extent_import(&mut self, exported: BorrowedFd<'_>) -> Result<Extent> {
        const FUNCTION: &str = "extent_import";
        let refused = |error: rustix::io::Errno| system_error(FUNCTION, error);
        let status = fstat(exported).map_err(refused)?;
        let offset = seek(exported, rustix::fs::SeekFrom::Current(0)).map_err(refused)?;
        let key = (status.st_dev, status.st_ino);
        let known = self.imported.get(&key).and_then(Weak::upgrade);
        let file = match known {
            Some(file) => file,
            None => {
                let file = exported.try_clone_to_owned().map_err(|error| system_error(FUNCTION, error))?;
                let file = Arc::new(File::from(file));
                self.imported.insert(key, Arc::downgrade(&file));
                file
            }
        };
        let place = FileRange { location: Device::from_ordinal(0).into(), offset, bytes: 0 };
        Ok(self.add_extent(place, Some(file)))
    }

    /// Returns the extent with this number, unless it was released.
    fn extent(&mut self, function: &str, number: u64) -> Result<&mut SimulatedExtent> {
        let alive = self.extents.get_mut(&number).filter(|extent| !extent.is_released);
        alive.ok_or_else(|| invalid(function, "this extent does not exist, or was released"))
    }

    pub(super) fn extent_release(&mut self, memory: &Memory, extent: Extent) -> Result<()> {
        self.extent("extent_release", extent.0)?.is_released = true;
        self.free_if_unused(memory, extent.0)
    }

    fn free_if_unused(&mut self, memory: &Memory, number: u64) -> Result<()> {
        match self.extents.get(&number) {
            Some(&SimulatedExtent { place, ref imported, mappings: 0, is_released: true, .. }) => {
                let is_own = imported.is_none();
                self.extents.remove(&number);
                if self.keeps_gone {
                    self.gone_extents.push(number);
                }
                // Another process counts its own memory.
                if is_own { self.give_back(memory, place) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    pub(super) fn memory_map(&mut self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        const FUNCTION: &str = "memory_map";
        let range = pages(FUNCTION, address, bytes)?;
        let reserved = self.reservations.range(..=address).next_back();
        if reserved.is_none_or(|(start, size)| range.end > start + size) {
            return Err(invalid(FUNCTION, "these addresses are not of one reservation"));
        }
        let last = self.mappings.range(..range.end).next_back();
        if last.is_some_and(|(start, mapping)| start + mapping.bytes > address) {
            return Err(invalid(FUNCTION, "something is mapped there"));
        }
        let (place, is_imported, descriptor) = self.place_of(FUNCTION, extent)?;
        if place.bytes != bytes && !is_imported {
            return Err(invalid(FUNCTION, "this is not the whole of the extent"));
        }
        // SAFETY: the range is of a reservation, and nothing is mapped there.
        unsafe { map(FUNCTION, Some(address), bytes, Behind::Closed(descriptor, place.offset)) }?;
        let extent_mapped = self.extent(FUNCTION, extent.0)?;
        extent_mapped.mappings += 1;
        extent_mapped.first = extent_mapped.first.or(NonZero::new(address));
        self.mappings.insert(address, SimulatedMapping { bytes, extent: extent.0, access: Vec::new() });
        Ok(())
    }

    /// Returns the numbers of all extents, or of those whose first mapping is gone and that have others.
    #[cfg(feature = "fault-injection")]
    pub(super) fn extent_numbers(&self, have_moved: bool) -> Vec<u64> {
        let is_mapped = |number| self.mappings.values().any(|mapping| mapping.extent == number);
        let all = self.extents.iter();
        let meant = all.filter(|(number, extent)| !have_moved || extent.first.is_none() && is_mapped(**number));
        meant.map(|(number, _)| *number).collect()
    }

    pub(super) fn extents_in(&self, address: u64, bytes: u64) -> Vec<u64> {
        let range = address..address.saturating_add(bytes);
        self.mappings.range(range).map(|(_, mapping)| mapping.extent).collect()
    }

    /// Refuses a range that is anything but whole mappings in a row.
    fn check_mapped(&self, function: &str, range: &Range<u64>) -> Result<()> {
        let mut reached = range.start;
        for (&start, mapping) in self.mappings.range(range.clone()) {
            if start != reached {
                break;
            }
            reached += mapping.bytes;
        }
        if reached == range.end { Ok(()) } else { Err(invalid(function, "this range is not one of whole mappings")) }
    }

    /// Refuses further access to an extent whose first mapping is gone.
    fn check_first_mappings(&self, function: &str, range: &Range<u64>, by: &[MemoryLocation]) -> Result<()> {
        for (_, mapping) in self.mappings.range(range.clone()) {
            let extent = self.extents.get(&mapping.extent);
            let Some(SimulatedExtent { place, imported: None, first: None, .. }) = extent else { continue };
            if by.iter().any(|by| *by != place.location && !mapping.access.contains(by)) {
                return Err(invalid(function, "the first mapping of this extent is gone, and there is no new one"));
            }
        }
        Ok(())
    }

    pub(super) fn memory_set_access(&mut self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        const FUNCTION: &str = "memory_set_access";
        let range = pages(FUNCTION, address, bytes)?;
        if by.is_empty() {
            return Err(invalid(FUNCTION, "no device was given"));
        }
        self.check_mapped(FUNCTION, &range)?;
        self.check_first_mappings(FUNCTION, &range, by)?;
        open(FUNCTION, address, bytes)?;
        for (_, mapping) in self.mappings.range_mut(range) {
            for by in by {
                if !mapping.access.contains(by) {
                    mapping.access.push(*by);
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// Nothing uses these mappings again.
    pub(super) unsafe fn memory_unmap(&mut self, memory: &Memory, address: u64, bytes: u64) -> Result<()> {
        const FUNCTION: &str = "memory_unmap";
        let range = pages(FUNCTION, address, bytes)?;
        self.check_mapped(FUNCTION, &range)?;
        // SAFETY: the range consists of mappings made here, and their owner gives them up.
        unsafe { map(FUNCTION, Some(address), bytes, Behind::Nothing) }?;
        while let Some((&start, _)) = self.mappings.range(range.clone()).next() {
            let Some(mapping) = self.mappings.remove(&start) else { break };
            if let Some(extent) = self.extents.get_mut(&mapping.extent) {
                extent.mappings -= 1;
                extent.first.take_if(|first| first.get() == start);
            }
            self.free_if_unused(memory, mapping.extent)?;
        }
        Ok(())
    }

    /// Allocates memory with an address and access for its device alone, in whole pages.
    pub(super) fn memory_allocate(&mut self, memory: &Memory, device: Device, bytes: u64) -> Result<u64> {
        const FUNCTION: &str = "memory_allocate";
        if bytes == 0 {
            return Err(invalid(FUNCTION, "an allocation has at least one byte"));
        }
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or_else(|| out_of_memory(FUNCTION))?;
        let place = self.take(FUNCTION, memory, device.into(), bytes)?;
        let file = self.descriptor();
        // SAFETY: the system chooses the addresses.
        match unsafe { map(FUNCTION, None, bytes, Behind::Open(file, place.offset)) } {
            Ok(address) => {
                self.allocations.insert(address, place);
                Ok(address)
            }
            Err(error) => {
                self.give_back(memory, place)?;
                Err(error)
            }
        }
    }

    pub(super) fn device_of(&self, address: u64) -> Result<Device> {
        let place = self.allocations.get(&address);
        place
            .and_then(|place| place.location.device())
            .ok_or_else(|| invalid("memory_free", "nothing was allocated there"))
    }

    /// # Safety
    /// Nothing uses the memory again.
    pub(super) unsafe fn memory_free(&mut self, memory: &Memory, address: u64) -> Result<()> {
        const FUNCTION: &str = "memory_free";
        let place = self.allocations.get(&address).copied();
        let place = place.ok_or_else(|| invalid(FUNCTION, "nothing was allocated there"))?;
        // SAFETY: the range was mapped here for this allocation, and its owner gives it up.
        unsafe { unmap(FUNCTION, address, place.bytes) }?;
        self.allocations.remove(&address);
        self.give_back(memory, place)
    }

    /// Returns whether all of a range is mapped, and the device has access to it.
    pub(super) fn is_accessible(&self, address: u64, bytes: u64, device: Device) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while at < end {
            let mapping = self.mappings.range(..=at).next_back();
            let Some((start, mapping)) = mapping.filter(|(start, mapping)| at < **start + mapping.bytes) else {
                let allocation = self.allocations.range(..=at).next_back();
                return allocation.is_some_and(|(start, place)| end <= start + place.bytes && place.location == device);
            };
            if !mapping.access.contains(&device.into()) {
                return false;
            }
            at = start + mapping.bytes;
        }
        true
    }

    /// Returns what is behind a range, as far as something is.
    pub(super) fn bytes_behind(&self, address: u64, bytes: u64) -> Vec<PhysicalBytes> {
        let (own, end) = (self.descriptor(), address + bytes);
        let first = self.mappings.range(..=address).next_back().map_or(address, |(start, _)| *start);
        let mapped = self.mappings.range(first..end).filter_map(|(start, mapping)| {
            let SimulatedExtent { place, imported, .. } = self.extents.get(&mapping.extent)?;
            let file = imported.as_ref().map_or(own, AsRawFd::as_raw_fd);
            Some((file, place.offset, *start, end.min(start + mapping.bytes)))
        });
        let allocated = self.allocations.range(..=address).next_back();
        let allocated = allocated.map(|(start, place)| (own, place.offset, *start, end.min(start + place.bytes)));
        let behind = mapped.chain(allocated).map(|(file, offset, start, to)| PhysicalBytes {
            file,
            range: offset + (address.max(start) - start)..offset + to - start,
        });
        behind.filter(|bytes| !bytes.range.is_empty()).collect()
    }
}

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Under Miri, the next free address, far from real ones.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1 << 46);

/// What `mmap` puts at addresses.
#[derive(Clone, Copy, Debug)]
enum Behind {
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
unsafe fn map(function: &str, over: Option<u64>, bytes: u64, behind: Behind) -> Result<u64> {
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
unsafe fn unmap(function: &str, address: u64, bytes: u64) -> Result<()> {
    if bytes == 0 || cfg!(miri) {
        return Ok(());
    }
    // SAFETY: the caller vouches for the addresses.
    unsafe { munmap(pointer(address), bytes as usize) }.map_err(|error| system_error(function, error))
}

/// Lets the process read and write a range of mappings made by [`map`], where more access does no harm.
fn open(function: &str, address: u64, bytes: u64) -> Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    // SAFETY: access alone changes, of mappings of ours.
    let opened = unsafe { mprotect(pointer(address), bytes as usize, MprotectFlags::READ | MprotectFlags::WRITE) };
    opened.map_err(|error| system_error(function, error))
}
