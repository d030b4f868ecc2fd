//! Calls for a whole device beside captures that are announced, in random schedules of the real code: none meets a capture,
//! which it would invalidate.

use std::sync::Arc;

use gpupool::runtime::host::schedule::{self, Body};
use gpupool::runtime::host::{begin_capture, end_capture};
use gpupool::{Backup, CaptureMode, Device, ErrorKind, MemPool, Result, Stream, empty_cache, synchronize};

use crate::common::turns;

const MEMORY: u64 = 64 << 20;
const DEVICE: Device = Device::from_ordinal(0);

fn captures(pool: &MemPool) {
    let stream = Stream::new(DEVICE).unwrap();
    for _ in 0..6 {
        let Ok(scope) = pool.capture(&stream) else { continue };
        begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        let graph = end_capture(&stream).expect("nothing invalidates a capture");
        drop(graph);
        scope.end().unwrap().reset();
    }
}

/// Does something to the device beside captures of another thread, in many schedules.
fn explore(work: impl Fn() -> Result<()> + Send + Sync + 'static) {
    let work = Arc::new(work);
    for seed in turns(20) {
        let pool = Arc::new(MemPool::builder().device(DEVICE).build().unwrap());
        let capturing: Body = Box::new(move || captures(&pool));
        let work = Arc::clone(&work);
        let other: Body = Box::new(move || {
            for _ in 0..2 {
                match work() {
                    // A capture is known of.
                    Err(error) if matches!(error.kind(), ErrorKind::InvalidValue(_)) => {}
                    outcome => outcome.unwrap(),
                }
            }
        });
        assert!(schedule::run(seed, vec![capturing, other]).is_ok(), "schedule {seed}");
        empty_cache().unwrap();
    }
}

#[test]
fn a_device_is_waited_for_beside_captures() {
    host!(1, MEMORY);
    explore(|| synchronize(DEVICE));
}

#[test]
fn a_pool_falls_asleep_beside_captures() {
    host!(1, MEMORY);
    let stream = Stream::new(DEVICE).unwrap();
    let pool = MemPool::builder().device(DEVICE).build().unwrap();
    let _block = pool.empty(1 << 20, &stream).unwrap();
    explore(move || {
        pool.sleep(Backup::None)?;
        pool.wake().map(drop)
    });
}
