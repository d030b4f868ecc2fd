//! What a pool of one's own promises: it is closed when its owner says so, and a pool for graphs can have all that
//! others have.

use crate::common::memory::{MADE_UP, MIB, builder, made_up, pool, source};
use crate::common::{device, stream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use gpupool::memory::{
    SegmentSource, begin_allocate_to_pool, end_allocate_to_pool, pool_use_count, release_pool,
    set_per_process_memory_fraction,
};
use gpupool::{ErrorKind, MemPool, PoolId, Result, Stream, empty};

fn assert_closed<T>(result: Result<T>, pool: &MemPool) {
    let error = result.err().expect("the pool is closed");
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
    let said = error.to_string();
    assert!(said.contains(&format!("pool {} on device 0 is closed", pool.id())), "{said}");
}

#[test]
fn a_closed_pool_refuses_requests_and_its_blocks_stay_valid() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let scope = pool.enter().unwrap();
    // Slots of one slab, so that one is free beside a live one; and blocks of their own pages.
    let small: Vec<_> = (0..4).map(|_| empty(700, &stream).unwrap()).collect();
    let (large, freed) = (empty(6 * MIB, &stream).unwrap(), empty(6 * MIB, &stream).unwrap());
    drop((freed, small.into_iter().skip(1).collect::<Vec<_>>()));
    assert!(pool.close().unwrap() >= 6 * MIB);
    // In the scope that is open, also for what this thread has free, and in no new one.
    for bytes in [700, 700, 6 * MIB, 1] {
        assert_closed(empty(bytes, &stream), &pool);
        assert_closed(empty(bytes, &Stream::new(device(0)).unwrap()), &pool);
    }
    assert_closed(pool.enter(), &pool);
    assert_closed(pool.token().enter(), &pool);
    assert_closed(pool.capture(&stream), &pool);
    assert_closed(begin_allocate_to_pool(device(0), pool.id()), &pool);
    assert_eq!((pool.use_count(), pool.close().unwrap()), (2, 0));
    assert_eq!(pool.stats().unwrap().live_bytes, 6 * MIB);
    // Memory goes as blocks die.
    drop(large);
    assert_eq!((pool.stats().unwrap().reserved_bytes, pool.use_count()), (0, 2));
    assert_closed(empty(6 * MIB, &stream), &pool);
    drop(scope);
    assert_eq!(empty(1, &stream).unwrap().pool_id(), PoolId::NONE);
    assert_eq!((pool.use_count(), pool.stats().unwrap().allocations), (1, 6));
}

#[test]
fn a_pool_is_closed_to_threads_that_are_in_it() {
    memory!();
    let pool = Arc::new(pool());
    let (entered, leave) = (mpsc::channel(), mpsc::channel());
    let worker = {
        let pool = Arc::clone(&pool);
        thread::spawn(move || {
            let stream = stream(0);
            let _scope = pool.enter().unwrap();
            drop(empty(700, &stream).unwrap());
            entered.0.send(()).unwrap();
            leave.1.recv().unwrap();
            assert_closed(empty(700, &stream), &pool);
        })
    };
    entered.1.recv().unwrap();
    pool.close().unwrap();
    leave.0.send(()).unwrap();
    worker.join().unwrap();
    assert_eq!((pool.use_count(), pool.stats().unwrap().reserved_bytes), (1, 0));
}

#[test]
fn a_graph_keeps_the_memory_of_a_closed_pool_until_it_is_reset() {
    memory!();
    let (pool, stream) = (pool(), stream(0));
    let capture = pool.capture(&stream).unwrap();
    drop(empty(4 * MIB, &stream).unwrap());
    let memory = capture.end().unwrap();
    assert_eq!(pool.close().unwrap(), 0);
    assert_eq!(pool.stats().unwrap().reserved_bytes, 4 * MIB);
    memory.reset();
    assert_eq!(pool.stats().unwrap().reserved_bytes, 0);
}

#[test]
fn a_use_that_was_begun_by_the_id_of_a_closed_pool_is_released() {
    memory!();
    let pool = pool();
    begin_allocate_to_pool(device(0), pool.id()).unwrap();
    pool.close().unwrap();
    assert_closed(empty(1, &stream(0)), &pool);
    end_allocate_to_pool(device(0), pool.id()).unwrap();
    release_pool(device(0), pool.id()).unwrap();
    assert_eq!(pool_use_count(device(0), pool.id()).unwrap(), Some(1));
}

#[test]
fn a_pool_for_graphs_has_an_allocator_and_a_limit() {
    memory!();
    let own: Arc<dyn SegmentSource> = made_up();
    let builder = builder().user_created(false).limit(4 * MIB).allocator(Arc::clone(&own));
    let (graphs, users) = (builder.build().unwrap(), pool());
    assert!(Arc::ptr_eq(graphs.allocator().unwrap(), &own));
    assert!(users.allocator().is_none());
    assert_eq!((graphs.id().1, users.id().0, graphs.limit()), (0, 0, Some(4 * MIB)));
    let stream = stream(0);
    // By its id, as PyTorch captures a graph: its memory is the graph's until the use is released.
    begin_allocate_to_pool(device(0), graphs.id()).unwrap();
    assert_eq!(empty(4 * MIB, &stream).unwrap().ptr(), MADE_UP);
    assert!(empty(6 * MIB, &stream).is_err());
    end_allocate_to_pool(device(0), graphs.id()).unwrap();
    assert_eq!((graphs.use_count(), graphs.trim().unwrap()), (2, 0));
    release_pool(device(0), graphs.id()).unwrap();
    assert_eq!((graphs.use_count(), graphs.trim().unwrap()), (1, 4 * MIB));
}

#[test]
fn a_source_that_panics_costs_nothing_of_a_limit() {
    memory!();
    set_per_process_memory_fraction(4.0 / 1024.0, device(0)).unwrap();
    let has_panicked = AtomicBool::new(false);
    let allocate = move |_, _: &Stream| {
        assert!(has_panicked.swap(true, Ordering::Relaxed), "a source that panics");
        Ok(MADE_UP)
    };
    let source = source(allocate, |_, _, _| Ok(()));
    let pool = builder().limit(4 * MIB).allocator(source).build().unwrap();
    let stream = stream(0);
    catch_unwind(AssertUnwindSafe(|| pool.empty(4 * MIB, &stream))).unwrap_err();
    assert_eq!(pool.empty(4 * MIB, &stream).unwrap().ptr(), MADE_UP);
    pool.trim().unwrap();
    assert_eq!(empty(4 * MIB, &stream).unwrap().nbytes(), 4 * MIB);
}

#[test]
fn a_scope_for_all_threads_serves_those_that_have_none() {
    memory!();
    let (everyone, own, other_device) = (pool(), pool(), MemPool::builder().device(device(1)).build().unwrap());
    let (send, tasks) = mpsc::channel::<Box<dyn FnOnce() -> Vec<PoolId> + Send>>();
    let (answer, answers) = mpsc::channel();
    let worker = thread::spawn(move || tasks.into_iter().for_each(|work| answer.send(work()).unwrap()));
    let run = |work: Box<dyn FnOnce() -> Vec<PoolId> + Send>| {
        send.send(work).unwrap();
        answers.recv().unwrap()
    };
    let (there, token) = (stream(0), own.token());
    let plain = there.clone();
    let allocate = move || {
        let stream = plain.clone();
        Box::new(move || vec![empty(700, &stream).unwrap().pool_id()]) as Box<_>
    };
    // A thread that has allocated before, so that what served it last is at hand.
    assert_eq!(run(allocate()), [PoolId::NONE]);
    {
        let _inside = everyone.enter_all_threads().unwrap();
        assert_eq!(everyone.use_count(), 2);
        assert_eq!([run(allocate()), run(allocate())], [[everyone.id()], [everyone.id()]]);
        assert_eq!(empty(1, &stream(0)).unwrap().pool_id(), everyone.id());
        assert_eq!(empty(1, &Stream::new(device(1)).unwrap()).unwrap().pool_id(), PoolId::NONE);
        // A scope of the thread's own wins, and a later one for all threads.
        let inner = there.clone();
        let ids = run(Box::new(move || {
            let _scope = token.enter().unwrap();
            vec![empty(700, &inner).unwrap().pool_id(), empty(700, &inner).unwrap().pool_id()]
        }));
        assert_eq!(ids, [own.id(), own.id()]);
        {
            let _other = other_device.enter_all_threads().unwrap();
            let _later = own.enter_all_threads().unwrap();
            assert_eq!(run(allocate()), [own.id()]);
        }
        assert_eq!((run(allocate()), own.use_count()), (vec![everyone.id()], 1));
    }
    assert_eq!((run(allocate()), everyone.use_count()), (vec![PoolId::NONE], 1));
    drop(send);
    worker.join().unwrap();
}

#[test]
fn a_scope_for_all_threads_ends_with_the_thread_that_entered_it() {
    memory!();
    let (pool, stream) = (Arc::new(pool()), stream(0));
    let entering = Arc::clone(&pool);
    let entered = thread::spawn(move || std::mem::forget(entering.enter_all_threads().unwrap()));
    entered.join().unwrap();
    assert_eq!((empty(1, &stream).unwrap().pool_id(), pool.use_count()), (PoolId::NONE, 1));
    let _scope = pool.enter_all_threads().unwrap();
    pool.close().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| assert_closed(empty(1, &stream), &pool));
    });
}
