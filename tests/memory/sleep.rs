//! Pools that sleep: their memory goes, their addresses and contents come back.

use std::sync::Arc;

use crate::common::memory::{
    MIB, PAGE, assert_all_back, builder, empty_in, made_up, out_of_memory, read, reserved, used, write,
};
use crate::common::{MEMORY, device, on_thread, stream};
use gpupool::runtime::host::{
    Call, Fault, accessible, begin_capture, clear_faults, complete_all, create_stream, destroy_stream, end_capture,
    inject, submit,
};
use gpupool::{
    Backup, CaptureMode, DeviceBuffer, Error, ErrorKind, MemPool, PoolId, StatusKind, Stream, empty, empty_cache,
    memory_snapshot, memory_stats, memory_summary, on_oom, pinned_stats, set_pinned_limit,
};

/// Writes a number at the start of each 512 bytes of a block.
fn fill(buffer: &DeviceBuffer, number: u64) {
    for at in (0..buffer.nbytes().saturating_sub(7)).step_by(512) {
        write(buffer.ptr() + at, number + at);
    }
}

#[track_caller]
fn assert_filled(buffer: &DeviceBuffer, number: u64) {
    for at in (0..buffer.nbytes().saturating_sub(7)).step_by(512) {
        assert_eq!(read(buffer.ptr() + at), number + at, "at {at} of a block of {} bytes", buffer.nbytes());
    }
}

#[track_caller]
fn asleep<T>(outcome: Result<T, Error>) -> String {
    let error = outcome.map(drop).expect_err("the pool is asleep");
    assert!(matches!(error.kind(), ErrorKind::Asleep(_)), "{error}");
    error.to_string()
}

/// Bytes of pinned memory that are in use.
fn pinned() -> u64 {
    pinned_stats(None).unwrap().total.live_bytes
}

const SIZES: [u64; 7] = [100, 5000, 64 << 10, 700 << 10, 3 * MIB, 40 * MIB, 90 * MIB + 512];

fn blocks(pool: &MemPool, stream: &Stream) -> Vec<DeviceBuffer> {
    blocks_of(&SIZES, pool, stream)
}

fn blocks_of(sizes: &[u64], pool: &MemPool, stream: &Stream) -> Vec<DeviceBuffer> {
    let blocks: Vec<_> = sizes.iter().map(|&bytes| empty_in(pool, bytes, stream).unwrap()).collect();
    (1..).zip(&blocks).for_each(|(number, block)| fill(block, number << 32));
    blocks
}

#[track_caller]
fn assert_whole(blocks: &[DeviceBuffer]) {
    (1..).zip(blocks).for_each(|(number, block)| assert_filled(block, number << 32));
}

#[test]
fn what_is_live_comes_back_at_the_same_addresses() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let blocks = blocks(&pool, &stream);
    // Free memory is not copied, and goes for good.
    drop(empty_in(&pool, 64 * MIB, &stream).unwrap());
    let had = pool.stats().unwrap();
    assert!(!pool.is_asleep());
    assert_eq!(pool.sleep(Backup::Host).unwrap(), had.reserved_bytes);
    assert!(pool.is_asleep());
    assert_eq!((used(0), reserved(), pool.stats().unwrap().reserved_bytes), (0, 0, 0));
    assert!(blocks.iter().all(|block| !accessible(block.ptr(), device(0))));
    let slept = pool.stats().unwrap();
    assert_eq!((slept.live_bytes, slept.asleep_bytes, slept.cached_bytes), (had.live_bytes, had.live_bytes, 0));
    assert!((had.live_bytes..had.live_bytes + MIB).contains(&slept.backup_bytes), "{slept:?}");
    assert_eq!(pinned(), slept.backup_bytes.next_multiple_of(512));
    assert_eq!(pool.sleep(Backup::Host).unwrap(), 0);

    let taken = pool.wake().unwrap();
    assert!((had.live_bytes..had.reserved_bytes - 60 * MIB).contains(&taken), "{taken}");
    assert!(!pool.is_asleep());
    let took = || memory_summary(device(0)).unwrap().pools.iter().map(|pool| pool.wake_took).collect::<Vec<_>>();
    let waking = took();
    assert_eq!((pool.wake().unwrap(), used(0), pinned()), (0, taken, 0));
    assert_eq!(took(), waking, "a pool that is awake was woken");
    assert_whole(&blocks);
    let woken = pool.stats().unwrap();
    assert_eq!((woken.live_bytes, woken.asleep_bytes, woken.backup_bytes), (had.live_bytes, 0, 0));
    // What came back can be used, moved and given back as before.
    drop(blocks);
    let whole = empty_in(&pool, 128 * MIB, &stream).unwrap();
    fill(&whole, 7);
    drop(whole);
    assert_eq!(pool.trim().unwrap(), pool.stats().unwrap().peak_reserved_bytes.min(taken));
}

#[test]
fn without_a_backup_addresses_come_back_and_pinned_memory_is_not_asked_for() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let block = empty_in(&pool, 50 * MIB, &stream).unwrap();
    let before = pinned_stats(None).unwrap().total.allocations;
    assert_eq!(pool.sleep(Backup::None).unwrap(), 50 * MIB);
    assert_eq!(pool.stats().unwrap().backup_bytes, 0);
    assert_eq!(pool.wake().unwrap(), 50 * MIB);
    assert_eq!(pinned_stats(None).unwrap().total.allocations, before);
    fill(&block, 3);
    assert_filled(&block, 3);
}

#[test]
fn a_request_fails_at_once_and_says_how_to_wake_the_pool() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let _small = empty_in(&pool, 100, &stream).unwrap();
    let free = empty_in(&pool, 100, &stream).unwrap();
    drop(free);
    pool.sleep(Backup::Host).unwrap();
    for bytes in [100, 64 * MIB] {
        let text = asleep(empty_in(&pool, bytes, &stream));
        let wanted = format!("memory pool {} on device 0 is asleep and serves no request", pool.id());
        assert!(text.contains(&wanted) && text.contains("gpupool.wake(0)"), "{text}");
    }
    // Also of a thread and a stream that had nothing of it, and while another pool wakes as ever.
    let (token, other) = (pool.token(), crate::common::stream(0));
    asleep(on_thread(move || {
        let _scope = token.enter().unwrap();
        empty(5000, &other)
    }));
    drop(empty(5000, &stream).unwrap());
    pool.wake().unwrap();
    drop(empty_in(&pool, 100, &stream).unwrap());
}

#[test]
fn it_waits_for_streams_that_cannot_be_asked() {
    memory!();
    let raw = create_stream(device(0)).unwrap();
    // SAFETY: the stream is not used once it is destroyed.
    let foreign = unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap();
    let (own, other) = (stream(0), stream(0));
    let pool = builder().build().unwrap();
    let _kept = empty_in(&pool, PAGE, &foreign).unwrap();
    let recorded = empty_in(&pool, PAGE, &own).unwrap();
    recorded.record_stream(&other).unwrap();
    submit(&own).unwrap();
    submit(&other).unwrap();
    drop(recorded);
    destroy_stream(raw, device(0)).unwrap();
    pool.sleep(Backup::Host).unwrap();
    // Its work is done, and the block that waited for it is gone.
    assert!(own.query().unwrap() && other.query().unwrap());
    let stats = pool.stats().unwrap();
    assert_eq!((stats.waiting_blocks, stats.live_blocks, used(0)), (0, 1, 0));
    pool.wake().unwrap();
    assert_eq!(used(0), PAGE);
}

#[test]
fn a_capture_under_way_refuses_sleep_and_is_not_spoilt() {
    memory!();
    let (captured, own) = (stream(0), stream(0));
    let pool = builder().build().unwrap();
    let _block = empty_in(&pool, MIB, &own).unwrap();
    begin_capture(&captured, CaptureMode::Global).unwrap();
    let error = pool.sleep(Backup::Host).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
    assert!(error.to_string().contains("end the capture first"), "{error}");
    assert!(!pool.is_asleep());
    end_capture(&captured).unwrap();
    pool.sleep(Backup::Host).unwrap();
    pool.wake().unwrap();
}

#[test]
fn what_a_graph_may_use_is_there_again_also_where_it_is_free() {
    memory!();
    let stream = stream(0);
    let pool = builder().user_created(false).build().unwrap();
    let scope = pool.capture(&stream).unwrap();
    begin_capture(&stream, CaptureMode::Relaxed).unwrap();
    let input = empty(3 * MIB, &stream).unwrap();
    let between = empty(8 * MIB, &stream).unwrap();
    let address = between.ptr();
    drop(between);
    drop(end_capture(&stream).unwrap());
    let _memory = scope.end().unwrap();
    fill(&input, 5);
    let before = used(0);
    pool.sleep(Backup::Host).unwrap();
    assert_eq!(used(0), 0);
    pool.wake().unwrap();
    assert_eq!(used(0), before);
    assert!(accessible(address, device(0)) && accessible(address + 8 * MIB - 1, device(0)));
    assert_filled(&input, 5);
}

#[test]
fn a_block_that_is_freed_asleep_is_gone_and_so_is_its_backup() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let mut blocks = blocks(&pool, &stream);
    let had = pool.stats().unwrap();
    pool.sleep(Backup::Host).unwrap();
    let large = blocks.pop().unwrap();
    // From another thread too.
    let other = blocks.remove(5);
    on_thread(move || drop(other));
    drop(large);
    let stats = pool.stats().unwrap();
    assert_eq!((stats.live_blocks, stats.asleep_bytes), (had.live_blocks - 2, stats.live_bytes));
    assert_eq!(used(0), 0);
    let taken = pool.wake().unwrap();
    assert!(taken < 20 * MIB, "{taken}");
    assert_whole(&blocks);
    // Everything freed asleep: nothing is taken, and the pinned memory is free as soon as it is asked for.
    pool.sleep(Backup::Host).unwrap();
    drop(blocks);
    assert!(pinned() > 0);
    assert_eq!((pool.trim().unwrap(), pinned()), (0, 0));
    assert_eq!((pool.wake().unwrap(), used(0)), (0, 0));
}

#[test]
fn a_pool_that_is_dropped_or_closed_asleep_leaves_nothing_behind() {
    memory!();
    let stream = stream(0);
    for is_closed in [false, true] {
        // With blocks that are freed later, and ones that are woken by the device's wake.
        for is_woken in [false, true] {
            let pool = builder().build().unwrap();
            let blocks = blocks(&pool, &stream);
            pool.sleep(Backup::Host).unwrap();
            if is_closed {
                pool.close().unwrap();
            }
            let mut pool = Some(pool).filter(|_| is_closed);
            if is_woken {
                gpupool::wake(device(0)).unwrap();
                assert_whole(&blocks);
            }
            drop(blocks);
            assert_eq!((used(0), pinned()), (0, 0), "closed {is_closed}, woken {is_woken}");
            pool.take();
            assert_eq!(memory_stats(device(0)).unwrap().pools, 1);
        }
    }
}

#[test]
fn where_there_is_no_memory_it_stays_asleep_and_the_error_names_who_has_it() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let blocks = blocks(&pool, &stream);
    pool.sleep(Backup::Host).unwrap();
    let backup = pool.stats().unwrap().backup_bytes;
    // More than half of the device, and the rest too, so that the last extent finds none.
    let hog = empty(MEMORY - 64 * MIB, &stream).unwrap();
    let error = out_of_memory(pool.wake());
    let text = error.to_string();
    assert!(
        text.contains("default memory pool 960.0 MiB (1 live block, 960.0 MiB)") && text.contains("stays asleep"),
        "{text}"
    );
    assert!(pool.is_asleep());
    assert_eq!((pool.stats().unwrap().backup_bytes, used(0)), (backup, MEMORY - 64 * MIB));
    asleep(empty_in(&pool, 100, &stream));
    // What the default pool has free is given back for it, and callbacks are asked.
    let hog = Arc::new(std::sync::Mutex::new(Some(hog)));
    let held = Arc::clone(&hog);
    let _guard = on_oom(move |_, _| held.lock().unwrap().take().is_some());
    pool.wake().unwrap();
    assert!(hog.lock().unwrap().is_none());
    assert_whole(&blocks);
}

#[test]
fn a_limit_counts_what_is_awake() {
    memory!();
    let stream = stream(0);
    let pool = builder().limit(64 * MIB).build().unwrap();
    let _block = empty_in(&pool, 64 * MIB, &stream).unwrap();
    pool.sleep(Backup::Host).unwrap();
    pool.set_limit(Some(32 * MIB));
    let error = out_of_memory(pool.wake());
    assert!(error.to_string().contains("The limit of pool"), "{error}");
    pool.set_limit(None);
    pool.wake().unwrap();
}

#[test]
fn without_pinned_memory_it_stays_awake() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let blocks = blocks(&pool, &stream);
    empty_cache().unwrap();
    let before = used(0);
    set_pinned_limit(Some(100 * MIB)).unwrap();
    let outcome = pool.sleep(Backup::Host);
    set_pinned_limit(None).unwrap();
    let error = out_of_memory(outcome);
    assert!(error.to_string().contains("The limit of pinned memory is reached"), "{error}");
    assert!(!pool.is_asleep());
    assert_eq!((used(0), pinned()), (before, 0));
    assert_whole(&blocks);
    drop(empty_in(&pool, 100, &stream).unwrap());
}

#[test]
fn memory_that_may_be_registered_elsewhere_does_not_sleep() {
    memory!();
    let pools = [builder().no_split(true), builder().segments(true), builder().allocator(made_up())];
    for pool in pools.map(|builder| builder.build().unwrap()) {
        let error = pool.sleep(Backup::Host).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
        assert!(error.to_string().contains("cannot sleep: its segments stay where they are"), "{error}");
        assert!(!pool.is_asleep());
        // Of a whole device it stays awake.
        gpupool::sleep(device(0), Backup::Host).unwrap();
        assert!(!pool.is_asleep());
        gpupool::wake(device(0)).unwrap();
    }
}

#[test]
fn a_reserve_goes_too_and_comes_back_whole() {
    memory!();
    let stream = stream(0);
    let pool = builder().reserve(128 * MIB).build().unwrap();
    let inside = empty_in(&pool, 30 * MIB, &stream).unwrap();
    let beyond = empty_in(&pool, 160 * MIB, &stream).unwrap();
    fill(&inside, 1);
    fill(&beyond, 2);
    assert_eq!(pool.sleep(Backup::Host).unwrap(), 288 * MIB);
    assert_eq!(used(0), 0);
    assert_eq!(pool.wake().unwrap(), 288 * MIB);
    assert_filled(&inside, 1);
    assert_filled(&beyond, 2);
    let stats = pool.stats().unwrap();
    assert_eq!((stats.reserved_bytes, stats.cached_bytes), (288 * MIB, 98 * MIB));
    // Dropped asleep, with a block in it, and freed then.
    pool.sleep(Backup::Host).unwrap();
    drop(pool);
    drop((inside, beyond));
    assert_eq!(used(0), 0);
    assert_all_back();

    // Dropped asleep and woken, with a block in it.
    let pool = builder().reserve(128 * MIB).build().unwrap();
    let inside = empty_in(&pool, 30 * MIB, &stream).unwrap();
    fill(&inside, 1);
    pool.sleep(Backup::Host).unwrap();
    drop(pool);
    assert_eq!(gpupool::wake(device(0)).unwrap(), 30 * MIB);
    assert_filled(&inside, 1);
}

#[test]
fn all_of_a_device_sleeps_and_wakes() {
    memory!();
    let stream = stream(0);
    let pools: Vec<_> = (0..3).map(|_| builder().build().unwrap()).collect();
    let own = empty(5 * MIB, &stream).unwrap();
    fill(&own, 9);
    let blocks: Vec<_> = pools.iter().map(|pool| blocks(pool, &stream)).collect();
    let _other = empty(MIB, &crate::common::stream(1)).unwrap();
    pools[1].sleep(Backup::Host).unwrap();
    let before = used(0);
    assert_eq!(gpupool::sleep(device(0), Backup::Host).unwrap(), before);
    assert_eq!((used(0), used(1)), (0, PAGE));
    assert!(pools.iter().all(MemPool::is_asleep));
    let text = asleep(empty(100, &stream));
    assert!(
        text.contains("the default memory pool on device 0 is asleep") && text.contains("gpupool.wake(0)"),
        "{text}"
    );
    assert_eq!(gpupool::sleep(device(0), Backup::Host).unwrap(), 0);
    let summary = memory_summary(device(0)).unwrap();
    assert!(summary.pools.iter().all(|pool| pool.is_asleep && pool.sleeps > 0), "{summary:?}");
    let total = summary.memory.total;
    assert_eq!((total.asleep_bytes, total.reserved_bytes), (total.live_bytes, 0));
    assert!(memory_snapshot().unwrap().iter().all(|segment| segment.is_asleep || segment.location != device(0)));
    pools[0].wake().unwrap();
    gpupool::wake(device(0)).unwrap();
    assert_eq!(gpupool::wake(device(0)).unwrap(), 0);
    assert_filled(&own, 9);
    blocks.iter().for_each(|blocks| assert_whole(blocks));
}

#[test]
fn a_device_that_cannot_sleep_whole_is_awake_whole() {
    memory!();
    let stream = stream(0);
    let pools: Vec<_> = (0..3).map(|_| builder().build().unwrap()).collect();
    let blocks: Vec<_> = pools.iter().map(|pool| blocks(pool, &stream)).collect();
    inject(Fault { call: Call::CopyToHost, kind: StatusKind::Other, after: 8, times: 1 });
    gpupool::sleep(device(0), Backup::Host).unwrap_err();
    assert_eq!(clear_faults(), 0);
    assert!(!pools.iter().any(MemPool::is_asleep));
    blocks.iter().for_each(|blocks| assert_whole(blocks));
}

#[test]
fn peers_may_use_what_has_come_back() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let block = empty_in(&pool, MIB, &stream).unwrap();
    pool.sleep(Backup::Host).unwrap();
    gpupool::enable_peer_access(device(0), device(1)).unwrap();
    pool.wake().unwrap();
    assert!(accessible(block.ptr(), device(1)));
    // What they capture refuses sleep too, and their work is waited for.
    let peer = crate::common::stream(1);
    begin_capture(&peer, CaptureMode::Global).unwrap();
    let error = pool.sleep(Backup::Host).unwrap_err();
    assert!(error.to_string().contains("a stream of device 1 is captured"), "{error}");
    drop(end_capture(&peer).unwrap());
    submit(&peer).unwrap();
    pool.sleep(Backup::Host).unwrap();
    assert!(peer.query().unwrap());
    pool.wake().unwrap();
}

/// Every call that sleep and wake make fails, the first time it is made, the second, and so on.
#[test]
fn whatever_the_driver_refuses_the_pool_is_awake_or_asleep_with_all_that_it_had() {
    memory!();
    let stream = stream(0);
    let pool = builder().reserve(2 * MIB).build().unwrap();
    let blocks = blocks_of(&SIZES[..5], &pool, &stream);
    let mut refusals = [0; 2];
    for call in Call::ALL {
        for times in [1, 2, 40] {
            let mut after = 0;
            loop {
                inject(Fault { call, kind: StatusKind::Other, after, times });
                let slept = pool.sleep(Backup::Host);
                let left = clear_faults();
                match &slept {
                    Ok(bytes) => assert!(pool.is_asleep() && *bytes > 0),
                    Err(error) => {
                        refusals[0] += 1;
                        assert!(matches!(error.kind(), ErrorKind::Library(_) | ErrorKind::OutOfMemory(_)), "{error}");
                        let is_told = error.to_string().contains("the pool is asleep, with its backup complete");
                        assert!(pool.is_asleep() == is_told, "{error}");
                    }
                }
                if !pool.is_asleep() {
                    assert_whole(&blocks);
                    pool.sleep(Backup::Host).unwrap();
                }
                inject(Fault { call, kind: StatusKind::OutOfMemory, after, times });
                let woken = pool.wake();
                let left = left + clear_faults();
                assert_eq!(woken.is_err(), pool.is_asleep(), "{call:?} {woken:?}");
                if let Err(error) = woken {
                    refusals[1] += 1;
                    assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
                    asleep(empty_in(&pool, 100, &stream));
                }
                pool.wake().unwrap();
                assert_whole(&blocks);
                if left == 2 * times {
                    break;
                }
                after += 1;
            }
        }
    }
    assert!(refusals.iter().all(|&refusals| refusals > 60), "{refusals:?}");
    drop((blocks, pool));
    complete_all().unwrap();
    assert_all_back();
    assert_eq!(pinned(), 0);
}

/// Puts a pool to sleep that the driver neither takes an extent back from nor maps one for again: it keeps what it had.
fn sleep_with_refusals(pool: &MemPool, release: Fault) {
    inject(release);
    inject(Fault { call: Call::MemoryMap, kind: StatusKind::Other, after: 0, times: u32::MAX });
    pool.sleep(Backup::None).expect_err("the driver refuses");
    let stats = pool.stats().unwrap();
    assert!(pool.is_asleep() && stats.reserved_bytes > 0, "{release:?}: {stats:?}");
}

#[test]
fn what_the_driver_did_not_take_back_goes_with_its_pool() {
    memory!();
    let streams = [stream(0), stream(0)];
    for (call, after) in [(Call::ExtentRelease, 0), (Call::ExtentRelease, 2), (Call::MemoryUnmap, 1)] {
        for reserve in [0, 32 * MIB] {
            for (is_used, is_woken) in [(false, false), (true, false), (true, true)] {
                let pool = builder().reserve(reserve).build().unwrap();
                let mut blocks = blocks_of(&[40 * MIB, 3 * MIB], &pool, &streams[0]);
                blocks.push(empty_in(&pool, 30 * MIB, &streams[1]).unwrap());
                blocks.truncate(if is_used { 3 } else { 0 });
                sleep_with_refusals(&pool, Fault { call, kind: StatusKind::Other, after, times: u32::MAX });
                drop(pool);
                clear_faults();
                empty_cache().unwrap();
                if is_woken {
                    gpupool::wake(device(0)).unwrap();
                    (1..).zip(&blocks).for_each(|(number, block)| fill(block, number << 32));
                    assert_whole(&blocks);
                }
                blocks.truncate(1);
                empty_cache().unwrap();
                // What others get stands where nothing of the pool's does.
                drop(empty(64 * MIB, &streams[0]).unwrap());
                drop(blocks);
                empty_cache().unwrap();
                let why = format!("{call:?} {after}, reserve {reserve}, used {is_used}, woken {is_woken}");
                assert_eq!((used(0), pinned()), (0, 0), "{why}");
                assert_eq!(memory_stats(device(0)).unwrap().pools, 1, "{why}");
            }
        }
    }
}

#[test]
fn a_reserve_that_the_driver_did_not_take_back_goes_with_its_pool() {
    memory!();
    let pool = builder().reserve(32 * MIB).build().unwrap();
    sleep_with_refusals(&pool, Fault { call: Call::ExtentRelease, kind: StatusKind::Other, after: 0, times: u32::MAX });
    drop(pool);
    clear_faults();
    assert_eq!(memory_stats(device(0)).unwrap().pools, 2);
    assert_all_back();
    assert_eq!(memory_stats(device(0)).unwrap().pools, 1);
}

#[test]
fn a_pool_that_ends_while_it_is_to_wake_is_no_error() {
    memory!();
    let (stream, other) = (stream(0), stream(0));
    let pool = builder().build().unwrap();
    let buffer = empty_in(&pool, 3 * MIB, &stream).unwrap();
    buffer.record_stream(&other).unwrap();
    let kept = empty_in(&pool, 3 * MIB, &stream).unwrap();
    pool.sleep(Backup::Host).unwrap();
    drop(kept);
    drop(pool);
    // Its work cannot be recorded now, so it waits.
    inject(Fault { call: Call::EventRecord, kind: StatusKind::Other, after: 0, times: 2 });
    drop(buffer);
    clear_faults();
    assert_eq!(memory_stats(device(0)).unwrap().pools, 2);
    inject(Fault { call: Call::StreamCreate, kind: StatusKind::Other, after: 0, times: 1 });
    gpupool::wake(device(0)).unwrap();
    clear_faults();
    assert_eq!(memory_stats(device(0)).unwrap().pools, 1);
}

#[test]
fn the_pool_of_a_block_is_known_while_it_sleeps() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let block = empty_in(&pool, MIB, &stream).unwrap();
    pool.sleep(Backup::Host).unwrap();
    assert_eq!(block.pool_id(), pool.id());
    assert_ne!(block.pool_id(), PoolId::NONE);
}

#[test]
fn copies_that_could_not_be_waited_for_are_waited_for_before_the_next_try() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    let pool = builder().build().unwrap();
    let block = empty_in(&pool, 3 * MIB, &own).unwrap();
    fill(&block, 4);
    pool.sleep(Backup::Host).unwrap();
    submit(&other).unwrap();
    inject(Fault { call: Call::StreamSynchronize, kind: StatusKind::Other, after: 0, times: 2 });
    pool.wake().unwrap_err();
    assert_eq!((clear_faults(), pool.is_asleep()), (0, true));
    pool.wake().unwrap();
    assert_filled(&block, 4);
}

#[test]
fn a_wake_that_failed_is_tried_again_during_a_capture() {
    memory!();
    let (stream, captured) = (stream(0), stream(0));
    let pool = builder().build().unwrap();
    let blocks = blocks(&pool, &stream);
    pool.sleep(Backup::Host).unwrap();
    let graphs = builder().build().unwrap();
    let _scope = graphs.capture(&captured).unwrap();
    begin_capture(&captured, CaptureMode::Global).unwrap();
    inject(Fault { call: Call::StreamSynchronize, kind: StatusKind::Other, after: 0, times: 2 });
    pool.wake().expect_err("copies cannot be waited for");
    clear_faults();
    pool.wake().unwrap();
    assert_whole(&blocks);
    end_capture(&captured).expect("nothing spoils the capture");
}

#[test]
fn a_sleep_that_fails_waits_for_its_copies_before_others_have_the_memory() {
    memory!();
    let stream = stream(0);
    let pool = builder().build().unwrap();
    let mut blocks = blocks_of(&SIZES[..5], &pool, &stream);
    for times in [1, 2] {
        inject(Fault { call: Call::EventRecord, kind: StatusKind::Other, after: 0, times });
        pool.sleep(Backup::Host).unwrap_err();
        clear_faults();
        assert!(!pool.is_asleep());
        assert_whole(&blocks);
        // What is freed and given back now is copied by nothing any more.
        blocks.pop();
        pool.trim().unwrap();
        complete_all().unwrap();
    }
}

#[test]
fn blocks_of_a_pool_that_is_gone_sleep_and_wake_also_where_they_stand_beside_its_reserve() {
    memory!();
    let (stream, other) = (stream(0), stream(0));
    let pool = builder().reserve(16 * PAGE).build().unwrap();
    let others = blocks_of(&[9 * PAGE], &pool, &other);
    let blocks = blocks_of(&[7 * PAGE, 2 * PAGE], &pool, &stream);
    assert_eq!(blocks[1].ptr(), others[0].ptr() + 16 * PAGE);
    drop(pool);
    for _ in 0..2 {
        gpupool::sleep(device(0), Backup::Host).unwrap();
        gpupool::wake(device(0)).unwrap();
        (1..).zip(&blocks).for_each(|(number, block)| assert_filled(block, number << 32));
        assert_filled(&others[0], 1 << 32);
    }
}

#[test]
fn a_request_that_awaits_the_last_block_of_a_dropped_pool_lets_go_of_its_backup() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    let helper = builder().use_on_oom(true).build().unwrap();
    drop(empty_in(&helper, MEMORY, &own).unwrap());
    let pool = builder().build().unwrap();
    let block = empty_in(&pool, 3 * MIB, &own).unwrap();
    pool.sleep(Backup::Host).unwrap();
    drop(pool);
    block.record_stream(&other).unwrap();
    submit(&other).unwrap();
    drop(block);
    let backup = || pinned_stats(None).unwrap().total.live_bytes;
    assert!(backup() > 0, "its freed block waits");
    // Served by the helper's pages, so that nothing is given back.
    let _found = empty(900 * MIB, &own).unwrap();
    assert!(other.query().unwrap());
    assert_eq!(backup(), 0);
}
