//! What the tests of memory share.

use std::thread;

use gpupool::memory::memory_stats;
use gpupool::runtime::host::complete_all;
use gpupool::runtime::{self, BoundDevice};
use gpupool::{
    DeviceBuffer, Error, ErrorKind, MemPool, Result, Stream, devices_in_use, empty, empty_cache, pinned_stats,
};

use super::device;

pub(crate) const MIB: u64 = 1 << 20;
/// What memory is mapped and moved by.
pub(crate) const PAGE: u64 = 2 * MIB;

/// Bytes of a device that are not free, as its driver counts.
pub(crate) fn used(ordinal: u32) -> u64 {
    let runtime = runtime::get().unwrap();
    let _bound = BoundDevice::new(runtime, device(ordinal)).unwrap();
    let info = runtime.memory_info().unwrap();
    info.total - info.free
}

/// Bytes that the first device's pools have.
pub(crate) fn reserved() -> u64 {
    memory_stats(device(0)).unwrap().total.reserved_bytes
}

/// A block of the pool.
pub(crate) fn empty_in(pool: &MemPool, bytes: u64, stream: &Stream) -> Result<DeviceBuffer> {
    let _scope = pool.enter().unwrap();
    empty(bytes, stream)
}

/// Frees the block at an address of the test's own, or one that is to be refused.
pub(crate) fn deallocate(address: u64, on: Option<&Stream>) -> Result<()> {
    // SAFETY: a test frees what it holds, and uses it no more; any other address is one that gpupool is to refuse.
    unsafe { gpupool::memory::deallocate(address, on) }
}

/// The error of a request that memory ran out in.
#[track_caller]
pub(crate) fn out_of_memory<T>(outcome: Result<T>) -> Error {
    let error = outcome.map(drop).expect_err("there is no memory");
    assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
    error
}

/// Nothing is held, and once all work is done everything goes back.
#[track_caller]
pub(crate) fn assert_all_back() {
    complete_all().unwrap();
    empty_cache().unwrap();
    for device in devices_in_use().unwrap() {
        let (stats, used) = (memory_stats(device).unwrap(), used(device.ordinal() as u32));
        let held = (stats.total.live_blocks, stats.total.live_bytes, stats.total.requested_bytes);
        assert_eq!((held, stats.total.waiting_blocks), ((0, 0, 0), 0), "{device}: {stats:?}");
        assert_eq!((stats.total.reserved_bytes, stats.pools, used), (0, 1, 0), "{device}: {stats:?}");
    }
    assert_eq!(pinned_stats(None).unwrap().total.live_bytes, 0, "of pinned memory");
}

/// Checks at the end of a test that everything goes back.
pub(crate) struct AllBack;

impl Drop for AllBack {
    fn drop(&mut self) {
        if !thread::panicking() {
            assert_all_back();
        }
    }
}

/// Numbers that look random, the same in every run (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
