//! Leases: handles for a scope, as many as work at once, and what a limit does.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::memory::out_of_memory;
use crate::common::{MEMORY, assert_none_lost, device, handle_pool as pool, on_thread, stream, wait_until};
use gpupool::library::simulated::{resets_of, set_keeps_scratch, stream_of};
use gpupool::runtime::host::{
    Call, Fault, begin_capture, clear_faults, complete, complete_all, end_capture, inject, submit,
};
use gpupool::{
    CaptureMode, CaptureStatus, ErrorKind, HandlePool, Lease, Pooled, Simulated, StatusKind, empty, handle_stats,
    on_oom,
};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

fn address(lease: &Lease) -> usize {
    lease.as_ptr().addr()
}

/// The pool's counts: created, idle, leased.
fn counts(pool: HandlePool) -> (u64, u64, u64) {
    let stats = pool.stats(None).unwrap();
    assert_none_lost(stats);
    (stats.created, stats.idle, stats.leased)
}

#[test]
fn a_lease_ends_with_its_scope_and_the_next_gets_the_handle() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    let first = {
        let lease = pool.lease(&stream).unwrap();
        assert_eq!(counts(pool), (1, 0, 1));
        address(&lease)
    };
    assert_eq!(counts(pool), (1, 1, 0));
    let again = pool.lease(&stream).unwrap();
    assert_eq!(address(&again), first);
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.hits, stats.misses, stats.hand_overs), (1, 1, 0));
    // While it is lent, others get others.
    assert_ne!(address(&pool.lease(&stream).unwrap()), first);
}

#[test]
fn the_stream_is_set_on_every_lease() {
    host!();
    let pool = Simulated::pool();
    for stream in [stream(0), stream(0), stream(1), stream(0)] {
        let lease = gpupool::lease::<Simulated>(&stream).unwrap();
        // SAFETY: the lease is alive.
        assert_eq!(unsafe { stream_of(lease.as_ptr()) }, stream.raw().address());
        assert_eq!(lease.device(), stream.device());
    }
    pool.trim(None).unwrap();
}

#[test]
fn as_many_handles_as_work_at_once_serve_any_number_of_threads() {
    host!();
    let (pool, shared) = (pool(), Arc::new(stream(0)));
    let (both, threads) = (Arc::new(Barrier::new(2)), 50);
    for _ in 0..threads {
        let pair: Vec<_> = (0..2)
            .map(|_| {
                let (both, stream) = (Arc::clone(&both), Arc::clone(&shared));
                thread::spawn(move || {
                    let lease = pool.lease(&stream).unwrap();
                    both.wait();
                    drop(lease);
                })
            })
            .collect();
        pair.into_iter().for_each(|thread| thread.join().unwrap());
    }
    assert_eq!(counts(pool), (2, 2, 0));
}

#[test]
fn idle_handles_of_leases_serve_windows_and_back() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    drop(pool.lease(&stream).unwrap());
    let shared = stream.clone();
    on_thread(move || pool.handle(&shared).map(drop).unwrap());
    drop(pool.lease(&stream).unwrap());
    assert_eq!(counts(pool), (1, 1, 0));
}

#[test]
fn a_lease_may_end_on_another_thread_and_after_a_trim() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    let lease = pool.lease(&stream).unwrap();
    let first = address(&lease);
    assert_eq!(pool.trim(None).unwrap(), 0);
    on_thread(move || drop(lease));
    assert_eq!(address(&pool.lease(&stream).unwrap()), first);
    assert_eq!(counts(pool), (1, 1, 0));
}

#[test]
fn a_discarded_handle_is_nobodys_again() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    pool.set_limit(Some(1)).unwrap();
    let lease = pool.lease(&stream).unwrap();
    let first = address(&lease);
    lease.discard();
    let second = pool.lease(&stream).unwrap();
    assert_ne!(address(&second), first);
    assert_eq!(pool.stats(None).unwrap().discarded, 1);
    assert_eq!(pool.trim(None).unwrap(), 1);
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.destroyed, stats.discarded, stats.leased), (2, 1, 0, 1));
}

#[test]
fn a_request_over_the_limit_waits_for_a_lease_to_end() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    pool.set_limit(Some(1)).unwrap();
    assert_eq!(pool.limit(), Some(1));
    let lease = pool.lease(&stream).unwrap();
    let shared = stream.clone();
    let waiting = thread::spawn(move || pool.lease_within(&shared, LONG).map(|lease| address(&lease)).unwrap());
    wait_until("the other thread waits for a lease", || pool.stats(None).unwrap().waits > 0);
    let first = address(&lease);
    drop(lease);
    assert_eq!(waiting.join().unwrap(), first);
    assert_eq!(counts(pool), (1, 1, 0));
}

#[test]
fn a_wait_without_an_end_is_refused_in_a_callback() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    pool.set_limit(Some(1)).unwrap();
    let lease = pool.lease(&stream).unwrap();
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let guard = {
        let (said, stream) = (Arc::clone(&said), stream.clone());
        on_oom(move |_, _| {
            for timeout in [Duration::ZERO, Duration::MAX, Duration::from_millis(u64::MAX)] {
                let outcome = pool.lease_within(&stream, timeout).map_err(|error| error.to_string());
                said.lock().unwrap().push(outcome.err().unwrap_or_default());
            }
            false
        })
    };
    thread::scope(|scope| {
        let request = scope.spawn(|| {
            let _held = empty(1, &stream).unwrap();
            out_of_memory(empty(MEMORY, &stream));
        });
        let has_gone_on = || said.lock().unwrap().len() == 3 || pool.stats(None).unwrap().waits > 1;
        wait_until("the callback waits without an end or is refused", has_gone_on);
        drop(lease);
        request.join().unwrap();
    });
    drop(guard);
    let said = said.lock().unwrap();
    assert!(said[0].contains("the limit"), "{}", said[0]);
    for said in &said[1..] {
        assert!(said.contains("a callback of on_oom may not wait until a handle is free, without a timeout"), "{said}");
    }
    assert_eq!(counts(pool), (1, 1, 0));
    // Anywhere else it waits.
    assert!(pool.lease_within(&stream, Duration::MAX).is_ok());
}

#[test]
fn a_request_over_the_limit_takes_what_an_ended_thread_held() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    pool.set_limit(Some(1)).unwrap();
    let (held, ends) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let holder = {
        let (held, ends, stream) = (Arc::clone(&held), Arc::clone(&ends), stream.clone());
        thread::spawn(move || {
            pool.handle(&stream).unwrap();
            held.wait();
            ends.wait();
        })
    };
    held.wait();
    // Not from a thread that lives, be its handle idle or not.
    assert!(pool.lease_within(&stream, Duration::ZERO).is_err());
    ends.wait();
    drop(pool.lease_within(&stream, LONG).unwrap());
    holder.join().unwrap();
    assert_eq!(counts(pool), (1, 1, 0));
}

#[test]
fn an_exhausted_pool_says_who_holds_what() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    pool.set_limit(Some(2)).unwrap();
    pool.handle(&stream).unwrap();
    let lease = pool.lease(&stream).unwrap();
    let error = pool.lease_within(&stream, Duration::from_millis(1)).unwrap_err();
    let ErrorKind::PoolExhausted(exhausted) = error.kind() else { panic!("{error}") };
    assert_eq!((exhausted.library.as_str(), exhausted.device, exhausted.limit), ("simulated", device(0), 2));
    assert_eq!(exhausted.holders.len(), 2);
    let text = error.to_string();
    for part in ["simulated", "device 0", "all 2", "a lease of thread", "(leases::an_exha"] {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.failures, stats.waits, stats.leased, stats.held), (1, 1, 1, 1));
    drop(lease);
}

#[test]
fn a_limit_below_the_threads_at_a_barrier_ends_in_the_error() {
    host!();
    let (pool, shared) = (pool(), stream(0));
    pool.set_limit(Some(2)).unwrap();
    let all = Arc::new(Barrier::new(3));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (all, stream) = (Arc::clone(&all), shared.clone());
            thread::spawn(move || {
                let lease = pool.lease_within(&stream, Duration::from_millis(20));
                all.wait();
                lease.is_ok()
            })
        })
        .collect();
    let served = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&served| served).count();
    assert_eq!(served, 2);
    assert_eq!(counts(pool), (2, 2, 0));
}

#[test]
fn those_who_wait_are_served_in_order() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    pool.set_limit(Some(1)).unwrap();
    let lease = pool.lease(&stream).unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let (stream, order) = (stream.clone(), Arc::clone(&order));
            let thread = thread::spawn(move || {
                let lease = pool.lease_within(&stream, LONG).unwrap();
                order.lock().unwrap().push(number);
                drop(lease);
            });
            wait_until("this thread waits for a lease too", || pool.stats(None).unwrap().waits > number);
            thread
        })
        .collect();
    drop(lease);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
}

#[test]
fn a_failed_creation_leaves_its_room_to_others() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    pool.set_limit(Some(1)).unwrap();
    inject(Fault { call: Call::HandleCreate, kind: StatusKind::Other, after: 0, times: 1 });
    pool.lease(&stream).unwrap_err();
    clear_faults();
    drop(pool.lease_within(&stream, Duration::ZERO).unwrap());
    pool.trim(None).unwrap();
    drop(pool.lease_within(&stream, Duration::ZERO).unwrap());
}

#[test]
fn limits_are_at_least_one_and_kept_by_warming() {
    host!();
    let pool = pool();
    assert!(matches!(pool.set_limit(Some(0)).unwrap_err().kind(), ErrorKind::InvalidValue(_)));
    pool.set_limit(Some(3)).unwrap();
    assert_eq!(pool.warm(5, device(0)).unwrap(), 3);
    pool.set_limit(None).unwrap();
    assert_eq!(pool.warm(5, device(0)).unwrap(), 2);
    assert_eq!(counts(pool).0, 5);
}

#[test]
fn a_handle_with_scratch_waits_for_the_stream_it_last_ran_on() {
    host!();
    set_keeps_scratch(true);
    let (pool, first, second) = (pool(), stream(0), stream(0));
    drop(pool.lease(&first).unwrap());
    let before = submit(&first).unwrap();
    // The same stream needs no order; another one waits.
    drop(pool.lease(&first).unwrap());
    drop(pool.lease(&second).unwrap());
    let after = submit(&second).unwrap();
    complete(&second, after).unwrap();
    assert!(!second.query().unwrap());
    complete(&first, before).unwrap();
    complete(&second, after).unwrap();
    assert!(second.query().unwrap());
    assert_eq!(counts(pool), (1, 1, 0));
    complete_all().unwrap();
}

#[test]
fn a_captured_stream_gets_a_handle_that_it_need_not_wait_for() {
    host!();
    set_keeps_scratch(true);
    let (pool, first, captured) = (pool(), stream(0), stream(0));
    drop(pool.lease(&first).unwrap());
    submit(&first).unwrap();
    begin_capture(&captured, CaptureMode::Global).unwrap();
    drop(pool.lease(&captured).unwrap());
    assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Active);
    end_capture(&captured).unwrap();
    assert_eq!(counts(pool), (2, 2, 0));
    complete_all().unwrap();
}

#[test]
fn what_an_owner_changed_is_set_back_for_the_next() {
    host!();
    let (pool, stream) = (pool(), stream(0));
    // SAFETY: the handles are alive, the pool's only one.
    let resets = |handle: *mut std::ffi::c_void| unsafe { resets_of(handle) };
    assert_eq!(resets(pool.lease(&stream).unwrap().as_ptr()), 0);
    assert_eq!(resets(pool.lease(&stream).unwrap().as_ptr()), 1);
    let shared = stream.clone();
    assert_eq!(on_thread(move || resets(pool.handle(&shared).unwrap().as_ptr())), 2);
}

#[test]
fn all_pools_are_one_table() {
    host!();
    let pool = pool();
    let _lease = pool.lease(&stream(0)).unwrap();
    let all = handle_stats(Some(device(0))).unwrap();
    let (_, simulated) = all.iter().find(|(name, _)| name == "simulated").unwrap();
    assert!(simulated.leased >= 1);
    assert!(all.iter().all(|(name, _)| name != "cudnn"), "it was never used");
}
