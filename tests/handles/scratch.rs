//! A library whose handles keep scratch memory, as ROCm's do: a thread has one for each stream, so that the work of one never
//! meets another's there.

use std::ptr::NonNull;

use crate::common::{assert_none_lost, device, on_thread, stream};
use gpupool::library::simulated::{SimulatedLibrary, resets_of, set_keeps_scratch, stream_of};
use gpupool::library::{Library, RawHandle};
use gpupool::runtime::host::{
    Call, Fault, begin_capture, clear_faults, complete, complete_all, create_blocking_stream, create_stream,
    end_capture, inject, replace_stream, submit,
};
use gpupool::{CaptureMode, CaptureStatus, Device, Error, HandlePool, Result, StatusKind, Stream};

fn pool() -> HandlePool {
    set_keeps_scratch(true);
    HandlePool::new(SimulatedLibrary).expect("a pool")
}

fn address(pool: HandlePool, stream: &Stream) -> usize {
    let handle = pool.handle(stream).expect("a handle").as_ptr();
    // SAFETY: the pool just gave the handle, and this thread holds it.
    assert_eq!(unsafe { stream_of(handle) }, stream.raw().address());
    handle.addr()
}

/// As many streams as a thread has handles for, and its handles.
fn full_window(pool: HandlePool) -> (Vec<Stream>, Vec<usize>) {
    let streams: Vec<_> = (0..8).map(|_| stream(0)).collect();
    let handles = streams.iter().map(|stream| address(pool, stream)).collect();
    (streams, handles)
}

#[test]
fn a_thread_has_a_handle_for_each_stream() {
    host!();
    let pool = pool();
    let (streams, handles) = full_window(pool);
    for (index, handle) in handles.iter().enumerate() {
        assert!(!handles[..index].contains(handle), "two streams share a handle");
    }
    // Each again, in another order, without a new one.
    for (stream, &handle) in streams.iter().zip(&handles).rev() {
        assert_eq!(address(pool, stream), handle);
    }
    let elsewhere = address(pool, &stream(1));
    assert!(!handles.contains(&elsewhere));
    let stats = pool.stats(Some(device(0))).unwrap();
    assert_eq!((stats.created, stats.held, stats.hits, stats.misses, stats.hand_overs), (8, 8, 8, 8, 0));
}

#[test]
fn a_new_stream_at_the_address_of_one_that_is_gone_has_a_handle_of_its_own() {
    host!();
    let (pool, raw) = (pool(), create_stream(device(0)).unwrap());
    // SAFETY: a simulated stream can be asked for also when it is gone.
    let view = || unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap();
    let former = address(pool, &view());
    submit(&view()).unwrap();
    assert_eq!(address(pool, &view()), former);
    replace_stream(raw, device(0)).unwrap();
    let next = address(pool, &view());
    assert_ne!(next, former, "work of the stream that is gone uses its scratch memory still");
    assert_eq!(address(pool, &view()), next);
    complete_all().unwrap();
}

#[test]
fn all_of_them_go_back_when_the_thread_ends() {
    host!();
    let (pool, streams) = (pool(), [stream(0), stream(0)]);
    let theirs = streams.clone();
    let handles = on_thread(move || theirs.each_ref().map(|stream| address(pool, stream)));
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.idle, stats.held), (2, 2, 0));
    // And each serves its stream again.
    assert_eq!(on_thread(move || streams.each_ref().map(|stream| address(pool, stream))), handles);
}

#[test]
fn one_stream_more_takes_the_oldest_streams_handle_and_waits_for_its_work() {
    host!();
    let pool = pool();
    let (streams, handles) = full_window(pool);
    let before = submit(&streams[0]).unwrap();
    let ninth = stream(0);
    // SAFETY: the handle is alive, and this thread's.
    let resets = || unsafe { resets_of(std::ptr::with_exposed_provenance_mut(handles[0])) };
    let resets_before = resets();
    assert_eq!(address(pool, &ninth), handles[0]);
    assert_eq!(resets(), resets_before + 1, "what the first stream's user changed is set back");
    let after = submit(&ninth).unwrap();
    complete(&ninth, after).unwrap();
    assert!(!ninth.query().unwrap(), "the handle's former work is not done");
    complete(&streams[0], before).unwrap();
    complete(&ninth, after).unwrap();
    assert!(ninth.query().unwrap());
    // The others keep theirs, and the next to go is the second.
    for (stream, &handle) in streams[1..].iter().zip(&handles[1..]) {
        assert_eq!(address(pool, stream), handle);
    }
    assert_eq!(address(pool, &streams[0]), handles[1]);
    let stats = pool.stats(None).unwrap();
    assert_none_lost(stats);
    assert_eq!((stats.created, stats.held, stats.hand_overs), (8, 8, 2));
    complete_all().unwrap();
}

#[test]
fn a_handle_whose_stream_may_be_gone_is_passed_over_while_fewer_than_four_others_are_idle() {
    host!();
    let pool = pool();
    for created in [4, 8, 8] {
        let raw: Vec<_> = (0..4).map(|_| create_stream(device(0)).unwrap()).collect();
        // SAFETY: the streams are never destroyed, which the pool does not know.
        let foreign = raw.iter().map(|raw| unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap());
        let streams: Vec<_> = foreign.collect();
        let leases: Vec<_> = streams.iter().map(|stream| pool.lease(stream).unwrap()).collect();
        drop(leases);
        assert_eq!(pool.stats(None).unwrap().created, created);
    }
    let stats = pool.stats(None).unwrap();
    assert_none_lost(stats);
    assert_eq!((stats.idle, stats.hand_overs), (8, 4));
}

#[test]
fn a_captured_stream_takes_no_handle_that_it_would_wait_for() {
    host!();
    let pool = pool();
    let (streams, handles) = full_window(pool);
    submit(&streams[0]).unwrap();
    let captured = stream(0);
    begin_capture(&captured, CaptureMode::Global).unwrap();
    assert!(!handles.contains(&address(pool, &captured)));
    assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Active);
    end_capture(&captured).unwrap();
    let stats = pool.stats(None).unwrap();
    assert_none_lost(stats);
    assert_eq!((stats.created, stats.held, stats.idle), (9, 8, 1));
    complete_all().unwrap();
}

#[test]
fn a_hand_over_that_is_refused_leaves_the_oldest_stream_its_handle() {
    host!();
    let pool = pool();
    let (streams, handles) = full_window(pool);
    let is_refused = |what: &str, ninth: &Stream| {
        assert!(pool.handle(ninth).is_err(), "{what}");
        let stats = pool.stats(None).unwrap();
        assert_eq!((stats.held, stats.idle), (8, 0), "{what}: it is anybody's");
        // As a hit, with the stream set.
        assert_eq!(address(pool, &streams[0]), handles[0], "{what}");
        assert_eq!(pool.stats(None).unwrap().hits, stats.hits + 1, "{what}");
        complete_all().unwrap();
    };
    for call in [Call::EventCreate, Call::EventRecord, Call::StreamWaitEvent, Call::HandleSetStream] {
        submit(&streams[0]).unwrap();
        inject(Fault { call, kind: StatusKind::Other, after: 0, times: 1 });
        is_refused(&format!("{call:?}"), &stream(0));
        assert_eq!(clear_faults(), 0, "{call:?}");
    }
    pool.set_limit(Some(8)).unwrap();
    let captured = stream(0);
    submit(&streams[0]).unwrap();
    begin_capture(&captured, CaptureMode::Relaxed).unwrap();
    is_refused("a captured stream at the limit", &captured);
    end_capture(&captured).unwrap();
}

/// A library whose handles cannot be reset, as what their owner has made with them is in use.
struct Stuck;

impl Library for Stuck {
    fn name(&self) -> &str {
        "stuck"
    }

    fn create(&self, _device: Device) -> Result<RawHandle> {
        // SAFETY: the box is leaked, and nobody destroys it.
        Ok(unsafe { RawHandle::from_ptr(NonNull::from(Box::leak(Box::new(0_u64))).cast()) })
    }

    fn destroy(&self, _handle: RawHandle) -> Result<()> {
        Ok(())
    }

    fn set_stream(&self, _handle: &RawHandle, _stream: &Stream) -> Result<()> {
        Ok(())
    }

    fn reset(&self, _handle: &RawHandle) -> Result<()> {
        Err(Error::refused("stuck", "reset", "IN_USE", 1, StatusKind::Other))
    }

    fn cannot_be_reset(&self, _handle: &RawHandle) -> bool {
        true
    }

    fn keeps_scratch(&self) -> bool {
        true
    }
}

#[test]
fn a_handle_that_cannot_be_reset_stays_its_threads_at_a_limit() {
    host!();
    let pool = HandlePool::new(Stuck).unwrap();
    let streams: Vec<_> = (0..9).map(|_| stream(0)).collect();
    let of = |stream: &Stream| pool.handle(stream).unwrap().as_ptr().addr();
    let handles: Vec<_> = streams[..8].iter().map(of).collect();
    pool.set_limit(Some(8)).unwrap();
    assert!(pool.handle(&streams[8]).is_err());
    assert_eq!(of(&streams[0]), handles[0]);
    // Where there may be another one, the oldest is left for others to find out.
    pool.set_limit(None).unwrap();
    assert!(!handles.contains(&of(&streams[8])));
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.held, stats.idle), (9, 8, 1));
    assert_none_lost(stats);
}

#[test]
fn a_thread_that_has_all_that_a_limit_allows_does_not_wait_for_itself() {
    host!();
    let pool = pool();
    pool.set_limit(Some(1)).unwrap();
    let (first, second) = (stream(0), stream(0));
    assert_eq!(address(pool, &first), address(pool, &second));
    assert_eq!(address(pool, &second), address(pool, &first));
    assert_eq!(pool.stats(None).unwrap().created, 1);
}

#[test]
fn a_closed_pool_takes_all_of_a_threads_handles_back() {
    host!();
    let pool = pool();
    full_window(pool);
    assert_eq!(pool.close().unwrap(), 8);
    assert!(pool.handle(&stream(0)).is_err());
}

#[test]
fn beside_a_capture_none_is_handed_to_the_legacy_stream_or_from_it() {
    host!();
    let (pool, legacy) = (pool(), Stream::legacy(device(0)).unwrap());
    let of_legacy = address(pool, &legacy);
    let others: Vec<_> = (0..7).map(|_| stream(0)).collect();
    let handles: Vec<_> = others.iter().map(|stream| address(pool, stream)).collect();
    submit(&legacy).unwrap();
    let raw = create_blocking_stream(device(0)).unwrap();
    // SAFETY: the stream is never destroyed.
    let captured = unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap();
    begin_capture(&captured, CaptureMode::Global).unwrap();
    // The oldest is the legacy stream's, whose work cannot be recorded now.
    let ninth = address(pool, &stream(0));
    assert!(ninth != of_legacy && !handles.contains(&ninth));
    // Nor can the legacy stream wait for the work of another, whose handle it would take.
    on_thread(move || {
        let (_streams, handles) = full_window(pool);
        assert!(!handles.contains(&address(pool, &Stream::legacy(device(0)).unwrap())));
    });
    end_capture(&captured).expect("nothing spoils the capture");
    complete_all().unwrap();
}
