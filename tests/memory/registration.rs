//! Segments that libraries register by their address: each is one piece that stays where it is, and callbacks are called for it
//! before anything uses it and before it goes.

use std::collections::BTreeMap;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

use crate::common::memory::{
    MIB, PAGE, assert_all_back, builder, empty_in, memory_calls, out_of_memory, reserved, source,
};
use crate::common::{MEMORY, device, on_thread, stream};
use gpupool::memory::SegmentGuard;
use gpupool::runtime::host::{accessible, complete_all, submit};
use gpupool::runtime::{self, BoundDevice};
use gpupool::{Backup, ErrorKind, MemPool, SegmentEvent, SegmentEventKind, Stream, empty, empty_cache};

fn whole() -> MemPool {
    builder().no_split(true).build().unwrap()
}

/// What a callback registers: bytes by address.
#[derive(Clone, Debug, Default)]
struct Registered(Arc<Mutex<BTreeMap<u64, u64>>>);

impl Registered {
    /// Keeps what is registered as the pool's callback.
    fn of(pool: &MemPool) -> (Self, SegmentGuard) {
        let registered = Self::default();
        let (id, table) = (pool.id(), registered.clone());
        let guard = pool.on_segment(move |event| {
            assert_eq!((event.pool, event.device), (id, device(0)));
            table.change(event);
        });
        (registered, guard.unwrap())
    }

    /// Each is added once, and removed once it was added; its memory is there both times.
    fn change(&self, event: &SegmentEvent) {
        let SegmentEvent { kind, address, nbytes, .. } = *event;
        assert!(accessible(address, device(0)) && accessible(address + nbytes - 1, device(0)), "{event:?}");
        let before = match kind {
            SegmentEventKind::Added => self.0.lock().unwrap().insert(address, nbytes),
            _ => self.0.lock().unwrap().remove(&address),
        };
        assert_eq!(before, (kind == SegmentEventKind::Removed).then_some(nbytes), "{event:?}");
    }

    fn all(&self) -> Vec<(u64, u64)> {
        self.0.lock().unwrap().iter().map(|(&address, &bytes)| (address, bytes)).collect()
    }

    fn has(&self, address: u64, bytes: u64) -> bool {
        let table = self.0.lock().unwrap();
        table.range(..=address).next_back().is_some_and(|(start, size)| address + bytes <= start + size)
    }
}

#[test]
fn each_segment_is_one_extent_as_large_as_its_block() {
    memory!();
    let stream = stream(0);
    let pool = whole();
    drop(empty_in(&pool, 2 * MIB, &stream).unwrap());
    for bytes in [600 * MIB, 3 * MIB + 1, 1000] {
        let before = (memory_calls(), reserved());
        let buffer = if bytes > MIB { pool.empty(bytes, &stream) } else { pool.empty(PAGE + bytes, &stream) }.unwrap();
        // Created, mapped and opened, once each.
        assert_eq!(memory_calls() - before.0, 3, "{bytes}");
        assert_eq!(reserved() - before.1, buffer.nbytes().next_multiple_of(PAGE), "{bytes}");
        drop(buffer);
        pool.trim().unwrap();
    }
}

#[test]
fn segments_are_no_larger_where_threads_grow_at_once() {
    memory!();
    let own = stream(0);
    let pool = whole();
    let (registered, _guard) = Registered::of(&pool);
    let _large = pool.empty(400 * MIB, &own).unwrap();
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let pool = &pool;
        scope.spawn(move || {
            let held = pool.empty(100 * MIB, &stream(0)).unwrap();
            ready.send(()).unwrap();
            is_done.recv().unwrap();
            drop(held);
        });
        is_ready.recv().unwrap();
        let small = pool.empty(3 * MIB, &own).unwrap();
        assert!(registered.all().contains(&(small.ptr(), 4 * MIB)), "{registered:?}");
        done.send(()).unwrap();
    });
}

#[test]
fn nothing_but_the_pools_trim_gives_its_segments_back() {
    memory!();
    let own = stream(0);
    let pool = whole();
    let (registered, _guard) = Registered::of(&pool);
    let buffer = empty_in(&pool, 600 * MIB, &own).unwrap();
    let segments = registered.all();
    assert_eq!(segments, [(buffer.ptr(), 600 * MIB)]);
    drop(buffer);
    assert_eq!(empty_cache().unwrap(), 0);
    out_of_memory(empty(900 * MIB, &own));
    // Nor a larger request of its own.
    let error = out_of_memory(empty_in(&pool, 900 * MIB, &own));
    assert!(error.to_string().contains("until its trim()"), "{error}");
    gpupool::sleep(device(0), Backup::None).unwrap();
    gpupool::wake(device(0)).unwrap();
    assert_eq!((registered.all(), pool.stats().unwrap().reserved_bytes), (segments, 600 * MIB));
    assert_eq!(pool.trim().unwrap(), 600 * MIB);
    assert!(registered.all().is_empty());
    drop(empty_in(&pool, 900 * MIB, &own).unwrap());
    drop(pool);
    assert!(registered.all().is_empty());
}

#[test]
fn a_block_that_outlives_its_pool_stays_registered_and_awake() {
    memory!();
    let stream = stream(0);
    for closes in [false, true] {
        let pool = whole();
        let (registered, guard) = Registered::of(&pool);
        let (first, second) = (pool.empty(8 * MIB, &stream).unwrap(), pool.empty(8 * MIB, &stream).unwrap());
        drop(first);
        guard.keep();
        let pool = if closes {
            assert_eq!(pool.close().unwrap(), 8 * MIB);
            let error = pool.sleep(Backup::Host).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
            Some(pool)
        } else {
            drop(pool);
            None
        };
        assert_eq!(registered.all(), [(second.ptr(), 8 * MIB)]);
        gpupool::sleep(device(0), Backup::None).unwrap();
        assert!(accessible(second.ptr(), device(0)));
        gpupool::wake(device(0)).unwrap();
        drop(second);
        assert!(registered.all().is_empty());
        drop(pool);
        assert_all_back();
    }
}

#[test]
fn pools_with_segments_of_their_own_report_them_too() {
    memory!();
    let stream = stream(0);
    let with_device = |on: &Stream| BoundDevice::new(runtime::get()?, on.device());
    let own = source(
        move |bytes, on| with_device(on).and_then(|_bound| runtime::get()?.memory_allocate(bytes)),
        // SAFETY: the driver returned it, and nothing uses it any more.
        move |address, _, on| with_device(on).and_then(|_bound| unsafe { runtime::get()?.memory_free(address) }),
    );
    for builder in [builder().segments(true), builder().allocator(own)] {
        for builder in [builder.clone(), builder.no_split(true)] {
            let pool = builder.build().unwrap();
            let early = pool.empty(4 * MIB, &stream).unwrap();
            let (registered, _guard) = Registered::of(&pool);
            assert!(registered.has(early.ptr(), early.nbytes()), "those that are there are reported at once");
            let late = pool.empty(64 * MIB, &stream).unwrap();
            assert!(registered.has(late.ptr(), late.nbytes()));
            drop((early, late));
            pool.trim().unwrap();
            assert!(registered.all().is_empty());
            drop(pool);
            assert_all_back();
        }
    }
}

#[test]
fn pools_that_move_their_memory_refuse_callbacks_by_name() {
    memory!();
    for builder in [builder(), builder().use_on_oom(true), builder().reserve(8 * MIB)] {
        let pool = builder.build().unwrap();
        let error = pool.on_segment(|_| panic!("it is called for nothing")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains(&pool.id().to_string()) && text.contains("no_split"), "{text}");
    }
    let pool = whole();
    pool.close().unwrap();
    let error = pool.on_segment(|_| ()).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

#[test]
fn a_pool_with_callbacks_does_not_sleep() {
    memory!();
    let stream = stream(0);
    for builder in [builder().no_split(true), builder().segments(true)] {
        let pool = builder.build().unwrap();
        let buffer = pool.empty(8 * MIB, &stream).unwrap();
        let (registered, guard) = Registered::of(&pool);
        let before = (registered.all(), memory_calls());
        let error = pool.sleep(Backup::Host).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
        assert!(error.to_string().contains("on_segment"), "{error}");
        assert_eq!((registered.all(), memory_calls(), pool.is_asleep()), (before.0, before.1, false));
        drop((guard, buffer, pool));
        assert_all_back();
    }
}

#[test]
fn the_end_of_a_segment_is_reported_once_the_work_on_its_streams_is_done() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    let pool = whole();
    let done = Arc::new(Mutex::new(Vec::new()));
    let (seen, streams) = (Arc::clone(&done), [own.clone(), other.clone()]);
    let _guard = pool.on_segment(move |event| {
        if event.kind == SegmentEventKind::Removed {
            seen.lock().unwrap().push(streams.iter().all(|stream| stream.query().unwrap()));
        }
    });
    let buffer = pool.empty(8 * MIB, &own).unwrap();
    submit(&own).unwrap();
    submit(&other).unwrap();
    buffer.record_stream(&other).unwrap();
    drop(buffer);
    // Its block waits for the other stream, and is no free segment before that is done.
    assert_eq!(pool.trim().unwrap(), 0);
    gpupool::runtime::host::complete(&other, 1).unwrap();
    assert_eq!(pool.trim().unwrap(), 8 * MIB);
    assert_eq!(*done.lock().unwrap(), [true]);
}

#[test]
fn the_end_of_a_block_or_a_pool_waits_for_no_work_though_callbacks_are_told_of_its_segments() {
    memory!();
    let stream = stream(0);
    for ends_pool in [false, true] {
        let pool = whole();
        let (registered, guard) = Registered::of(&pool);
        guard.keep();
        let buffer = pool.empty(8 * MIB, &stream).unwrap();
        let address = buffer.ptr();
        let pool = if ends_pool {
            submit(&stream).unwrap();
            drop(buffer);
            drop(pool);
            None
        } else {
            pool.close().unwrap();
            submit(&stream).unwrap();
            drop(buffer);
            Some(pool)
        };
        assert!(!stream.query().unwrap(), "the work was waited for");
        assert_eq!(registered.all(), [(address, 8 * MIB)]);
        // Who gives memory back on purpose may wait.
        assert_eq!(empty_cache().unwrap(), 8 * MIB);
        assert!(stream.query().unwrap() && registered.all().is_empty());
        drop(pool);
        assert_all_back();
    }
}

#[test]
fn a_callback_that_was_removed_is_called_no_more() {
    memory!();
    let stream = stream(0);
    let pool = whole();
    let (first, first_guard) = Registered::of(&pool);
    let (second, _second_guard) = Registered::of(&pool);
    let buffer = pool.empty(8 * MIB, &stream).unwrap();
    let registered = first.all();
    assert_eq!(registered, second.all());
    drop(first_guard);
    drop(buffer);
    let other = pool.empty(16 * MIB, &stream).unwrap();
    pool.trim().unwrap();
    assert_eq!((first.all(), second.all()), (registered, vec![(other.ptr(), 16 * MIB)]));
    drop((other, pool));
    assert!(second.all().is_empty());
}

#[test]
fn a_callback_may_allocate_free_and_trim() {
    memory!();
    let own = stream(0);
    let pool = Arc::new(whole());
    let depth = AtomicU64::new(0);
    let (inner, own_stream, count) = (Arc::downgrade(&pool), own.clone(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&count);
    let _guard = pool.on_segment(move |event| {
        counted.fetch_add(1, Ordering::Relaxed);
        let Some(pool) = inner.upgrade() else { return };
        if depth.fetch_add(1, Ordering::Relaxed) < 2 {
            drop(pool.empty(event.nbytes / 2, &own_stream).unwrap());
            pool.trim().unwrap();
        }
        depth.fetch_sub(1, Ordering::Relaxed);
    });
    drop(pool.empty(64 * MIB, &own).unwrap());
    pool.trim().unwrap();
    let calls = count.load(Ordering::Relaxed);
    assert!(calls >= 6 && calls.is_multiple_of(2), "{calls}");
}

#[test]
fn a_callback_that_panics_fails_no_request() {
    memory!();
    let stream = stream(0);
    let pool = whole();
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let guard = pool.on_segment(|_| panic!("it cannot register"));
    let (registered, _guard) = Registered::of(&pool);
    let buffer = pool.empty(8 * MIB, &stream).unwrap();
    assert_eq!(registered.all(), [(buffer.ptr(), 8 * MIB)]);
    drop(buffer);
    assert_eq!(pool.trim().unwrap(), 8 * MIB);
    assert!(registered.all().is_empty());
    drop((guard, pool));
    panic::set_hook(hook);
}

/// The callback that is just being called for a segment does not learn of its end before, and no thread waits for it.
#[test]
fn a_segment_that_goes_while_a_new_callback_is_called_for_it_goes_after_that() {
    memory!();
    let stream = stream(0);
    let pool = Arc::new(whole());
    drop(pool.empty(8 * MIB, &stream).unwrap());
    let (seen, events) = mpsc::channel();
    let trimming = Arc::clone(&pool);
    let guard = pool.on_segment(move |event| {
        seen.send(event.kind).unwrap();
        if event.kind == SegmentEventKind::Added {
            let pool = Arc::clone(&trimming);
            assert_eq!(on_thread(move || pool.trim().unwrap()), 0);
            assert!(accessible(event.address, event.device), "it is there as long as it is being registered");
            seen.send(event.kind).unwrap();
        }
    });
    let _guard = guard.unwrap();
    assert_eq!(
        events.try_iter().collect::<Vec<_>>(),
        [SegmentEventKind::Added, SegmentEventKind::Added, SegmentEventKind::Removed]
    );
    complete_all().unwrap();
    pool.trim().unwrap();
}

#[test]
fn threads_find_every_block_registered_while_others_trim_and_register() {
    memory!();
    let pool = Arc::new(whole());
    let (registered, _guard) = Registered::of(&pool);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u64)
            .map(|number| {
                let (pool, registered) = (&pool, &registered);
                scope.spawn(move || {
                    let own = stream(0);
                    for step in 0..200_u64 {
                        let bytes = (1 + (step * 7 + number * 3) % 24) * MIB;
                        let buffer = pool.empty(bytes, &own).unwrap();
                        assert!(registered.has(buffer.ptr(), buffer.nbytes()));
                        drop(buffer);
                        if step % 5 == number {
                            pool.trim().unwrap();
                        }
                    }
                })
            })
            .collect();
        let registrar = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // Its own assertions hold from the first segment that it is called for to the last.
                drop(Registered::of(&pool));
            }
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        registrar.join().unwrap();
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    complete_all().unwrap();
    pool.trim().unwrap();
    assert!(registered.all().is_empty());
}

#[test]
fn the_callbacks_of_a_pool_end_with_it() {
    memory!();
    static ALIVE: OnceLock<Arc<()>> = OnceLock::new();
    let alive = Arc::clone(ALIVE.get_or_init(Arc::default));
    let stream = stream(0);
    let pool = whole();
    pool.on_segment(move |_| assert!(Arc::strong_count(&alive) > 1)).unwrap().keep();
    let buffer = pool.empty(MEMORY / 2, &stream).unwrap();
    drop(pool);
    assert_eq!(Arc::strong_count(ALIVE.get().unwrap()), 2);
    drop(buffer);
    assert_eq!(Arc::strong_count(ALIVE.get().unwrap()), 1);
}
