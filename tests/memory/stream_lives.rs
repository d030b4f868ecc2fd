//! How long streams live: as long as a clone, a scope or a buffer has them, whatever is dropped first.

use std::sync::mpsc::channel;
use std::thread;

use crate::common::memory::{PAGE, assert_all_back, pool};
use crate::common::{device, on_thread, stream, wait_until};
use gpupool::runtime::StreamScope;
use gpupool::runtime::host::{UsedBlock, complete_all, submit, submit_using};
use gpupool::{CommitOptions, DeviceBuffer, RawStream, Stream, attach, empty, empty_cache, memory_stats};

/// The driver's answer, which is an error for a stream that was destroyed.
fn is_alive(stream: RawStream) -> bool {
    // SAFETY: a simulated stream that is gone is an error, where a driver would crash.
    unsafe { Stream::from_raw_on(stream.as_ptr(), device(0)) }.unwrap().query().is_ok()
}

#[test]
fn the_current_stream_outlives_its_scope_and_every_other_clone() {
    memory!();
    let current = {
        let first = stream(0);
        let _scope = first.enter().unwrap();
        Stream::current().unwrap()
    };
    assert!(current.query().unwrap());
    let raw = current.raw();
    drop(current);
    assert!(!is_alive(raw), "nothing has the stream, which is destroyed");
    let on_device = {
        let second = stream(0);
        let _scope = second.enter().unwrap();
        Stream::current_on(device(0)).unwrap()
    };
    assert!(on_device.query().unwrap());
}

#[test]
fn a_scope_keeps_its_stream() {
    memory!();
    let (first, raw) = (stream(0), Stream::raw);
    let scope = first.enter().unwrap();
    let address = raw(&first);
    drop(first);
    assert_eq!(Stream::current().unwrap().raw(), address);
    assert!(Stream::current().unwrap().query().unwrap());
    on_thread(|| assert_eq!(Stream::current().unwrap().raw(), RawStream::LEGACY));
    drop(scope);
    assert!(!is_alive(address));
    assert_eq!(Stream::current().unwrap().raw(), RawStream::LEGACY);
}

/// A scope that another thread ends, as Python's `with` blocks may be.
struct Moved(StreamScope);

// SAFETY: the end of a scope on another thread leaves the lists of its own thread alone.
unsafe impl Send for Moved {}

#[test]
fn a_scope_that_its_thread_has_not_ended_keeps_the_stream_until_the_next_scope_of_any_thread() {
    memory!();
    let forgotten = on_thread(|| {
        let own = stream(0);
        std::mem::forget(own.enter().unwrap());
        own.raw()
    });
    let (give, given) = channel();
    let (end, may_end) = channel();
    let thread = thread::spawn(move || {
        let own = stream(0);
        give.send((own.raw(), Moved(own.enter().unwrap()))).unwrap();
        drop(own);
        may_end.recv().unwrap();
    });
    let (ended_elsewhere, Moved(scope)) = given.recv().unwrap();
    drop(scope);
    end.send(()).unwrap();
    thread.join().unwrap();
    drop(stream(0).enter().unwrap());
    assert_eq!([forgotten, ended_elsewhere].map(is_alive), [false; 2]);
}

#[test]
fn a_range_keeps_no_stream() {
    memory!();
    let pool = pool();
    let range = pool.reserve_range(8 * PAGE, PAGE).unwrap();
    let (first, pinned_on) = (stream(0), stream(0));
    let raws = [first.raw(), pinned_on.raw()];
    range.commit(&[0, 1], &first, CommitOptions::default()).unwrap();
    range.pin(&[0], Some(&pinned_on)).unwrap();
    let used = UsedBlock { number: 1, address: range.ptr(), bytes: PAGE };
    submit_using(&pinned_on, &[used]).unwrap();
    range.unpin(&[0], Some(&pinned_on)).unwrap();
    drop((first, pinned_on));
    assert_eq!(raws.map(is_alive), [false; 2]);
    // What they have submitted is waited for all the same: the simulated device ends the process if the page goes before.
    range.decommit(&[0, 1], None).unwrap();
    assert_eq!(pool.trim().unwrap(), 2 * PAGE);
}

#[test]
fn scopes_that_end_in_any_order_leave_the_innermost_of_the_rest_current() {
    memory!();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for ordinals in [[0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 0]] {
            // Each is held by its scope alone.
            let enter = |ordinal| {
                let stream = stream(ordinal);
                (ordinal, stream.raw(), stream.enter().unwrap())
            };
            let mut scopes: Vec<_> = ordinals.iter().map(|&ordinal| Some(enter(ordinal))).collect();
            for place in order {
                drop(scopes[place].take());
                let left = || scopes.iter().flatten().rev();
                let case = format!("{order:?} on {ordinals:?} after {place}");
                let innermost = left().next().map_or((0, RawStream::LEGACY), |&(ordinal, raw, _)| (ordinal, raw));
                let current = Stream::current().unwrap();
                assert_eq!((current.device(), current.raw()), (device(innermost.0), innermost.1), "{case}");
                for ordinal in [0, 1] {
                    let expected = left().find(|scope| scope.0 == ordinal).map_or(RawStream::LEGACY, |scope| scope.1);
                    let current = Stream::current_on(device(ordinal)).unwrap();
                    assert_eq!(current.raw(), expected, "{case} on {ordinal}");
                    assert!(current.query().unwrap(), "{case} on {ordinal}");
                }
            }
        }
    }
}

#[test]
fn the_stream_of_a_buffer_outlives_both() {
    memory!();
    for bytes in [0, 512, 5 << 20] {
        let of_buffer = {
            let own = stream(0);
            let buffer = empty(bytes, &own).unwrap();
            drop(own);
            buffer.stream()
        };
        // So that the cache of the stream, which has no memory any more, could end.
        assert_all_back_but_streams();
        assert!(of_buffer.query().unwrap(), "{bytes} bytes");
    }
    let of_attached = {
        let own = stream(0);
        let buffer = empty(512, &own).unwrap();
        let attached = attach(&buffer.share(&own).unwrap(), None, Some(&own)).unwrap();
        drop((own, buffer));
        attached.stream()
    };
    // A thread of gpupool's lets go of what was attached.
    wait_until("the attached memory is free", || {
        empty_cache().unwrap();
        memory_stats(device(0)).unwrap().total.waiting_blocks == 0
    });
    assert_all_back_but_streams();
    assert!(of_attached.query().unwrap());
}

/// Everything goes back, and requests on new streams end the caches of those that nothing has.
fn assert_all_back_but_streams() {
    assert_all_back();
    for _ in 0..4 {
        drop(empty(512, &stream(0)).unwrap());
    }
    assert_all_back();
}

fn used_as(number: u64, block: &DeviceBuffer) -> [UsedBlock; 1] {
    [UsedBlock { number, address: block.ptr(), bytes: block.nbytes() }]
}

#[test]
fn what_a_process_attaches_of_its_own_waits_for_the_work_before_it_was_shared() {
    host!();
    let (own, other) = (stream(0), stream(0));
    let buffer = empty(1 << 20, &own).unwrap();
    submit_using(&own, &used_as(1, &buffer)).unwrap();
    let attached = attach(&buffer.share(&own).unwrap(), None, Some(&other)).unwrap();
    // The simulated device checks that it comes after the work on the first stream.
    submit_using(&other, &used_as(2, &attached)).unwrap();
    complete_all().unwrap();
}

#[test]
fn attached_memory_that_another_thread_drops_waits_for_the_stream_of_the_thread_that_attached_it() {
    host!();
    let own = stream(0);
    let share = || {
        let buffer = empty(1 << 20, &own).unwrap();
        let token = buffer.share(&own).unwrap();
        (buffer, token)
    };
    let waiting = || memory_stats(device(0)).unwrap().total.waiting_blocks;
    let ((buffer, token), (beside, of_beside)) = (share(), share());
    let attached = on_thread(move || {
        let per_thread = Stream::per_thread(device(0)).unwrap();
        let attached = attach(&token, None, Some(&per_thread)).unwrap();
        submit(&per_thread).unwrap();
        attached
    });
    drop((buffer, attached));
    // The thread that lets go looks at what came first before this.
    drop((attach(&of_beside, None, Some(&own)).unwrap(), beside));
    wait_until("the second one is free", || {
        empty_cache().unwrap();
        waiting() <= 1
    });
    assert_eq!(waiting(), 1, "its owner may use it, and work of the thread's stream goes on");
    complete_all().unwrap();
    wait_until("the first one is free", || {
        empty_cache().unwrap();
        waiting() == 0
    });
}
