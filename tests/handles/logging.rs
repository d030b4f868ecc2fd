//! What a program's own logger is told, and that it may do anything meanwhile.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::common::{device, on_thread, stream, wait_until};
use gpupool::runtime::host::{Call, Fault, inject};
use gpupool::{HandlePool, MemPool, Pooled, Simulated, StatusKind, empty};
use log::{Level, LevelFilter, Log, Metadata, Record};

static TOLD: Mutex<Vec<(Level, String, String)>> = Mutex::new(Vec::new());

thread_local! {
    static IS_LOGGING: Cell<bool> = const { Cell::new(false) };
}

/// A logger that uses gpupool for every record, which it could not if a lock of gpupool's were held.
struct Using;

impl Log for Using {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // What it does itself is logged too.
        if IS_LOGGING.replace(true) {
            return;
        }
        let entry = (record.level(), record.target().to_owned(), record.args().to_string());
        TOLD.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        // Of another stream, so that no idle handle is taken that the test waits for.
        let stream = stream(1);
        drop(empty(20 << 20, &stream).unwrap());
        drop(Simulated::pool().lease(&stream).unwrap());
        gpupool::handle_stats(None).unwrap();
        gpupool::memory_stats(device(0)).unwrap();
        gpupool::memory_snapshot().unwrap();
        gpupool::empty_cache().unwrap();
        Simulated::pool().trim(Some(device(1))).unwrap();
        IS_LOGGING.set(false);
    }

    fn flush(&self) {}
}

/// What was told by `f`: level, target and message.
fn told(level: LevelFilter, f: impl FnOnce()) -> Vec<(Level, String, String)> {
    log::set_logger(&Using).ok();
    TOLD.lock().unwrap().clear();
    log::set_max_level(level);
    f();
    log::set_max_level(LevelFilter::Off);
    std::mem::take(&mut *TOLD.lock().unwrap())
}

fn tells(told: &[(Level, String, String)], level: Level, target: &str, part: &str) -> bool {
    told.iter().any(|(at, to, message)| *at == level && to == target && message.contains(part))
}

#[test]
fn a_logger_may_use_gpupool_at_every_record() {
    host!();
    let pool = HandlePool::new(gpupool::library::simulated::SimulatedLibrary).unwrap();
    pool.set_limit(Some(1)).unwrap();
    let told = told(LevelFilter::Trace, || {
        let lease = pool.lease(&stream(0)).unwrap();
        let waiting = std::thread::spawn(move || pool.lease_within(&stream(0), Duration::from_secs(600)).map(drop));
        wait_until("the other thread waits for a lease", || pool.stats(None).unwrap().waits > 0);
        drop(lease);
        waiting.join().unwrap().unwrap();
        pool.trim(None).unwrap();
        inject(Fault { call: Call::HandleCreate, kind: StatusKind::OutOfMemory, after: 0, times: 1 });
        drop(pool.lease(&stream(0)).unwrap());

        let mem_pool = MemPool::builder().limit(64 << 20).build().unwrap();
        let _scope = mem_pool.enter().unwrap();
        let kept = empty(40 << 20, &stream(0)).unwrap();
        empty(60 << 20, &stream(0)).unwrap_err();
        drop(kept);
        mem_pool.trim().unwrap();
    });
    for (level, target, part) in [
        (Level::Info, "gpupool::handle", "simulated 1.0.0: handle 1 created on device 0 in "),
        (Level::Info, "gpupool::handle", " for a handle on device 0, all of its limit in use"),
        (Level::Info, "gpupool::handle", "simulated: 1 idle handles destroyed on device 0 in "),
        (
            Level::Info,
            "gpupool::handle",
            "giving back what is not in use for a handle, as there was no memory for it: simulated: ",
        ),
        (Level::Debug, "gpupool::memory", ": grew by 40.0 MiB of new and 0.0 MiB of moved pages in "),
        (Level::Info, "gpupool::memory", ": no memory for 62914560 bytes, "),
        (Level::Info, "gpupool::memory", "out of memory on device 0: tried to allocate 60.0 MiB"),
        (Level::Debug, "gpupool::memory", ": trimmed, "),
    ] {
        assert!(tells(&told, level, target, part), "{part}: {told:#?}");
    }
    assert!(!told.iter().any(|(level, ..)| *level < Level::Info), "{told:#?}");
}

#[test]
fn a_hit_is_not_told() {
    host!();
    let stream = stream(0);
    let hits = || {
        for _ in 0..100 {
            gpupool::handle::<Simulated>(&stream).unwrap();
            drop(gpupool::lease::<Simulated>(&stream).unwrap());
            empty(1000, &stream).unwrap();
        }
    };
    hits();
    assert_eq!(told(LevelFilter::Trace, hits), []);
}

#[test]
fn the_end_of_a_thread_is_not_told() {
    host!();
    let told = told(LevelFilter::Trace, || {
        on_thread(|| {
            gpupool::handle::<Simulated>(&stream(0)).unwrap();
            TOLD.lock().unwrap().clear();
        });
    });
    assert_eq!(told, []);
}
