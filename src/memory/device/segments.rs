//! Segments: memory from another source than gpupool's pages, which is never moved: a user's own allocator, or the driver's
//! plain allocation if memory must be shared by legacy IPC or registered with a network card. It is returned to the source
//! that it came from. Each is outside of the device's range of addresses; an offset beyond it stands for its address.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, RwLock};

use super::address_range::with_device;
use super::address_space::{AddressSpace, Run};
use crate::error::{Error, OWN_ALLOCATOR, Result};
use crate::ids::Device;
use crate::memory::tuning::PAGE;
use crate::runtime::Stream;
use crate::sync::{lock, read, write};

/// Supplies a pool's memory. Called without any lock held, from any thread.
///
/// # Safety
/// What [`SegmentSource::allocate`] returns is memory of the stream's device, as long as was asked for, and has no other
/// owner until it is freed.
pub unsafe trait SegmentSource: Send + Sync + fmt::Debug {
    /// Allocates at least `bytes` of device memory at a multiple of 512 bytes, to be used first on the stream.
    ///
    /// # Errors
    /// Any error but `ErrorKind::Interrupted`, which ends the request, is treated as a lack of memory: the request releases
    /// what it can and tries again, and the caller sees the error of the last attempt.
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64>;

    /// Frees memory of [`SegmentSource::allocate`]. All work that uses it is done.
    ///
    /// # Errors
    /// The memory counts as freed nevertheless, unless [`SegmentSource::frees_again`] is true.
    ///
    /// # Safety
    /// This source has allocated it, so long and on that stream, and its owner gives it up.
    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()>;

    /// Returns whether memory whose free failed still exists, and must be freed again later.
    fn frees_again(&self) -> bool {
        false
    }
}

/// Two C functions with the signatures of PyTorch's pluggable allocator.
#[derive(Clone, Copy, Debug)]
pub struct SegmentFunctions {
    allocate: AllocateFunction,
    free: FreeFunction,
}

/// `void *(ssize_t size, int device, cudaStream_t stream)`: returns null if there is no memory.
pub type AllocateFunction = unsafe extern "C" fn(isize, i32, *mut std::ffi::c_void) -> *mut std::ffi::c_void;
/// `void (void *pointer, ssize_t size, int device, cudaStream_t stream)`.
pub type FreeFunction = unsafe extern "C" fn(*mut std::ffi::c_void, isize, i32, *mut std::ffi::c_void);

impl SegmentFunctions {
    /// Creates a source from these functions.
    ///
    /// # Safety
    /// The functions do what their types say, from any thread, until the process ends.
    pub unsafe fn new(allocate: AllocateFunction, free: FreeFunction) -> Self {
        Self { allocate, free }
    }
}

fn ordinal(device: Device) -> i32 {
    i32::try_from(device.ordinal()).unwrap_or(i32::MAX)
}

// SAFETY: `new` requires that the functions do what their types say.
unsafe impl SegmentSource for SegmentFunctions {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let size = isize::try_from(bytes).map_err(|_| Error::invalid_value(format!("{bytes} bytes are too many")))?;
        // SAFETY: `new` requires that the function may be called so, from any thread.
        let address = unsafe { (self.allocate)(size, ordinal(stream.device()), stream.raw().as_ptr()) };
        if address.is_null() {
            return Err(Error::no_memory(OWN_ALLOCATOR, "allocate returned a null pointer"));
        }
        Ok(address.addr() as u64)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        let pointer = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: `new` requires that the function takes back what `allocate` returned, from any thread.
        unsafe { (self.free)(pointer, bytes as isize, ordinal(stream.device()), stream.raw().as_ptr()) };
        Ok(())
    }
}

/// The driver's plain allocations (`cuMemAlloc`). Freeing one (`cuMemFree`) waits for the device.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct DriverSegments;

// SAFETY: the driver's memory is as long as was asked for, and this process's alone.
unsafe impl SegmentSource for DriverSegments {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        with_device(stream.device(), |runtime| runtime.memory_allocate(bytes))
    }

    unsafe fn free(&self, address: u64, _bytes: u64, stream: &Stream) -> Result<()> {
        // SAFETY: the memory came from `memory_allocate`, and the caller gives it up.
        with_device(stream.device(), |runtime| unsafe { runtime.memory_free(address) })
    }

    fn frees_again(&self) -> bool {
        true
    }
}

/// A segment's bytes, and the offset that stands for its address.
#[derive(Clone, Copy, Debug)]
struct SegmentRange {
    bytes: u64,
    offset: u64,
}

/// The table of a device's segments.
#[derive(Debug)]
pub(in crate::memory) struct Segments {
    /// By address.
    all: RwLock<BTreeMap<u64, SegmentRange>>,
    /// Their offsets, which begin where those of the address range end.
    space: Mutex<AddressSpace>,
}

impl Segments {
    /// Makes an empty table with room for so many pages from page `first` on.
    pub(super) fn new(first: u32, pages: u32) -> Self {
        Self { all: RwLock::default(), space: Mutex::new(AddressSpace::new(first, pages)) }
    }

    /// Adds a segment and returns its offset; none if no offsets are left.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if it overlaps another segment, or goes beyond the last address.
    pub(in crate::memory) fn add(&self, address: u64, bytes: u64) -> Result<Option<u64>> {
        // A page stays unused after each segment, so that segments never join.
        let Ok(pages) = u32::try_from(bytes.div_ceil(PAGE) + 1) else { return Ok(None) };
        let Some(run) = lock(&self.space).take_any(pages) else { return Ok(None) };
        let offset = run.start();
        let mut all = write(&self.all);
        if address.checked_add(bytes).is_none() || overlaps(&all, address, bytes) {
            drop(all);
            lock(&self.space).put_back(run);
            return Err(overlapping(address, bytes));
        }
        all.insert(address, SegmentRange { bytes, offset });
        Ok(Some(offset))
    }

    pub(in crate::memory) fn remove(&self, address: u64, offset: u64, bytes: u64) {
        write(&self.all).remove(&address);
        let run = Run { first: (offset / PAGE) as u32, pages: bytes.div_ceil(PAGE) as u32 + 1 };
        lock(&self.space).put_back(run);
    }

    pub(in crate::memory) fn offset(&self, address: u64) -> Option<u64> {
        let all = read(&self.all);
        let (start, segment) = all.range(..=address).next_back()?;
        (address - start < segment.bytes).then(|| segment.offset + (address - start))
    }

    pub(in crate::memory) fn starts_at(&self, address: u64) -> bool {
        read(&self.all).contains_key(&address)
    }

    pub(in crate::memory) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        overlaps(&read(&self.all), address, bytes)
    }
}

fn overlaps(all: &BTreeMap<u64, SegmentRange>, address: u64, bytes: u64) -> bool {
    let is_above = |(start, segment): (&u64, &SegmentRange)| start + segment.bytes > address;
    all.range(..address.saturating_add(bytes)).next_back().is_some_and(is_above)
}

/// Returns the error of a pool's own allocator that hands memory out twice.
pub(in crate::memory) fn overlapping(address: u64, bytes: u64) -> Error {
    Error::invalid_value(format!(
        "the pool's own allocator returned {address:#x} for {bytes} bytes, which overlaps memory that is still in use"
    ))
}
