//! The address range of a device's pages, and the driver calls that map extents for the device, there or elsewhere:
//! each bound to the device, safe in a stream capture, counted. A mapping is listed before its peers are read, and a
//! peer is added before the list is read for it. So each mapping is opened for each peer, by whichever thread comes
//! second.

use std::sync::Mutex;

use rustix::process::{Resource, getrlimit};

use super::access::{ExtentTurn, Mapped, Peers, Placed, reaches};
use super::elsewhere::end_with;
use super::pages::Mapping;
use crate::error::{Error, ErrorKind, OutOfMemory, Result, StatusKind, Wanted};
use crate::ids::{Device, MemoryLocation};
use crate::memory::tuning::{PAGE, ROOM};
use crate::runtime::{self, BoundDevice, Extent, MemoryInfo, RelaxedCapture, Runtime, locking_limits};
use crate::sync::{AtomicU64, Ordering, lock};

/// The least and the most bytes reserved: page tables have this size, and a GPU has 2^47 addresses. Miri is slow with
/// tables.
const ROOM_LEAST: u64 = if cfg!(loom) {
    PAGE
} else if cfg!(miri) {
    0x1_0000_0000
} else {
    0x100_0000_0000
};
const ROOM_MOST: u64 = if cfg!(miri) { ROOM_LEAST } else { 0x1000_0000_0000 };

/// Why a row is not open to all that are to have access.
struct NotOpened {
    error: Error,
    /// How many mappings come before the one whose extent the driver maps nowhere else any more, if that is why: all if it is
    /// not.
    usable: usize,
}

/// Addresses reserved for a device's pages, which are at offsets in it.
#[derive(Debug)]
pub(in crate::memory) struct AddressRange {
    location: MemoryLocation,
    pub(super) base: u64,
    /// 0 without virtual memory. Larger offsets are those of segments.
    pub(in crate::memory) bytes: u64,
    /// All that is mapped for the device, also outside the range.
    mapped: Mapped,
    pub(in crate::memory) peers: Peers,
    /// Calls of the driver's memory functions so far.
    pub(in crate::memory) driver_calls: AtomicU64,
}

pub(in crate::memory) fn with_device<R>(
    location: impl Into<MemoryLocation>,
    call: impl FnOnce(&'static dyn Runtime) -> Result<R>,
) -> Result<R> {
    let (runtime, location) = (runtime::get()?, location.into());
    let _bound = BoundDevice::of(runtime, location)?;
    let _relaxed = RelaxedCapture::new(runtime).map_err(|e| e.on(location))?;
    call(runtime).map_err(|e| e.on(location))
}

/// Places where the driver did not unmap extents that were opened there; see [`AddressRange::open_by_another_place`].
static LEFT: Mutex<Vec<(MemoryLocation, Placed)>> = Mutex::new(Vec::new());

/// Unmaps an extent at a place that was reserved to open it for a device, and gives up the addresses. If the driver
/// refuses, the place is kept for [`end_left`].
///
/// # Safety
/// Nothing uses the place, and no other call works on the extent.
unsafe fn end_place(location: MemoryLocation, other: Placed) -> Result<()> {
    let Placed { address, bytes, .. } = other;
    with_device(location, |runtime| {
        // SAFETY: as the caller promises.
        unsafe { runtime.memory_unmap(address, bytes) }?;
        // SAFETY: nothing is mapped there any more.
        let _ = unsafe { runtime.address_free(address, bytes) };
        Ok(())
    })
    .inspect_err(|_| lock(&LEFT).push((location, other)))
}

/// Unmaps an extent wherever the driver did not do so before. Its memory does not go as long as it is mapped.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses again; the call is to be repeated then.
///
/// # Safety
/// No other call works on the extent.
pub(in crate::memory) unsafe fn end_left(extent: Extent) -> Result<()> {
    let left: Vec<_> = lock(&LEFT).extract_if(.., |(_, placed)| placed.extent == extent).collect();
    // SAFETY: as the caller promises, and nothing has used the place.
    left.into_iter().map(|(location, other)| unsafe { end_place(location, other) }).fold(Ok(()), Result::and)
}

/// Adds the limits on lockable memory to an error.
pub(super) fn with_limits(error: Error, location: MemoryLocation) -> Error {
    match locking_limits().filter(|_| location.device().is_none()) {
        Some(limits) => error.advised(limits),
        None => error,
    }
}

/// As CUDA, HIP and the simulated platform number it.
const INVALID_VALUE: i32 = 1;
/// The status 999 of CUDA, HIP and the simulated platform, by which a driver refuses an extent for ever: NVIDIA's
/// driver 580.159 may do so with one that was mapped and unmapped often, by several threads, and leaves it usable where
/// it is mapped (`benches/results/h100/extents.txt`).
pub(in crate::memory) const UNKNOWN: i32 = 0x3e7;

/// Returns the error of a device for whose memory too few addresses are left, which drivers report as out of memory.
#[cold]
fn without_addresses(error: Error, location: MemoryLocation, bytes: u64) -> Error {
    match error.on(location).into_kind() {
        ErrorKind::Library(refused) if refused.kind == StatusKind::OutOfMemory => {
            let MemoryInfo { free, total } = runtime::memory_info(location).unwrap_or_default();
            let out = OutOfMemory::new(refused, location, Wanted::Addresses(bytes), free, total);
            ErrorKind::OutOfMemory(out.into()).into()
        }
        other => other.into(),
    }
}

/// Returns whether the process can reserve so many more addresses.
fn are_left(runtime: &dyn Runtime, bytes: u64) -> bool {
    // SAFETY: it was just reserved, and nothing uses it.
    runtime.address_reserve(bytes).and_then(|base| unsafe { runtime.address_free(base, bytes) }).is_ok()
}

impl AddressRange {
    pub(super) fn new(location: MemoryLocation, base: u64, bytes: u64) -> Self {
        let (mapped, peers) = (Mapped::default(), Peers::default());
        Self { location, base, bytes, mapped, peers, driver_calls: AtomicU64::new(0) }
    }

    /// Reserves addresses for a device with so much memory: none without virtual memory, or where its pages have
    /// another size than ours. If too few are left, reserves half as many while the device's memory fits, so that as
    /// many are left for the program.
    pub(super) fn reserve(location: MemoryLocation, total: u64) -> Result<Self> {
        let wanted = total.saturating_mul(ROOM).clamp(ROOM_LEAST, ROOM_MOST).next_multiple_of(PAGE);
        let (base, bytes) = with_device(location, |runtime| {
            if !runtime.supports_virtual_memory(location)? || !PAGE.is_multiple_of(runtime.page_bytes(location)?) {
                return Ok((0, 0));
            }
            // Miri cannot query it.
            let is_limited = !cfg!(miri) && getrlimit(Resource::As).current.is_some();
            let mut bytes = wanted;
            loop {
                let is_least = bytes / 2 < total;
                match runtime.address_reserve(bytes) {
                    Ok(base) if is_least || !is_limited || are_left(runtime, bytes) => return Ok((base, bytes)),
                    // SAFETY: it was just reserved, and nothing uses it.
                    Ok(base) => unsafe { runtime.address_free(base, bytes) }?,
                    Err(error) if is_least => return Err(without_addresses(error, location, bytes)),
                    Err(_) => {}
                }
                bytes = (bytes / 2).next_multiple_of(PAGE);
            }
        })?;
        let range = Self::new(location, base, bytes);
        if location.device().is_none() {
            // Every device uses the host's pinned memory.
            let devices = runtime::get()?.device_count();
            (0..devices).try_for_each(|ordinal| range.peers.let_in(Device::from_ordinal(ordinal), || Ok(())))?;
        }
        Ok(range)
    }

    pub(super) fn table_pages(&self) -> u32 {
        (self.bytes.max(ROOM_LEAST) / PAGE) as u32
    }

    #[inline]
    pub(in crate::memory) fn offset(&self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.base);
        (offset < self.bytes).then_some(offset)
    }

    /// Counts a call of a memory function made elsewhere.
    pub(in crate::memory) fn count_driver_call(&self) {
        self.driver_calls.fetch_add(1, Ordering::Relaxed);
    }

    fn driver<R>(&self, call: impl FnOnce(&'static dyn Runtime) -> Result<R>) -> Result<R> {
        self.count_driver_call();
        with_device(self.location, call)
    }

    /// # Safety
    /// Nothing is mapped in the range, and nothing will be.
    pub(in crate::memory) unsafe fn free(&self) {
        if self.bytes == 0 {
            return;
        }
        // SAFETY: `reserve` made the range, and the caller promises that it is unused.
        let _ = with_device(self.location, |runtime| unsafe { runtime.address_free(self.base, self.bytes) });
    }

    pub(in crate::memory) fn create(&self, pages: u32) -> Result<Extent> {
        let made = self.driver(|runtime| runtime.extent_create(self.location, u64::from(pages) * PAGE));
        made.map_err(|error| with_limits(error, self.location))
    }

    /// Releases an extent. Its memory goes when its last mapping does.
    ///
    /// # Safety
    /// [`AddressRange::create`] made the extent, and its only owner gives it up.
    pub(in crate::memory) unsafe fn release(&self, extent: Extent) -> Result<()> {
        // First, since the driver may reuse the extent's number at once.
        end_with(self.location, extent);
        let _turn = ExtentTurn::take([extent]);
        // SAFETY: the extent has the turn.
        unsafe { end_left(extent) }?;
        // SAFETY: the caller owns the extent and gives it up.
        self.driver(|runtime| unsafe { runtime.extent_release(extent) })
    }

    /// Returns where mappings are.
    pub(in crate::memory) fn placed(&self, row: &[Mapping]) -> Vec<Placed> {
        let placed = |&mapping: &Mapping| {
            let address = self.base + mapping.start();
            Placed { address, bytes: mapping.bytes(), extent: mapping.extent, source: None }
        };
        row.iter().map(placed).collect()
    }

    /// Maps extents in a row, and opens them to the device and its peers. Returns how many were mapped. If the driver
    /// refuses one, the caller unmaps those before; so also if it refuses one for ever ([`UNKNOWN`]) as it is opened.
    ///
    /// # Safety
    /// The addresses are reserved for this caller alone, which owns the extents, and these are as long as said.
    pub(in crate::memory) unsafe fn map(&self, row: &[Placed]) -> (usize, Result<()>) {
        for (count, placed) in row.iter().enumerate() {
            let &Placed { address, bytes, extent, .. } = placed;
            let turn = ExtentTurn::take([extent]);
            // SAFETY: as the caller promises.
            let outcome = self.driver(|runtime| unsafe { runtime.memory_map(address, bytes, extent) });
            if outcome.is_err() {
                return (count, outcome);
            }
            self.mapped.add(placed);
            drop(turn);
        }
        let turn = ExtentTurn::of(row);
        // SAFETY: all of it was just mapped, and the caller alone unmaps it.
        let opened = unsafe { self.open_in_turn(row, &turn) };
        drop(turn);
        let Err(NotOpened { error, usable }) = opened else { return (row.len(), Ok(())) };
        // SAFETY: no one has this place yet.
        let unmapped = unsafe { self.unmap(&row[usable..]) };
        (if unmapped.is_ok() { usable } else { row.len() }, Err(error))
    }

    /// Opens mappings to the device and its peers, as far as they are not, once no other call works on their extents.
    ///
    /// # Safety
    /// All of it is mapped in a row, and nothing unmaps it meanwhile.
    pub(in crate::memory) unsafe fn open(&self, row: &[Placed]) -> Result<()> {
        let turn = ExtentTurn::of(row);
        // SAFETY: as the caller promises.
        unsafe { self.open_in_turn(row, &turn) }.map_err(|refused| refused.error)
    }

    /// Returns the device and those of its peers that reach the memory.
    fn users_of(&self, placed: &Placed) -> Result<Vec<MemoryLocation>> {
        let mut users = vec![self.location];
        for peer in self.peers.devices() {
            if placed.source.map_or(Ok(true), |source| reaches(peer, source))? {
                users.push(peer.into());
            }
        }
        Ok(users)
    }

    /// Opens mappings to the device and those peers that reach the memory.
    ///
    /// # Safety
    /// All of it is mapped in a row, and nothing unmaps it meanwhile. The turn is for its extents: of two calls that open one
    /// mapping at once NVIDIA's driver 580.159 refuses one, and the peer may have no access then
    /// (`benches/results/h100-x2/peers.txt`).
    unsafe fn open_in_turn(&self, row: &[Placed], _turn: &ExtentTurn) -> Result<(), NotOpened> {
        let (Some(first), Some(last)) = (row.first(), row.last()) else { return Ok(()) };
        let refused = |error| NotOpened { error, usable: row.len() };
        let by = self.users_of(first).map_err(refused)?;
        // SAFETY: the caller promises that the range is mapped.
        let Err(error) = (unsafe { self.set_access(first.address, last.end() - first.address, &by) }) else {
            return Ok(());
        };
        if by.len() == 1 || !error.is_status(INVALID_VALUE) {
            return Err(refused(error));
        }
        row.iter().enumerate().try_for_each(|(index, placed)| {
            // SAFETY: each is mapped, and its extent's turn is this caller's.
            let opened = unsafe { self.open_by_another_place(placed, &by) };
            opened
                .map_err(|error| NotOpened { usable: if error.is_status(UNKNOWN) { index } else { row.len() }, error })
        })
    }

    /// Opens a mapping to which an extent was moved. For memory that RDMA can use, NVIDIA's driver 580.159 gives other
    /// devices access by the extent's first mapping, and refuses once that is gone, until there is a new one: so
    /// another is made and opened first, and removed afterwards (`benches/results/h100-x2/peers.txt`).
    ///
    /// # Safety
    /// It is mapped, and no other call works on its extent.
    unsafe fn open_by_another_place(&self, placed: &Placed, by: &[MemoryLocation]) -> Result<()> {
        let &Placed { address, bytes, extent, .. } = placed;
        // SAFETY: the caller promises that this is mapped.
        let refused = match unsafe { self.set_access(address, bytes, by) } {
            Err(error) if error.is_status(INVALID_VALUE) => error,
            opened => return opened,
        };
        let other = self.driver(|runtime| runtime.address_reserve(bytes))?;
        // SAFETY: the addresses were reserved for this, and the extent is mapped, so alive, and as long as its mapping.
        let mapped = self.driver(|runtime| unsafe { runtime.memory_map(other, bytes, extent) });
        let opened = match mapped {
            Ok(()) => {
                // SAFETY: both are mapped.
                let opened =
                    unsafe { self.set_access(other, bytes, by).and_then(|()| self.set_access(address, bytes, by)) };
                // What the driver refuses is tried again before the extent is released: until then its memory counts.
                // SAFETY: nothing uses the other place.
                let _ = unsafe { end_place(self.location, Placed { address: other, ..*placed }) };
                opened
            }
            Err(error) => {
                // SAFETY: nothing is mapped there.
                let _ = self.driver(|runtime| unsafe { runtime.address_free(other, bytes) });
                Err(error)
            }
        };
        // One that the driver maps nowhere else any more says so.
        opened.map_err(|error| if error.is_status(UNKNOWN) { error } else { refused })
    }

    /// # Safety
    /// The range consists of whole mappings.
    unsafe fn set_access(&self, address: u64, bytes: u64, by: &[MemoryLocation]) -> Result<()> {
        // SAFETY: as the caller promises.
        self.driver(|runtime| unsafe { runtime.memory_set_access(address, bytes, by) })
    }

    /// Unmaps mappings in a row, which may be none.
    ///
    /// # Safety
    /// No work uses the memory at these addresses, now or later.
    pub(in crate::memory) unsafe fn unmap(&self, row: &[Placed]) -> Result<()> {
        let (Some(first), Some(last)) = (row.first(), row.last()) else { return Ok(()) };
        let (address, bytes) = (first.address, last.end() - first.address);
        let _turn = ExtentTurn::of(row);
        // SAFETY: the caller promises that the memory is used no more there.
        self.driver(|runtime| unsafe { runtime.memory_unmap(address, bytes) })?;
        self.mapped.remove(address, bytes);
        Ok(())
    }

    /// Grants another device access to all present and later mappings. Waits if another thread is just doing so.
    ///
    /// # Errors
    /// `ErrorKind::Library` if the driver refuses. The device is no peer then.
    pub(in crate::memory) fn let_in(&self, peer: Device) -> Result<()> {
        self.peers.let_in(peer, || {
            for row in self.mapped.rows() {
                // The turn keeps all of it mapped.
                let turn = ExtentTurn::of(&row);
                for still in self.mapped.still(&row) {
                    // SAFETY: it is on the list of what is mapped, and what would unmap it waits for its turn.
                    unsafe { self.open_in_turn(&still, &turn) }.map_err(|refused| refused.error)?;
                }
            }
            Ok(())
        })
    }
}
