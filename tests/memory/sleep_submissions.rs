//! Fills and copies that meet a pool which just falls asleep: each is refused, or done before the memory goes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::memory::{MIB, assert_consists_of, empty_in, is_asleep, pool};
use crate::common::{device, log_to, stream, turns, wait_until};
use gpupool::runtime::host::{Call, before_call, begin_capture, end_capture};
use gpupool::{Backup, CaptureMode, MemPool, Result, empty_pinned, enable_peer_access};

/// Whether a pool was said to wait for submissions.
static WAITS: AtomicBool = AtomicBool::new(false);

fn note_wait(record: &log::Record<'_>) {
    if record.args().to_string().contains("is just being submitted") {
        WAITS.store(true, Ordering::SeqCst);
    }
}

/// Has another thread put the pool to sleep when `submit` is about to call the driver, and returns what became of it once
/// that thread waits for it, or has put the pool to sleep.
fn submit_beside_sleep(pool: &Arc<MemPool>, call: Call, submit: impl FnOnce() -> Result<()>) -> Result<()> {
    WAITS.store(false, Ordering::SeqCst);
    let sleeper = Arc::new(Mutex::new(None));
    let (pool, started) = (Arc::clone(pool), Arc::clone(&sleeper));
    before_call(call, 0, move || {
        let sleeper = thread::spawn(move || pool.sleep(Backup::Host));
        wait_until("the pool waits or is asleep", || WAITS.load(Ordering::SeqCst) || sleeper.is_finished());
        *started.lock().unwrap() = Some(sleeper);
    });
    let outcome = submit();
    let sleeper = sleeper.lock().unwrap().take().expect("the driver was called");
    assert!(sleeper.join().unwrap().unwrap() > 0);
    outcome
}

#[test]
fn what_is_just_being_submitted_is_done_before_the_memory_goes() {
    memory!();
    log_to(note_wait);
    enable_peer_access(device(0), device(1)).unwrap();
    let (own, other, far) = (stream(0), stream(0), stream(1));
    let pool = Arc::new(pool());
    let block = empty_in(&pool, 3 * MIB, &own).unwrap();
    let mut pinned = empty_pinned(3 * MIB, None).unwrap();
    for (number, stream) in (1..).zip([&own, &other, &far]) {
        submit_beside_sleep(&pool, Call::Fill, || block.fill(number, stream)).unwrap();
        pool.wake().unwrap();
        assert_consists_of(&block, number, &own);

        submit_beside_sleep(&pool, Call::CopyToDevice, || block.copy_from(&vec![number + 10; 3 << 20], stream))
            .unwrap();
        pool.wake().unwrap();
        assert_consists_of(&block, number + 10, &own);

        // SAFETY: no work of a device uses the memory.
        unsafe { pinned.as_mut_slice() }.fill(number + 20);
        submit_beside_sleep(&pool, Call::CopyToDevice, || block.copy_from_pinned(&pinned, stream)).unwrap();
        pool.wake().unwrap();
        assert_consists_of(&block, number + 20, &own);

        // SAFETY: as before.
        unsafe { pinned.as_mut_slice() }.fill(0);
        submit_beside_sleep(&pool, Call::CopyToHost, || block.copy_to_pinned(&pinned, stream)).unwrap();
        // SAFETY: the pool waited for the copy before it fell asleep.
        assert!(unsafe { pinned.as_slice() } == vec![number + 20; 3 << 20]);
        pool.wake().unwrap();

        let mut found = vec![0; 3 << 20];
        submit_beside_sleep(&pool, Call::CopyToHost, || block.copy_to(&mut found, stream)).unwrap();
        assert!(found == vec![number + 20; 3 << 20]);
        pool.wake().unwrap();
    }
}

#[test]
fn what_comes_once_the_pool_falls_asleep_is_refused() {
    memory!();
    let own = stream(0);
    let pool = Arc::new(pool());
    let block = Arc::new(empty_in(&pool, 3 * MIB, &own).unwrap());
    block.fill(5, &own).unwrap();
    let refused = Arc::new(AtomicU64::new(0));
    // While the device is waited for, while the content is copied, and just before the memory goes.
    for call in [Call::ContextSynchronize, Call::CopyToHost, Call::MemoryUnmap] {
        let (block, own, refused) = (Arc::clone(&block), own.clone(), Arc::clone(&refused));
        before_call(call, 0, move || {
            for outcome in [block.fill(6, &own), block.copy_from(&vec![6; 3 << 20], &own)] {
                assert!(is_asleep(&outcome.unwrap_err()));
                refused.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    pool.sleep(Backup::Host).unwrap();
    // While it wakes too.
    let late = (Arc::clone(&block), own.clone(), Arc::clone(&refused));
    before_call(Call::CopyToDevice, 0, move || {
        assert!(is_asleep(&late.0.fill(6, &late.1).unwrap_err()));
        late.2.fetch_add(1, Ordering::Relaxed);
    });
    pool.wake().unwrap();
    assert_eq!(refused.load(Ordering::Relaxed), 7);
    assert_consists_of(&block, 5, &own);
}

#[test]
fn a_fill_that_a_capture_just_takes_has_the_pool_stay_awake() {
    memory!();
    log_to(note_wait);
    let (own, captured) = (stream(0), stream(0));
    let pool = Arc::new(pool());
    let block = empty_in(&pool, 3 * MIB, &own).unwrap();
    block.fill(5, &own).unwrap();
    let sleeper = Arc::new(Mutex::new(None));
    let (asleep, started, begun) = (Arc::clone(&pool), Arc::clone(&sleeper), captured.clone());
    before_call(Call::Fill, 0, move || {
        // Announced before the capture begins, which is the last moment at which it can be seen.
        let sleeper = thread::spawn(move || asleep.sleep(Backup::Host));
        wait_until("the pool waits or is asleep", || WAITS.load(Ordering::SeqCst) || sleeper.is_finished());
        begin_capture(&begun, CaptureMode::Relaxed).unwrap();
        *started.lock().unwrap() = Some(sleeper);
    });
    block.fill(6, &captured).unwrap();
    let outcome = sleeper.lock().unwrap().take().unwrap().join().unwrap();
    assert!(outcome.unwrap_err().to_string().contains("end the capture first"));
    assert!(!pool.is_asleep());
    // Once more in the same capture, which nothing has spoilt.
    block.fill(6, &captured).unwrap();
    end_capture(&captured).unwrap();
    assert_consists_of(&block, 5, &own);
}

#[test]
fn many_fills_beside_sleep_are_refused_or_kept() {
    memory!();
    let pool = pool();
    let is_over = AtomicBool::new(false);
    let (done, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let fillers: Vec<_> = (0..3)
            .map(|part| {
                let (is_over, done, refused) = (&is_over, &done, &refused);
                let own = stream(0);
                let block = empty_in(&pool, 5000 + (part << 19), &own).unwrap();
                // Before any other thread has the pool fall asleep.
                block.fill(0, &own).unwrap();
                scope.spawn(move || {
                    let mut last = 0;
                    for byte in (1..=u8::MAX).cycle() {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let outcome = if byte % 8 == 0 {
                            block.copy_from(&vec![byte; block.nbytes() as usize], &own)
                        } else {
                            block.fill(byte, &own)
                        };
                        match outcome {
                            Ok(()) => {
                                last = byte;
                                done.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => {
                                assert!(is_asleep(&error), "{error}");
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                    (block, last, own)
                })
            })
            .collect();
        let has_ended = || fillers.iter().any(|filler| filler.is_finished());
        for _ in turns(8) {
            let before = done.load(Ordering::Relaxed);
            wait_until("something is filled", || done.load(Ordering::Relaxed) > before || has_ended());
            pool.sleep(Backup::Host).unwrap();
            let before = refused.load(Ordering::Relaxed);
            wait_until("something is refused", || refused.load(Ordering::Relaxed) > before || has_ended());
            pool.wake().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        for filler in fillers {
            let (block, last, own) = filler.join().unwrap();
            assert_consists_of(&block, last, &own);
        }
    });
}
