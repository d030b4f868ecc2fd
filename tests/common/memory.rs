//! What the tests of memory share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use gpupool::memory::{SegmentSource, memory_stats};
use gpupool::runtime::host::{UsedBlock, complete_all, create_stream, submit_using};
use gpupool::runtime::{self, BoundDevice};
use gpupool::{
    DeviceBuffer, Error, ErrorKind, MemPool, MemPoolBuilder, Result, Stream, devices_in_use, empty, empty_cache,
    pinned_stats,
};

use super::device;

pub(crate) const MIB: u64 = 1 << 20;
/// What memory is mapped and moved by.
pub(crate) const PAGE: u64 = 2 * MIB;

/// What makes a pool of the first device.
pub(crate) fn builder() -> MemPoolBuilder {
    MemPool::builder().device(device(0))
}

pub(crate) fn pool() -> MemPool {
    builder().build().unwrap()
}

/// Calls of the driver's memory functions for the first device, so far.
pub(crate) fn memory_calls() -> u64 {
    memory_stats(device(0)).unwrap().driver_calls
}

/// A stream of other code's, which does not block, and which its owner may destroy at any time.
pub(crate) fn foreign() -> Stream {
    let raw = create_stream(device(0)).unwrap();
    // SAFETY: a simulated stream can be asked for also when it is gone.
    unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap()
}

/// Submits work with a buffer, which the simulated device sees used by no other work before that is done, or ends the process.
pub(crate) fn use_buffer(stream: &Stream, buffer: &DeviceBuffer) {
    static LAST: AtomicU64 = AtomicU64::new(1);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    submit_using(stream, &[UsedBlock { number, address: buffer.ptr(), bytes: buffer.nbytes() }]).unwrap();
}

fn word(address: u64) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Writes to a block or a page, at an address where eight bytes of it stand.
pub(crate) fn write(address: u64, value: u64) {
    // SAFETY: the test holds what is there, and simulated devices have real bytes.
    unsafe { word(address).write_volatile(value) }
}

/// Reads as [`write`] writes.
pub(crate) fn read(address: u64) -> u64 {
    // SAFETY: as in `write`.
    unsafe { word(address).read_volatile() }
}

#[track_caller]
pub(crate) fn assert_consists_of(block: &DeviceBuffer, byte: u8, stream: &Stream) {
    let mut found = vec![0; block.nbytes() as usize];
    block.copy_to(&mut found, stream).unwrap();
    assert!(found == vec![byte; found.len()], "{} instead of {byte}", found[0]);
}

pub(crate) fn is_asleep(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Asleep(_))
}

/// The call was refused as one that cannot be right, by a reason that has all these words.
#[track_caller]
pub(crate) fn refused<T>(outcome: Result<T>, words: &[&str]) {
    let error = outcome.map(drop).expect_err("this cannot be right");
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
    says(&error, words);
}

#[track_caller]
pub(crate) fn says(error: &Error, words: &[&str]) {
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text:?} does not say {words:?}");
}

type Allocate = dyn Fn(u64, &Stream) -> Result<u64> + Send + Sync;
type Free = dyn Fn(u64, u64, &Stream) -> Result<()> + Send + Sync;

/// An allocator of a program's own.
pub(crate) struct Source(Box<Allocate>, Box<Free>);

impl fmt::Debug for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Source")
    }
}

// SAFETY: the addresses are a test's own, and no memory is behind them but the simulated driver's.
unsafe impl SegmentSource for Source {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        self.0(bytes, stream)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        self.1(address, bytes, stream)
    }
}

pub(crate) fn source(
    allocate: impl Fn(u64, &Stream) -> Result<u64> + Send + Sync + 'static,
    free: impl Fn(u64, u64, &Stream) -> Result<()> + Send + Sync + 'static,
) -> Arc<Source> {
    Arc::new(Source(Box::new(allocate), Box::new(free)))
}

/// Where the memory of [`made_up`] is.
pub(crate) const MADE_UP: u64 = 1 << 44;

/// An allocator of one segment, at an address that nothing uses.
pub(crate) fn made_up() -> Arc<Source> {
    source(
        |_, _| Ok(MADE_UP),
        |address, _, _| {
            assert_eq!(address, MADE_UP);
            Ok(())
        },
    )
}

/// A pool whose segments a source supplies.
pub(crate) fn pool_of(source: &Arc<Source>) -> MemPool {
    builder().allocator(Arc::<Source>::clone(source)).build().unwrap()
}

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

/// Mapped memory, joined where it is adjacent: end by start.
#[derive(PartialEq, Eq, Default, Debug)]
pub(crate) struct Mapped(BTreeMap<u64, u64>);

impl Mapped {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether none of it was mapped before.
    pub(crate) fn map(&mut self, mut start: u64, bytes: u64) -> bool {
        let mut end = start + bytes;
        if let Some((&before, &its_end)) = self.0.range(..end).next_back() {
            if its_end > start {
                return false;
            }
            if its_end == start {
                self.0.remove(&before);
                start = before;
            }
        }
        if let Some(its_end) = self.0.remove(&end) {
            end = its_end;
        }
        self.0.insert(start, end);
        true
    }

    /// Returns whether all of it was mapped, and is no more.
    pub(crate) fn unmap(&mut self, start: u64, bytes: u64) -> bool {
        let end = start + bytes;
        let Some((&first, &last)) = self.0.range(..=start).next_back().filter(|(_, last)| **last >= end) else {
            return false;
        };
        self.0.remove(&first);
        if first < start {
            self.0.insert(first, start);
        }
        if end < last {
            self.0.insert(end, last);
        }
        true
    }

    /// Returns whether such memory is all mapped.
    pub(crate) fn has(&self, start: u64, bytes: u64) -> bool {
        self.0.range(..=start).next_back().is_some_and(|(_, &end)| end >= start + bytes)
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
