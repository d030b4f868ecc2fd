//! Pools as a C program has them.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use gpupool::c_api::{C_API, Checkpoint, DeviceStats, Observer, PoolHandle, PoolOptions, PoolSource};
use gpupool::{PoolId, Stream};

pub(crate) const OUT_OF_MEMORY: c_int = 1;
pub(crate) const INVALID_VALUE: c_int = 2;
pub(crate) const DRIVER: c_int = 3;
pub(crate) const UNAVAILABLE: c_int = 8;

pub(crate) fn last_error() -> String {
    // SAFETY: it is never null, and this thread makes no call meanwhile.
    unsafe { CStr::from_ptr((C_API.last_error)()) }.to_str().unwrap().to_owned()
}

/// The call succeeded.
#[track_caller]
pub(crate) fn succeeded(status: c_int) {
    assert_eq!(status, 0, "{}", last_error());
}

/// The call failed with this status, and the reason has all these words.
#[track_caller]
pub(crate) fn failed(status: c_int, expected: c_int, words: &[&str]) {
    let text = last_error();
    assert_eq!(status, expected, "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text:?} does not say {words:?}");
}

/// A block of no pool's, on the stream's device; or the status of a call that gave none.
pub(crate) fn try_allocate(bytes: u64, stream: &Stream) -> Result<*mut c_void, c_int> {
    let mut pointer = ptr::dangling_mut();
    let ordinal = stream.device().ordinal() as c_int;
    // SAFETY: the stream is alive and of its device.
    match unsafe { (C_API.allocate)(bytes, ordinal, stream.raw().as_ptr(), &raw mut pointer) } {
        0 => Ok(pointer),
        status => {
            assert!(pointer.is_null(), "what was not allocated has no address");
            Err(status)
        }
    }
}

#[track_caller]
pub(crate) fn allocate(bytes: u64, stream: &Stream) -> *mut c_void {
    try_allocate(bytes, stream).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
}

pub(crate) fn try_deallocate(pointer: *const c_void) -> c_int {
    // SAFETY: what is no block of gpupool's is refused.
    unsafe { (C_API.deallocate)(pointer.cast_mut()) }
}

#[track_caller]
pub(crate) fn deallocate(pointer: *mut c_void) {
    succeeded(try_deallocate(pointer));
}

/// What a function that fills statistics says.
#[track_caller]
pub(crate) fn stats_of(fill: impl FnOnce(*mut DeviceStats) -> c_int) -> DeviceStats {
    let mut stats = DeviceStats { size: size_of::<DeviceStats>() as u64, ..DeviceStats::default() };
    succeeded(fill(&raw mut stats));
    stats
}

#[track_caller]
pub(crate) fn device_stats(ordinal: c_int) -> DeviceStats {
    // SAFETY: the statistics say their size.
    stats_of(|stats| unsafe { (C_API.device_stats)(ordinal, stats) })
}

pub(crate) fn observe(observer: Observer, context: *mut c_void) {
    // SAFETY: the function takes this context from any thread, and the test ends the observation before it.
    succeeded(unsafe { (C_API.observe)(Some(observer), context) });
}

pub(crate) fn end_observing() {
    // SAFETY: no observer is none.
    succeeded(unsafe { (C_API.observe)(None, ptr::null_mut()) });
}

/// A use of a pool, to be released. Any thread may have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CPool(pub(crate) *mut PoolHandle);

// SAFETY: a handle may be used on any thread.
unsafe impl Send for CPool {}
// SAFETY: as above.
unsafe impl Sync for CPool {}

/// A block's address. Any thread may have it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Address(pub(crate) u64);

pub(crate) fn options() -> PoolOptions {
    PoolOptions {
        size: size_of::<PoolOptions>() as u64,
        for_graphs: 0,
        use_on_oom: 0,
        no_split: 0,
        name: ptr::null(),
        source: ptr::null(),
        sleeps_for_others: 0,
        wakes_on_use: 0,
    }
}

/// A pool on device 0.
#[track_caller]
pub(crate) fn create(options: PoolOptions) -> CPool {
    let mut pool = ptr::null_mut();
    // SAFETY: the options say their size, and their pointers are alive.
    succeeded(unsafe { (C_API.pool_create)(0, &raw const options, &raw mut pool) });
    CPool(pool)
}

pub(crate) fn for_graphs() -> CPool {
    create(PoolOptions { for_graphs: 1, ..options() })
}

pub(crate) fn named(name: &str) -> CPool {
    let name = CString::new(name).unwrap();
    create(PoolOptions { name: name.as_ptr(), ..options() })
}

pub(crate) fn with_source(source: &PoolSource) -> CPool {
    create(PoolOptions { source, ..options() })
}

pub(crate) fn ticket() -> u64 {
    // SAFETY: it takes nothing.
    unsafe { (C_API.ticket)() }
}

pub(crate) fn free(address: Address) {
    succeeded(try_free(address));
}

pub(crate) fn try_free(address: Address) -> c_int {
    // SAFETY: what is no block of gpupool's is refused.
    unsafe { (C_API.deallocate)(ptr::without_provenance_mut(address.0 as usize)) }
}

pub(crate) fn record_stream(address: Address, stream: &Stream) {
    let pointer = ptr::without_provenance_mut(address.0 as usize);
    // SAFETY: the stream is alive.
    succeeded(unsafe { (C_API.record_stream)(pointer, 0, stream.raw().as_ptr()) });
}

/// What a restored checkpoint said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Told {
    pub(crate) freed: Vec<Address>,
    pub(crate) allocated: Vec<(Address, u64)>,
}

unsafe extern "C" fn note_freed(told: *mut c_void, pointer: *mut c_void) {
    // SAFETY: the context is what `restore` passes.
    unsafe { &mut *told.cast::<Told>() }.freed.push(Address(pointer.addr() as u64));
}

unsafe extern "C" fn note_allocated(told: *mut c_void, pointer: *mut c_void, requested: u64) {
    // SAFETY: the context is what `restore` passes.
    unsafe { &mut *told.cast::<Told>() }.allocated.push((Address(pointer.addr() as u64), requested));
}

/// A checkpoint, which is released when it is dropped.
#[derive(Debug)]
pub(crate) struct CCheckpoint(pub(crate) *mut Checkpoint);

impl Drop for CCheckpoint {
    fn drop(&mut self) {
        // SAFETY: it was not released before.
        unsafe { (C_API.checkpoint_release)(self.0) };
    }
}

impl CPool {
    pub(crate) fn try_allocate(self, bytes: u64, ticket: u64, stream: &Stream) -> Result<Address, c_int> {
        let mut pointer = ptr::dangling_mut();
        // SAFETY: the stream is alive and of the pool's device.
        match unsafe { (C_API.pool_allocate)(self.0, ticket, bytes, stream.raw().as_ptr(), &raw mut pointer) } {
            0 => Ok(Address(pointer.addr() as u64)),
            status => {
                assert!(pointer.is_null(), "what was not allocated has no address");
                Err(status)
            }
        }
    }

    #[track_caller]
    pub(crate) fn allocate(self, bytes: u64, stream: &Stream) -> Address {
        let found = self.try_allocate(bytes, ticket(), stream);
        found.unwrap_or_else(|status| panic!("{status}: {}", last_error()))
    }

    pub(crate) fn try_release(self) -> c_int {
        // SAFETY: what is no pool is refused.
        unsafe { (C_API.pool_release)(self.0) }
    }

    #[track_caller]
    pub(crate) fn release(self) {
        succeeded(self.try_release());
    }

    #[track_caller]
    pub(crate) fn id(self) -> PoolId {
        let mut id = PoolId::NONE;
        // SAFETY: the place is one for an id.
        succeeded(unsafe { (C_API.pool_id)(self.0, &raw mut id) });
        id
    }

    #[track_caller]
    pub(crate) fn trim(self) -> u64 {
        let mut bytes = 0;
        // SAFETY: the place is one for a number.
        succeeded(unsafe { (C_API.pool_trim)(self.0, &raw mut bytes) });
        bytes
    }

    pub(crate) fn try_checkpoint(self) -> Result<CCheckpoint, c_int> {
        let mut checkpoint = ptr::null_mut();
        // SAFETY: the place is one for a pointer.
        match unsafe { (C_API.pool_checkpoint)(self.0, &raw mut checkpoint) } {
            0 => Ok(CCheckpoint(checkpoint)),
            status => Err(status),
        }
    }

    #[track_caller]
    pub(crate) fn checkpoint(self) -> CCheckpoint {
        self.try_checkpoint().unwrap_or_else(|status| panic!("{status}: {}", last_error()))
    }

    /// What it said, sorted.
    pub(crate) fn try_restore(self, checkpoint: &CCheckpoint) -> Result<Told, c_int> {
        let mut told = Told::default();
        let context = (&raw mut told).cast();
        // SAFETY: the checkpoint is alive, and the functions take the context that they get.
        let status =
            unsafe { (C_API.pool_restore)(self.0, checkpoint.0, context, Some(note_freed), Some(note_allocated)) };
        told.freed.sort_unstable();
        told.allocated.sort_unstable();
        if status == 0 { Ok(told) } else { Err(status) }
    }

    #[track_caller]
    pub(crate) fn restore(self, checkpoint: &CCheckpoint) -> Told {
        self.try_restore(checkpoint).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
    }
}
