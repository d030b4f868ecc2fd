//! Calls of the driver that fail where no random program meets them: at the first use of a device, for segments of a pool's own,
//! and on one device of several.

use std::sync::{Arc, Mutex};

use crate::common::device;
use crate::common::memory::{MADE_UP, MIB, pool_of, source, used};
use gpupool::runtime::host::{Call, Fault, clear_faults, complete_all, inject, submit};
use gpupool::{Device, Error, ErrorKind, MemPool, StatusKind, Stream, empty, empty_cache, memory_stats};

/// Little, so that it is soon full.
const MEMORY: u64 = 96 * MIB;
/// Two, and others to be used for the first time.
const DEVICES: u32 = 80;
const DEVICE: Device = Device::from_ordinal(0);
#[test]
fn a_device_whose_first_use_failed_works_the_next_time() {
    memory!(DEVICES, MEMORY);
    let mut fresh = (2..DEVICES).map(device);
    let calls = [
        Call::Bind,
        Call::ExchangeCaptureMode,
        Call::PageBytes,
        Call::AddressReserve,
        Call::ExtentCreate,
        Call::EventCreate,
    ];
    for call in calls {
        let mut came = 0;
        for after in 0.. {
            let unused = fresh.next().expect("there are enough devices");
            let (stream, user) = (Stream::legacy(unused).unwrap(), Stream::per_thread(unused).unwrap());
            inject(Fault { call, kind: StatusKind::Other, after, times: 1 });
            // A block that another stream uses, so that an event is made too.
            let outcome = empty(5 * MIB, &stream).and_then(|block| {
                submit(&user)?;
                block.free_on(&user)
            });
            let left = clear_faults();
            if let Err(error) = outcome {
                let ErrorKind::Library(refused) = error.kind() else { panic!("{call:?} {after}: {error}") };
                assert_eq!(refused.function, format!("{call:?}"));
                drop(empty(5 * MIB, &stream).unwrap());
            }
            complete_all().unwrap();
            empty_cache().unwrap();
            let stats = memory_stats(unused).unwrap();
            assert_eq!((stats.total.live_blocks, stats.total.reserved_bytes, stats.pools), (0, 0, 1));
            assert_eq!(used(unused.ordinal() as u32), 0, "{call:?} {after}");
            if left > 0 {
                break;
            }
            came += 1;
        }
        assert!(came > 0, "the first use makes no {call:?}");
    }
}

/// The driver's plain allocations: a refused one takes nothing.
#[test]
fn segments_that_the_driver_refuses_take_nothing() {
    memory!(DEVICES, MEMORY);
    let stream = Stream::new(DEVICE).unwrap();
    let pool = MemPool::builder().device(DEVICE).segments(true).build().unwrap();
    let scope = pool.enter().unwrap();
    for kind in [StatusKind::Other, StatusKind::OutOfMemory] {
        inject(Fault { call: Call::MemoryAllocate, kind, after: 0, times: u32::MAX });
        let error = empty(5 * MIB, &stream).map(drop).unwrap_err();
        assert!(error.to_string().contains("MemoryAllocate"), "{error}");
        clear_faults();
        assert_eq!((pool.stats().unwrap().reserved_bytes, used(0)), (0, 0));
        inject(Fault { call: Call::MemoryAllocate, kind, after: 0, times: 1 });
        // Asked once more, after what is free was given back.
        drop(empty(5 * MIB, &stream).unwrap());
        clear_faults();
        assert_eq!(pool.trim().unwrap(), 6 * MIB);
    }
    drop((scope, pool));
    assert_eq!((used(0), memory_stats(DEVICE).unwrap().pools), (0, 1));
}

#[test]
fn a_refusal_on_one_device_leaves_the_others_caches_to_be_emptied() {
    memory!(DEVICES, MEMORY);
    let elsewhere = device(1);
    drop(empty(5 * MIB, &Stream::new(DEVICE).unwrap()).unwrap());
    drop(empty(5 * MIB, &Stream::new(elsewhere).unwrap()).unwrap());
    inject(Fault { call: Call::ExtentRelease, kind: StatusKind::Other, after: 0, times: 1 });
    empty_cache().unwrap_err();
    assert_eq!(clear_faults(), 0);
    assert_eq!(memory_stats(elsewhere).unwrap().total.reserved_bytes, 0);
    empty_cache().unwrap();
    assert_eq!(memory_stats(DEVICE).unwrap().total.reserved_bytes, 0);
}

#[test]
fn memory_that_the_driver_did_not_take_back_is_given_back_later() {
    memory!(DEVICES, MEMORY);
    let (stream, before) = (Stream::new(DEVICE).unwrap(), used(0));
    for call in [Call::MemoryFree, Call::Bind, Call::ExchangeCaptureMode] {
        let pool = MemPool::builder().device(DEVICE).segments(true).build().unwrap();
        let scope = pool.enter().unwrap();
        drop(empty(6 * MIB, &stream).unwrap());
        drop(scope);
        inject(Fault { call, kind: StatusKind::Other, after: 0, times: 1 });
        pool.trim().unwrap_err();
        assert_eq!(clear_faults(), 0, "{call:?}");
        assert_eq!(pool.stats().unwrap().reserved_bytes, 6 * MIB, "{call:?}");
        assert_eq!(pool.trim().unwrap(), 6 * MIB, "{call:?}");
        assert_eq!(used(0), before, "{call:?}");
    }
}

#[test]
fn what_another_pools_allocator_refuses_ends_no_request() {
    memory!(DEVICES, MEMORY);
    let stream = Stream::new(DEVICE).unwrap();
    let refuses = |_, _, _: &Stream| Err(Error::refused("theirs", "free", "NO", 7, StatusKind::Other));
    let other = pool_of(&source(|_, _| Ok(MADE_UP), refuses));
    let scope = other.enter().unwrap();
    drop(empty(MIB, &stream).unwrap());
    drop(scope);
    let held = Arc::new(Mutex::new(Some(empty(80 * MIB, &stream).unwrap())));
    let given_up = Arc::clone(&held);
    let _callback = gpupool::on_oom(move |_, _| given_up.lock().unwrap().take().is_some());
    // The last step of all serves it.
    let _served = empty(60 * MIB, &stream).unwrap();
    assert!(held.lock().unwrap().is_none());
}
