//! Workspaces: what handles compute with is shared by no two streams and no two graphs, and is never freed under either.

use crate::common::{device, on_thread, stream};
use gpupool::library::simulated::{SimulatedLibrary, set_workspace_bytes, set_workspace_of, workspace_of};
use gpupool::runtime::host::{
    Call, Fault, UsedBlock, begin_capture, clear_faults, complete_all, create_stream, driver_calls, end_capture,
    inject, replace_stream, submit_using,
};
use gpupool::{CaptureMode, CaptureStatus, HandlePool, StatusKind, Stream};

const BYTES: u64 = 32 << 20;

/// A pool whose handles get workspaces. When it ends nothing of them may be left.
struct Pool(HandlePool);

impl Pool {
    fn new() -> Self {
        set_workspace_bytes(BYTES);
        Self(HandlePool::new(SimulatedLibrary).expect("a pool"))
    }

    /// The workspace of this thread's handle once it is asked for with the stream; 0 for the library's own.
    fn workspace(&self, stream: &Stream) -> u64 {
        let handle = self.0.handle(stream).expect("a handle");
        // SAFETY: the handle is alive.
        unsafe { workspace_of(handle.as_ptr()) }
    }

    /// The same in a capture of the stream, which is not spoiled. The graph keeps it.
    fn captured(&self, stream: &Stream) -> (u64, gpupool::runtime::host::Graph) {
        begin_capture(stream, CaptureMode::Global).unwrap();
        let workspace = self.workspace(stream);
        assert_eq!(self.workspace(stream), workspace, "the same within a capture");
        assert_eq!(stream.capture_status().unwrap(), CaptureStatus::Active);
        (workspace, end_capture(stream).unwrap())
    }

    /// How many workspaces there are.
    fn count(&self) -> u64 {
        self.0.stats(None).unwrap().workspace_bytes / BYTES
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        set_workspace_bytes(0);
        clear_faults();
        // Takes this thread's handle out, too.
        self.0.close().unwrap();
        assert!(std::thread::panicking() || self.count() == 0, "{} are left", self.count());
    }
}

#[test]
fn every_stream_of_a_handle_has_one_and_gets_it_back() {
    host!();
    let (pool, streams) = (Pool::new(), [stream(0), stream(0)]);
    let [first, second] = [pool.workspace(&streams[0]), pool.workspace(&streams[1])];
    assert!(first != 0 && second != 0 && first != second);
    let calls = driver_calls();
    assert_eq!([pool.workspace(&streams[0]), pool.workspace(&streams[1])], [first, second]);
    assert_eq!(driver_calls(), calls);
    assert_eq!(pool.count(), 2);
}

#[test]
fn handles_share_none_on_one_stream() {
    host!();
    let (pool, stream) = (Pool::new(), stream(0));
    let leases = [pool.0.lease(&stream).unwrap(), pool.0.lease(&stream).unwrap()];
    // SAFETY: the leases are alive.
    let [first, second] = leases.each_ref().map(|lease| unsafe { workspace_of(lease.as_ptr()) });
    assert!(first != 0 && second != 0 && first != second);
}

#[test]
fn devices_count_their_own() {
    host!();
    let pool = Pool::new();
    pool.workspace(&stream(1));
    let on = |ordinal| pool.0.stats(Some(device(ordinal))).unwrap().workspace_bytes;
    assert_eq!((on(0), on(1)), (0, BYTES));
}

#[test]
fn a_graph_has_one_of_its_own() {
    host!();
    let (pool, stream) = (Pool::new(), stream(0));
    let before = pool.workspace(&stream);
    let (first, _first_graph) = pool.captured(&stream);
    let (second, _second_graph) = pool.captured(&stream);
    assert!(first != 0 && second != 0);
    assert!(before != first && before != second && first != second);
    assert_eq!(pool.workspace(&stream), before, "outside of captures the stream's own again");
    drop((_first_graph, _second_graph));
}

#[test]
fn what_a_graph_uses_is_not_freed_while_it_lives_and_then_serves_the_next() {
    host!();
    let pool = Pool::new();
    // The thread that captured ends, its handle is destroyed, and the graph lives on.
    let captured = {
        let pool = pool.0;
        on_thread(move || Pool::captured(&std::mem::ManuallyDrop::new(Pool(pool)), &stream(0)))
    };
    assert_eq!(pool.0.trim(None).unwrap(), 1);
    assert_eq!(pool.count(), 1);
    let stream = stream(0);
    let (other, graph) = pool.captured(&stream);
    assert_ne!(other, captured.0);
    drop(captured.1);
    assert_eq!(pool.count(), 2, "kept for the next graph");
    let (next, next_graph) = pool.captured(&stream);
    assert_eq!((next, pool.count()), (captured.0, 2));
    drop((graph, next_graph));
    pool.0.trim(None).unwrap();
    assert_eq!(pool.count(), 0);
}

#[test]
fn a_spoiled_capture_gives_its_own_back() {
    host!();
    let (pool, stream) = (Pool::new(), stream(0));
    pool.0.warm(1, device(0)).unwrap();
    begin_capture(&stream, CaptureMode::Global).unwrap();
    pool.workspace(&stream);
    assert!(stream.query().is_err());
    // It can only be ended; a handle can be had all the same.
    pool.workspace(&stream);
    assert!(end_capture(&stream).is_err());
    assert_eq!(pool.count(), 1);
    pool.0.trim(None).unwrap();
    assert_eq!(pool.count(), 0);
}

#[test]
fn a_thread_that_ends_frees_none_and_the_next_owner_gets_them() {
    host!();
    let (pool, stream) = (Pool::new(), stream(0));
    let ask = |stream: &Stream| {
        let (pool, stream) = (pool.0, stream.clone());
        on_thread(move || Pool::workspace(&std::mem::ManuallyDrop::new(Pool(pool)), &stream))
    };
    let first = ask(&stream);
    assert_eq!(pool.count(), 1);
    assert_eq!(ask(&stream), first);
    assert_eq!(pool.0.trim(None).unwrap(), 1);
    assert_eq!(pool.count(), 0);
}

#[test]
fn another_that_an_owner_set_is_gone_at_the_next() {
    host!();
    let (pool, stream) = (Pool::new(), stream(0));
    let lease = pool.0.lease(&stream).unwrap();
    // SAFETY: the lease is alive.
    let right = unsafe { workspace_of(lease.as_ptr()) };
    // SAFETY: the lease is alive.
    unsafe { set_workspace_of(lease.as_ptr(), 256) };
    drop(lease);
    let lease = pool.0.lease(&stream).unwrap();
    // SAFETY: the lease is alive.
    assert_eq!(unsafe { workspace_of(lease.as_ptr()) }, right);
}

#[test]
fn a_per_thread_default_stream_is_left_to_the_library() {
    host!();
    let (pool, stream) = (Pool::new(), stream(0));
    assert_ne!(pool.workspace(&stream), 0);
    assert_eq!(pool.workspace(&Stream::per_thread(device(0)).unwrap()), 0);
    assert_ne!(pool.workspace(&Stream::legacy(device(0)).unwrap()), 0);
}

#[test]
fn a_handle_of_many_streams_takes_no_more_for_ever() {
    host!();
    let pool = Pool::new();
    for _ in 0..100 {
        pool.workspace(&stream(0));
    }
    assert_eq!(pool.count(), 8);
}

#[test]
fn where_none_is_to_be_had_the_library_s_own_stays() {
    host!();
    for call in [Call::MemoryAllocate, Call::StreamCapture, Call::GraphRetain] {
        let (pool, stream) = (Pool::new(), stream(0));
        if call == Call::MemoryAllocate {
            inject(Fault { call, kind: StatusKind::OutOfMemory, after: 0, times: 1 });
            assert_eq!(pool.workspace(&stream), 0, "{call:?}");
        }
        inject(Fault { call, kind: StatusKind::Other, after: 0, times: 2 });
        begin_capture(&stream, CaptureMode::Global).unwrap();
        assert_eq!(pool.workspace(&stream), 0, "{call:?}");
        assert_eq!(stream.capture_status().unwrap(), CaptureStatus::Active);
        drop(end_capture(&stream).unwrap());
        clear_faults();
        assert_ne!(pool.captured(&stream).0, 0, "{call:?}");
    }
}

#[test]
fn none_is_lost_whatever_the_driver_refuses() {
    host!();
    // A request for a handle moves no bytes and shares no memory; without these calls the process's pools are enough.
    let is_beside = |call: &Call| {
        matches!(call, Call::CopyToDevice | Call::CopyToHost | Call::Fill | Call::EventExport | Call::EventImport)
            || matches!(call, Call::ExtentExport | Call::ExtentImport)
    };
    for call in Call::ALL.into_iter().filter(|call| !is_beside(call)) {
        for after in 0..6 {
            let (pool, stream) = (Pool::new(), stream(0));
            inject(Fault { call, kind: StatusKind::Other, after, times: 1 });
            for _ in 0..2 {
                if begin_capture(&stream, CaptureMode::Global).is_ok() {
                    let _ = pool.0.handle(&stream);
                    let _ = end_capture(&stream);
                }
                let _ = pool.0.handle(&stream);
                let _ = pool.0.trim(None);
            }
            clear_faults();
            assert!(pool.0.handle(&stream).is_ok(), "{call:?} after {after}");
        }
    }
}

#[test]
fn a_stream_at_the_address_of_one_that_is_gone_shares_no_workspace_with_its_work_and_spoils_no_capture() {
    host!();
    let (pool, raw, captured) = (Pool::new(), create_stream(device(0)).unwrap(), stream(0));
    // SAFETY: a simulated stream can be asked for also when it is gone.
    let view = || unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap();
    let workspace = pool.workspace(&view());
    submit_using(&view(), &[UsedBlock { number: 1, address: workspace, bytes: BYTES }]).unwrap();
    replace_stream(raw, device(0)).unwrap();
    begin_capture(&captured, CaptureMode::Global).unwrap();
    // The library's own.
    assert_eq!(pool.workspace(&view()), 0);
    end_capture(&captured).unwrap();
    assert_eq!(pool.count(), 1);
    complete_all().unwrap();
}
