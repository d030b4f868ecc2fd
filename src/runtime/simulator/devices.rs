//! The simulated devices, and the calls on their memory: reserved addresses, and the devices' real bytes mapped there. Each
//! call first applies the rules on captures and injected faults. As in CUDA, an extent lives
//! until it is released and unmapped, may be mapped at several addresses, and a mapping can be used once access was
//! set. As for memory that RDMA can use, other devices get access only by an extent's first mapping
//! (`benches/results/h100-x2/peers.txt`). Extents and mappings have a lock of their own, so that a call takes little more than
//! its system call.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::mem;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use rustc_hash::{FxBuildHasher, FxHashMap};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, memfd_create, seek};

use super::captures::check_unsafe_call;
use super::fault::{Call, OUT_OF_MEMORY, check, invalid, refused, system_error};
use super::memory::{Behind, Memory, PAGE, SharedDevices, map, open, unmap};
use super::timeline::{Effect, StreamKey, Work, timeline};
use super::uses::{self, ExtentCall};
use crate::environment::number;
use crate::error::{Error, Result};
use crate::ids::{Device, MemoryLocation, RawStream};
use crate::runtime::{DeviceCalls, DeviceUuid, ExportedExtent, Extent, Kind, MemoryInfo};
use crate::sync::lock;

/// All addresses of the simulated platform, and what is behind them.
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
pub(super) struct PhysicalBytes {
    file: RawFd,
    range: Range<u64>,
}

impl PhysicalBytes {
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.file == other.file && self.range.start < other.range.end && other.range.start < self.range.end
    }
}

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
        let end = self.end.checked_add(bytes).ok_or_else(|| refused("ftruncate", OUT_OF_MEMORY))?;
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

    pub(super) fn extent_create(&mut self, memory: &Memory, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        pages("extent_create", 0, bytes)?;
        let place = self.take("extent_create", memory, location, bytes)?;
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

    /// Returns the extent with this number, unless it was released.
    fn extent(&mut self, function: &str, number: u64) -> Result<&mut SimulatedExtent> {
        let alive = self.extents.get_mut(&number).filter(|extent| !extent.is_released);
        alive.ok_or_else(|| invalid(function, "this extent does not exist, or was released"))
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

    /// Allocates memory with an address and access for its device alone, in whole pages.
    pub(super) fn memory_allocate(&mut self, memory: &Memory, device: Device, bytes: u64) -> Result<u64> {
        const FUNCTION: &str = "memory_allocate";
        if bytes == 0 {
            return Err(invalid(FUNCTION, "an allocation has at least one byte"));
        }
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or_else(|| refused(FUNCTION, OUT_OF_MEMORY))?;
        let place = self.take(FUNCTION, memory, device.into(), bytes)?;
        let file = self.descriptor();
        // SAFETY: the system chooses the addresses.
        let mapped = unsafe { map(FUNCTION, None, bytes, Behind::Open(file, place.offset)) };
        match mapped {
            Ok(address) => _ = self.allocations.insert(address, place),
            Err(_) => self.give_back(memory, place)?,
        }
        mapped
    }

    /// Returns where what was allocated at an address is.
    fn allocation(&self, address: u64) -> Result<FileRange> {
        let place = self.allocations.get(&address).copied();
        place.ok_or_else(|| invalid("memory_free", "nothing was allocated there"))
    }

    /// # Safety
    /// Nothing uses the memory again.
    pub(super) unsafe fn memory_free(&mut self, memory: &Memory, address: u64) -> Result<()> {
        let place = self.allocation(address)?;
        // SAFETY: the range was mapped here for this allocation, and its owner gives it up.
        unsafe { unmap("memory_free", address, place.bytes) }?;
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

/// How many devices to simulate.
pub const DEVICES_VARIABLE: &str = "GPUPOOL_HOST_DEVICES";
/// How much memory each has, in bytes.
pub const MEMORY_VARIABLE: &str = "GPUPOOL_HOST_MEMORY";
/// More devices than any machine has.
const MOST_DEVICES: u64 = 4096;
/// As many bytes as a process has addresses for.
const MOST_MEMORY: u64 = 1 << 47;

thread_local! {
    /// The bound device, as an ordinal plus one; 0 for none.
    pub(super) static BOUND: Cell<usize> = const { Cell::new(0) };
}

/// The simulated platform. What it simulates is process-wide, as the devices of a machine are.
#[derive(Debug)]
pub(in crate::runtime) struct Simulator {
    pub(super) memory: &'static Memory,
}

pub(super) static MEMORY: OnceLock<Memory> = OnceLock::new();
/// What [`driver_calls`](super::driver_calls) returns.
pub(super) static DRIVER_CALLS: AtomicU64 = AtomicU64::new(0);

impl Simulator {
    pub(in crate::runtime) fn from_environment() -> Result<Self> {
        let devices = number(DEVICES_VARIABLE, 1..=MOST_DEVICES, 1)?;
        Self::new(devices, number(MEMORY_VARIABLE, 1..=MOST_MEMORY, 16 << 30)?)
    }

    pub(in crate::runtime) fn new(devices: u64, capacity: u64) -> Result<Self> {
        if !(1..=MOST_DEVICES).contains(&devices) {
            return Err(Error::invalid_value(format!("{devices} devices: 1 to {MOST_DEVICES} can be simulated")));
        }
        if let Some(memory) = MEMORY.get() {
            return Ok(Self { memory });
        }
        let together = SharedDevices::from_environment()?;
        Ok(Self { memory: MEMORY.get_or_init(|| Memory::new(devices as u32, capacity, together)) })
    }

    pub(super) fn bound() -> Device {
        Device::from_ordinal(BOUND.get().saturating_sub(1) as u32)
    }

    /// Returns the key of a stream: a default stream is that of the bound device, any other address is unique in the
    /// process.
    pub(super) fn key(stream: RawStream) -> StreamKey {
        StreamKey::new(stream, Self::bound())
    }
}

/// Begins a call on memory.
pub(super) fn on_space(call: Call) -> Result<MutexGuard<'static, Space>> {
    enter_memory_call(call)?;
    Ok(space())
}

/// What every call that makes, maps or frees memory does first.
pub(super) fn enter_memory_call(call: Call) -> Result<()> {
    DRIVER_CALLS.fetch_add(1, Ordering::Relaxed);
    check_unsafe_call()?;
    check(call)
}

pub(super) fn uuid_of(whose: [u8; 8], device: Device) -> DeviceUuid {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&whose);
    uuid[8..].copy_from_slice(&(device.ordinal() as u64).to_le_bytes());
    uuid
}

/// Submits work with device memory to a stream, whose device must have access now; whether it still has is checked when
/// the work is done. The caller promises that host memory stays until then.
fn submit_work(function: &str, key: StreamKey, work: Work) -> Result<()> {
    let device = timeline().device(key)?;
    if !space().is_accessible(work.mapped, 1, device) {
        let why = format!("{:#x} is not memory that {device} has access to", work.mapped);
        return Err(invalid(function, why));
    }
    timeline().submit_work(key, work)
}

impl DeviceCalls for Simulator {
    fn kind(&self) -> Kind {
        Kind::Host
    }

    fn device_count(&self) -> u32 {
        self.memory.devices
    }

    fn device_uuid(&self, device: Device) -> Result<DeviceUuid> {
        self.memory.check(device)?;
        Ok(uuid_of(*b"simulate", device))
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        check(Call::MemoryInfo)?;
        Ok(MemoryInfo { free: self.memory.free(Self::bound())?, total: self.memory.capacity })
    }

    fn total_memory(&self, location: MemoryLocation) -> Result<u64> {
        self.memory.check(location)?;
        Ok(self.memory.capacity)
    }

    fn memory_allocate(&self, bytes: u64) -> Result<u64> {
        on_space(Call::MemoryAllocate)?.memory_allocate(self.memory, Self::bound(), bytes)
    }

    unsafe fn memory_free(&self, address: u64) -> Result<()> {
        enter_memory_call(Call::MemoryFree)?;
        let place = space().allocation(address)?;
        timeline().complete_all(place.location.device())?;
        uses::check_unused(address, 1);
        // SAFETY: the caller gives the memory up.
        unsafe { space().memory_free(self.memory, address) }
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        check(Call::Fill)?;
        submit_work("fill", Self::key(stream), Work { mapped: address, bytes, effect: Effect::Fill(byte) })
    }

    unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        check(Call::CopyToHost)?;
        submit_work("copy_to_host", Self::key(stream), Work { mapped: from, bytes, effect: Effect::Copy { to, from } })
    }

    unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: RawStream) -> Result<()> {
        check(Call::CopyToDevice)?;
        submit_work("copy_to_device", Self::key(stream), Work { mapped: to, bytes, effect: Effect::Copy { to, from } })
    }

    unsafe fn allocate_async(&self, bytes: u64, stream: RawStream) -> Result<u64> {
        enter_memory_call(Call::MemoryAllocate)?;
        timeline().check_not_beside_capture("allocate_async", Self::key(stream))?;
        let device = timeline().device(Self::key(stream))?;
        space().memory_allocate(self.memory, device, bytes)
    }

    unsafe fn free_async(&self, address: u64, stream: RawStream) -> Result<()> {
        enter_memory_call(Call::MemoryFree)?;
        timeline().check_not_beside_capture("free_async", Self::key(stream))?;
        // The bytes go at once, not once the stream's work is done: simulated work touches none.
        timeline().device(Self::key(stream))?;
        // SAFETY: the caller gives the memory up.
        unsafe { space().memory_free(self.memory, address) }
    }

    fn page_bytes(&self, location: MemoryLocation) -> Result<u64> {
        self.memory.check(location)?;
        check(Call::PageBytes)?;
        Ok(PAGE)
    }

    fn can_access_peer(&self, device: Device, peer: Device) -> Result<bool> {
        self.memory.check(device)?;
        self.memory.check(peer)?;
        Ok(device != peer)
    }

    fn address_reserve(&self, bytes: u64) -> Result<u64> {
        const FUNCTION: &str = "address_reserve";
        check(Call::AddressReserve)?;
        pages(FUNCTION, 0, bytes)?;
        // A page more, so that whole pages can be cut out of it.
        let taken = bytes.checked_add(PAGE).ok_or_else(|| refused(FUNCTION, OUT_OF_MEMORY))?;
        // SAFETY: the system chooses the addresses.
        let first = unsafe { map(FUNCTION, None, taken, Behind::Nothing) }?;
        let address = first.next_multiple_of(PAGE);
        let before = address - first;
        // SAFETY: both ends are of the range that was just mapped, and not of what is kept.
        unsafe {
            unmap(FUNCTION, first, before)?;
            unmap(FUNCTION, address + bytes, PAGE - before)?;
        }
        space().reservations.insert(address, bytes);
        Ok(address)
    }

    unsafe fn address_free(&self, address: u64, bytes: u64) -> Result<()> {
        const FUNCTION: &str = "address_free";
        check(Call::AddressFree)?;
        let mut space = space();
        if space.reservations.get(&address) != Some(&bytes) {
            return Err(invalid(FUNCTION, "this is not a whole reservation"));
        }
        if space.mappings.range(address..address + bytes).next().is_some() {
            return Err(invalid(FUNCTION, "something is still mapped there"));
        }
        // SAFETY: the range was reserved here, nothing is mapped in it, and its owner gives it up.
        unsafe { unmap(FUNCTION, address, bytes) }?;
        space.reservations.remove(&address);
        Ok(())
    }

    unsafe fn extent_release(&self, extent: Extent) -> Result<()> {
        enter_memory_call(Call::ExtentRelease)?;
        let call = ExtentCall::begin(|| vec![extent.0]);
        let mut space = space();
        space.extent("extent_release", extent.0)?.is_released = true;
        space.free_if_unused(self.memory, extent.0).inspect(|()| call.mend())
    }

    unsafe fn extent_export(&self, extent: Extent) -> Result<OwnedFd> {
        let (place, _, descriptor) = on_space(Call::ExtentExport)?.place_of("extent_export", extent)?;
        let path = format!("/proc/self/fd/{descriptor}");
        let opened = OpenOptions::new().read(true).write(true).open(path).and_then(|mut file| {
            file.seek(SeekFrom::Start(place.offset))?;
            Ok(file)
        });
        opened.map(OwnedFd::from).map_err(|error| system_error("extent_export", error))
    }

    fn extent_import(&self, exported: ExportedExtent<'_>) -> Result<Extent> {
        const FUNCTION: &str = "extent_import";
        let mut space = on_space(Call::ExtentImport)?;
        let refused = |error: rustix::io::Errno| system_error(FUNCTION, error);
        let status = fstat(exported).map_err(refused)?;
        let offset = seek(exported, rustix::fs::SeekFrom::Current(0)).map_err(refused)?;
        let key = (status.st_dev, status.st_ino);
        let known = space.imported.get(&key).and_then(Weak::upgrade);
        let file = match known {
            Some(file) => file,
            None => {
                let file = exported.try_clone_to_owned().map_err(|error| system_error(FUNCTION, error))?;
                let file = Arc::new(File::from(file));
                space.imported.insert(key, Arc::downgrade(&file));
                file
            }
        };
        let place = FileRange { location: Device::from_ordinal(0).into(), offset, bytes: 0 };
        Ok(space.add_extent(place, Some(file)))
    }

    unsafe fn memory_map(&self, address: u64, bytes: u64, extent: Extent) -> Result<()> {
        const FUNCTION: &str = "memory_map";
        enter_memory_call(Call::MemoryMap)?;
        let call = ExtentCall::begin(|| vec![extent.0]);
        call.check_whole(FUNCTION)?;
        let mut space = space();
        let range = pages(FUNCTION, address, bytes)?;
        let reserved = space.reservations.range(..=address).next_back();
        if reserved.is_none_or(|(start, size)| range.end > start + size) {
            return Err(invalid(FUNCTION, "these addresses are not of one reservation"));
        }
        let last = space.mappings.range(..range.end).next_back();
        if last.is_some_and(|(start, mapping)| start + mapping.bytes > address) {
            return Err(invalid(FUNCTION, "something is mapped there"));
        }
        let (place, is_imported, descriptor) = space.place_of(FUNCTION, extent)?;
        if place.bytes != bytes && !is_imported {
            return Err(invalid(FUNCTION, "this is not the whole of the extent"));
        }
        // SAFETY: the range is of a reservation, and nothing is mapped there.
        unsafe { map(FUNCTION, Some(address), bytes, Behind::Closed(descriptor, place.offset)) }?;
        let extent_mapped = space.extent(FUNCTION, extent.0)?;
        extent_mapped.mappings += 1;
        extent_mapped.first = extent_mapped.first.or(NonZero::new(address));
        space.mappings.insert(address, SimulatedMapping { bytes, extent: extent.0, access: Vec::new() });
        Ok(())
    }

    unsafe fn memory_set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        const FUNCTION: &str = "memory_set_access";
        enter_memory_call(Call::MemorySetAccess)?;
        by.iter().try_for_each(|&location| self.memory.check(location))?;
        let call = ExtentCall::begin(|| space().extents_in(address, bytes));
        call.check_alone(FUNCTION)?;
        let mut space = space();
        let range = pages(FUNCTION, address, bytes)?;
        if by.is_empty() {
            return Err(invalid(FUNCTION, "no device was given"));
        }
        space.check_mapped(FUNCTION, &range)?;
        space.check_first_mappings(FUNCTION, &range, by)?;
        open(FUNCTION, address, bytes)?;
        for (_, mapping) in space.mappings.range_mut(range) {
            for by in by {
                if !mapping.access.contains(by) {
                    mapping.access.push(*by);
                }
            }
        }
        Ok(())
    }

    unsafe fn memory_unmap(&self, address: u64, bytes: u64) -> Result<()> {
        const FUNCTION: &str = "memory_unmap";
        enter_memory_call(Call::MemoryUnmap)?;
        uses::check_unused(address, bytes);
        let _call = ExtentCall::begin(|| space().extents_in(address, bytes));
        let mut space = space();
        let range = pages(FUNCTION, address, bytes)?;
        space.check_mapped(FUNCTION, &range)?;
        // SAFETY: the range consists of mappings made here, and their owner gives them up.
        unsafe { map(FUNCTION, Some(address), bytes, Behind::Nothing) }?;
        while let Some((&start, _)) = space.mappings.range(range.clone()).next() {
            let Some(mapping) = space.mappings.remove(&start) else { break };
            if let Some(extent) = space.extents.get_mut(&mapping.extent) {
                extent.mappings -= 1;
                extent.first.take_if(|first| first.get() == start);
            }
            space.free_if_unused(self.memory, mapping.extent)?;
        }
        Ok(())
    }
}
