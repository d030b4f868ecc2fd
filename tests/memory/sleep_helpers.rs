//! Pools whose memory serves other pools: they fall asleep alone only while no such block is live, for its user has not asked
//! for sleep.

use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::memory::{MIB, PAGE, assert_all_back, assert_consists_of, empty_in, pool};
use crate::common::{device, on_thread, stream};
use gpupool::memory::deallocate;
use gpupool::runtime::host::{Call, before_call, clear_before_call, complete_all, submit};
use gpupool::{Backup, DeviceBuffer, Error, ErrorKind, MemPool, MemPoolBuilder, Result, Stream, empty, memory_stats};

fn builder() -> MemPoolBuilder {
    MemPool::builder().device(device(0)).use_on_oom(true)
}

/// A pool that keeps the only page of the device, in part.
fn helper(own: &Stream) -> (MemPool, DeviceBuffer) {
    let helper = builder().build().unwrap();
    let kept = empty_in(&helper, MIB / 4, own).unwrap();
    (helper, kept)
}

/// A block that the default pool was asked for, and that lies in the helper.
#[track_caller]
fn served(helper: &MemPool, bytes: u64, stream: &Stream) -> DeviceBuffer {
    let block = empty(bytes, stream).unwrap();
    assert_eq!(block.pool_id(), helper.id());
    block
}

#[track_caller]
fn refused(outcome: Result<u64>) -> String {
    let error = outcome.map(drop).expect_err("another pool's user has a block there");
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
    error.to_string()
}

/// The helper may sleep now, and nothing is left of it then.
#[track_caller]
fn end(helper: MemPool, kept: DeviceBuffer) {
    assert_eq!(helper.sleep(Backup::Host).unwrap(), PAGE);
    drop((kept, helper));
    assert_all_back();
}

/// A block holds what is written there: its memory is awake.
#[track_caller]
fn assert_usable(block: &DeviceBuffer, stream: &Stream) {
    block.fill(7, stream).unwrap();
    assert_consists_of(block, 7, stream);
}

#[test]
fn blocks_of_every_size_on_every_stream_are_counted_where_they_lie() {
    memory!(1, PAGE);
    let (own, other) = (stream(0), stream(0));
    let (helper, _kept) = helper(&own);
    let sizes = [300, 64 << 10, 100_000, MIB / 2];
    let blocks: Vec<_> = sizes.iter().flat_map(|&bytes| [&own, &other].map(|on| (bytes, on))).collect();
    for (bytes, on) in blocks {
        let blocks = [served(&helper, bytes, on), served(&helper, bytes, on)];
        let stats = (helper.stats().unwrap(), memory_stats(device(0)).unwrap());
        assert_eq!((stats.0.live_blocks, stats.1.total.live_blocks), (3, 3));
        for backup in [Backup::Host, Backup::None] {
            let error = refused(helper.sleep(backup));
            let first = blocks.iter().map(DeviceBuffer::ptr).min().unwrap();
            for word in [&helper.id().to_string(), "2 of its blocks", &format!("{first:#x}"), "gpupool.sleep(0)"] {
                assert!(error.contains(word), "{word} in {error}");
            }
        }
        blocks.iter().for_each(|block| assert_usable(block, on));
        drop(blocks);
        complete_all().unwrap();
        // The pool's own block does not count.
        assert_eq!((helper.sleep(Backup::Host).unwrap(), helper.wake().unwrap()), (PAGE, PAGE));
        assert_eq!(helper.stats().unwrap().live_blocks, 1);
    }
}

#[test]
fn a_private_pools_block_is_as_much_anothers() {
    memory!(1, PAGE);
    let own = stream(0);
    let (helper, kept) = helper(&own);
    let asker = pool();
    let block = empty_in(&asker, MIB / 2, &own).unwrap();
    assert_eq!(block.pool_id(), helper.id());
    refused(helper.sleep(Backup::Host));
    // The asker has no memory of its own, and its sleep is not in the way.
    assert_eq!(asker.sleep(Backup::Host).unwrap(), 0);
    assert_usable(&block, &own);
    drop((asker, block));
    end(helper, kept);
}

#[test]
fn however_it_is_freed_the_pool_may_sleep_then() {
    memory!(1, PAGE);
    let (own, other) = (stream(0), stream(0));
    let (helper, _kept) = helper(&own);
    let frees: [fn(DeviceBuffer, &Stream); 6] = [
        |block, _| drop(block),
        // SAFETY: nothing else has the block.
        |block, _| unsafe { deallocate(block.into_ptr(), None) }.unwrap(),
        |block, other| block.free_on(other).unwrap(),
        |block, _| on_thread(move || drop(block)),
        |block, other| {
            block.record_stream(other).unwrap();
            submit(other).unwrap();
            drop(block);
        },
        // SAFETY: nothing else has the block.
        |block, other| unsafe { deallocate(block.into_ptr(), Some(other)) }.unwrap(),
    ];
    for free in frees {
        for (bytes, on) in [(300, &own), (MIB / 2, &own), (300, &other), (MIB / 2, &other)] {
            let block = served(&helper, bytes, on);
            refused(helper.sleep(Backup::Host));
            free(block, &other);
            // Work that the block waits for is waited for.
            assert_eq!(helper.sleep(Backup::Host).unwrap(), PAGE);
            helper.wake().unwrap();
            // The next block at the address is the pool's own.
            let again = empty_in(&helper, bytes, on).unwrap();
            assert_eq!(helper.sleep(Backup::Host).unwrap(), PAGE);
            helper.wake().unwrap();
            drop(again);
            complete_all().unwrap();
        }
    }
}

#[test]
fn a_pool_that_is_closed_sleeps_no_sooner() {
    memory!(1, PAGE);
    let own = stream(0);
    let (helper, kept) = helper(&own);
    let block = served(&helper, MIB / 2, &own);
    helper.close().unwrap();
    refused(helper.sleep(Backup::Host));
    assert_usable(&block, &own);
    drop(block);
    end(helper, kept);
}

#[test]
fn a_reserve_that_serves_another_pool_stays_there() {
    memory!(1, 2 * PAGE);
    let own = stream(0);
    let helper = builder().reserve(PAGE).build().unwrap();
    drop(empty_in(&helper, PAGE, &own).unwrap());
    let _held = empty(PAGE, &own).unwrap();
    let block = served(&helper, PAGE, &own);
    refused(helper.sleep(Backup::None));
    assert_usable(&block, &own);
    drop(block);
    assert_eq!(helper.sleep(Backup::None).unwrap(), PAGE);
}

/// Who puts the whole device to sleep has asked for all that is on it.
#[test]
fn a_whole_device_sleeps_whoever_has_its_blocks() {
    memory!(1, PAGE);
    let own = stream(0);
    let (helper, _kept) = helper(&own);
    let block = served(&helper, MIB / 2, &own);
    block.fill(3, &own).unwrap();
    assert_eq!(gpupool::sleep(device(0), Backup::Host).unwrap(), PAGE);
    assert!(helper.is_asleep());
    let error = block.fill(4, &own).expect_err("it is asleep");
    assert!(matches!(error.kind(), ErrorKind::Asleep(_)) && error.to_string().contains("gpupool.wake(0)"), "{error}");
    // Asleep already.
    assert_eq!(helper.sleep(Backup::Host).unwrap(), 0);
    assert_eq!(gpupool::wake(device(0)).unwrap(), PAGE);
    assert_consists_of(&block, 3, &own);
    refused(helper.sleep(Backup::Host));
}

/// A request that has taken a block and waits for the work of its stream so far.
#[test]
fn a_block_counts_from_when_it_is_taken() {
    memory!(1, PAGE);
    let (own, other) = (stream(0), stream(0));
    let (helper, _kept) = helper(&own);
    let helper = Arc::new(helper);
    let met: Arc<Mutex<Option<std::result::Result<u64, Error>>>> = Arc::default();
    submit(&own).unwrap();
    let (same, outcome) = (Arc::clone(&helper), Arc::clone(&met));
    before_call(Call::EventRecord, 0, move || {
        let outcome_there = thread::spawn(move || same.sleep(Backup::Host)).join().unwrap();
        *outcome.lock().unwrap() = Some(outcome_there);
    });
    let block = served(&helper, MIB / 2, &other);
    assert_eq!(clear_before_call(), 0);
    refused(met.lock().unwrap().take().expect("an event was recorded"));
    assert_usable(&block, &other);
}
