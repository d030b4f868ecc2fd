//! Captures of other libraries, on each kind of stream and in each mode: no call of gpupool's spoils one, and none fails
//! that need not.
//!
//! While a blocking stream is captured, any use of the legacy default stream spoils the capture, and the driver refuses to
//! say whether that stream is captured.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;

use crate::common::memory::{MIB, assert_all_back, builder, empty_in, out_of_memory, pool};
use crate::common::{device, stream};
use gpupool::c_api::C_API;
use gpupool::runtime::host::{
    begin_capture, complete_all, create_blocking_stream, create_stream, destroy_stream, end_capture, submit,
};
use gpupool::{CaptureMode, Stream, empty, empty_cache, empty_pinned};

/// The stream that another library captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Captured {
    Blocking,
    /// Which no driver reports.
    NonBlocking,
    /// The same, declared by `expect_captures`.
    Expected,
    /// A per-thread default stream, which is a blocking one.
    PerThread,
}

const CAPTURED: [Captured; 4] = [Captured::Blocking, Captured::NonBlocking, Captured::Expected, Captured::PerThread];

/// Whose thread captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    ThisThread,
    AnotherThread,
}

/// A stream of the memory that is used meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Used {
    Own,
    Legacy,
    PerThread,
    /// Another library's, which gpupool touches only in calls that name it.
    Foreign,
}

const ASKERS: [Used; 3] = [Used::Own, Used::Legacy, Used::PerThread];
const OTHERS: [Used; 4] = [Used::Own, Used::Legacy, Used::PerThread, Used::Foreign];

fn view(raw: gpupool::RawStream) -> Stream {
    // SAFETY: a simulated stream can be asked for also when it is gone.
    unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap()
}

fn stream_of(kind: Used) -> Stream {
    match kind {
        Used::Own => stream(0),
        Used::Legacy => Stream::legacy(device(0)).unwrap(),
        Used::PerThread => Stream::per_thread(device(0)).unwrap(),
        Used::Foreign => view(create_stream(device(0)).unwrap()),
    }
}

fn destroy(stream: &Stream) {
    if !stream.raw().is_default() {
        destroy_stream(stream.raw(), device(0)).unwrap();
    }
}

/// Runs what another library captures around; returns whether the capture is right at its end.
fn captured<R>(kind: Captured, mode: CaptureMode, by: By, run: impl FnOnce() -> R) -> (R, bool) {
    let made = |kind| match kind {
        Captured::Blocking => view(create_blocking_stream(device(0)).unwrap()),
        Captured::NonBlocking | Captured::Expected => view(create_stream(device(0)).unwrap()),
        Captured::PerThread => Stream::per_thread(device(0)).unwrap(),
    };
    if kind == Captured::Expected {
        // SAFETY: it takes any ordinal.
        assert_eq!(unsafe { (C_API.expect_captures)(0) }, 0);
    }
    let outcome = match by {
        By::ThisThread => {
            let stream = made(kind);
            begin_capture(&stream, mode).unwrap();
            let result = run();
            let is_right = end_capture(&stream).is_ok();
            destroy(&stream);
            (result, is_right)
        }
        By::AnotherThread => thread::scope(|scope| {
            let (begun, begins) = channel();
            let (end, ends) = channel::<()>();
            let capturing = scope.spawn(move || {
                let stream = made(kind);
                begin_capture(&stream, mode).unwrap();
                begun.send(()).unwrap();
                let _ = ends.recv();
                let is_right = end_capture(&stream).is_ok();
                destroy(&stream);
                is_right
            });
            begins.recv().unwrap();
            let result = run();
            drop(end);
            (result, capturing.join().unwrap())
        }),
    };
    if kind == Captured::Expected {
        // SAFETY: it takes any ordinal.
        assert_eq!(unsafe { (C_API.end_expecting_captures)(0) }, 0);
    }
    outcome
}

/// The streams of what is done meanwhile.
struct Streams {
    asker: Stream,
    other: Stream,
}

type During = Box<dyn FnOnce(&Streams)>;
/// What is done before a capture, which returns what is done during it.
type Step = fn(&Streams) -> During;

/// A step that was begun before the capture: `make`, then `during`.
fn step<T: 'static>(made: T, during: impl FnOnce(T, &Streams) + 'static) -> During {
    Box::new(move |streams| during(made, streams))
}

/// What frees, records, grows, trims and ends meanwhile.
const STEPS: [(&str, Step); 13] = [
    ("a request for a block that waits for the other stream", |streams| {
        let pool = pool();
        let block = empty_in(&pool, 4 * MIB, &streams.asker).unwrap();
        block.record_stream(&streams.other).unwrap();
        submit(&streams.other).unwrap();
        drop(block);
        step(pool, |pool, streams| drop(empty_in(&pool, 4 * MIB, &streams.asker).unwrap()))
    }),
    ("a free of a block that the other stream used", |streams| {
        let pool = pool();
        let block = empty_in(&pool, 4 * MIB, &streams.asker).unwrap();
        block.record_stream(&streams.other).unwrap();
        step((block, pool), |(block, pool), streams| {
            drop(block);
            drop(empty_in(&pool, 4 * MIB, &streams.asker).unwrap());
            drop(empty_in(&pool, 700, &streams.asker).unwrap());
        })
    }),
    ("a free in the order of the other stream", |streams| {
        let pool = pool();
        let block = empty_in(&pool, 4 * MIB, &streams.asker).unwrap();
        step((block, pool), |(block, pool), streams| {
            block.free_on(&streams.other).unwrap();
            drop(empty_in(&pool, 4 * MIB, &streams.asker).unwrap());
        })
    }),
    ("record_stream", |streams| {
        let pool = pool();
        let block = empty_in(&pool, 700, &streams.asker).unwrap();
        step((block, pool), |(block, pool), streams| {
            block.record_stream(&streams.other).unwrap();
            drop(block);
            drop(empty_in(&pool, 700, &streams.asker).unwrap());
        })
    }),
    ("growth beside free pages of the other stream", |streams| {
        let pool = pool();
        drop(empty_in(&pool, 40 * MIB, &streams.other).unwrap());
        step(pool, |pool, streams| {
            drop(empty_in(&pool, 30 * MIB, &streams.asker).unwrap());
            drop(empty_in(&pool, 90 * MIB, &streams.asker).unwrap());
        })
    }),
    ("growth that moves the stream's own pages", |streams| {
        let pool = builder().limit(40 * MIB).build().unwrap();
        let parts: Vec<_> = (0..4).map(|_| empty_in(&pool, 10 * MIB, &streams.asker).unwrap()).collect();
        step((parts, pool), |(mut parts, pool), streams| {
            drop((parts.remove(2), parts.remove(0)));
            drop(empty_in(&pool, 20 * MIB, &streams.asker).unwrap());
        })
    }),
    ("small blocks on lent pages", |streams| {
        let pool = pool();
        let many: Vec<_> = (0..20).map(|_| stream(0)).collect();
        let live: Vec<_> = many.iter().map(|stream| empty_in(&pool, 700, stream).unwrap()).collect();
        drop(empty_in(&pool, 700, &streams.other).unwrap());
        drop(empty_in(&pool, 700, &streams.asker).unwrap());
        step((live, many, pool), |(live, _many, pool), streams| {
            empty_cache().unwrap();
            drop(empty_in(&pool, 700, &stream(0)).unwrap());
            drop(empty_in(&pool, 3000, &streams.asker).unwrap());
            drop(empty_in(&pool, 3000, &streams.other).unwrap());
            drop(live);
            pool.trim().unwrap();
        })
    }),
    ("empty_cache", |streams| {
        drop((empty(10 * MIB, &streams.asker).unwrap(), empty(10 * MIB, &streams.other).unwrap()));
        submit(&streams.other).unwrap();
        step((), |(), streams| {
            empty_cache().unwrap();
            drop(empty(10 * MIB, &streams.asker).unwrap());
        })
    }),
    ("a pool's trim", |streams| {
        let pool = pool();
        drop((empty_in(&pool, MIB, &streams.asker).unwrap(), empty_in(&pool, 10 * MIB, &streams.other).unwrap()));
        step(pool, |pool, streams| {
            pool.trim().unwrap();
            drop(empty_in(&pool, 10 * MIB, &streams.asker).unwrap());
        })
    }),
    ("a pool's end", |streams| {
        let pool = pool();
        drop((empty_in(&pool, MIB, &streams.asker).unwrap(), empty_in(&pool, 10 * MIB, &streams.other).unwrap()));
        step(pool, |pool, streams| {
            pool.close().unwrap();
            drop(pool);
            drop(empty(MIB, &streams.asker).unwrap());
        })
    }),
    ("a request of a reserve", |streams| {
        let pool = builder().reserve(64 * MIB).limit(64 * MIB).build().unwrap();
        drop(empty_in(&pool, 30 * MIB, &streams.other).unwrap());
        step(pool, |pool, streams| {
            drop(empty_in(&pool, 30 * MIB, &streams.asker).unwrap());
            if let Err(error) = empty_in(&pool, 60 * MIB, &streams.asker) {
                out_of_memory::<()>(Err(error));
            }
        })
    }),
    ("a request in need", |streams| {
        let pool = builder().limit(100 * MIB).build().unwrap();
        let third = stream(0);
        drop((empty_in(&pool, 40 * MIB, &streams.other).unwrap(), empty_in(&pool, 40 * MIB, &third).unwrap()));
        step((pool, third), |(pool, _third), streams| {
            drop(empty_in(&pool, 56 * MIB, &streams.asker).unwrap());
            if let Err(error) = empty_in(&pool, 90 * MIB, &streams.asker) {
                out_of_memory::<()>(Err(error));
            }
        })
    }),
    ("pinned memory", |_| {
        let block = empty_pinned(4096, None).unwrap();
        step(block, |block, streams| {
            block.record_stream(&streams.other).unwrap();
            drop(block);
            drop(empty_pinned(4096, Some(&streams.asker)).unwrap());
        })
    }),
];

/// What needs all work of the device: of streams that may be gone by then, and of graphs.
const STEPS_OF_THE_DEVICE: [(&str, Step); 3] = [
    ("a capture of the caller's own", |streams| {
        let (graphs, inner) = (pool(), pool());
        drop(empty_in(&inner, 4 * MIB, &streams.other).unwrap());
        step((graphs, inner, stream(0)), |(graphs, inner, own), streams| {
            let scope = graphs.capture(&own).unwrap();
            begin_capture(&own, CaptureMode::Relaxed).unwrap();
            drop(empty(4 * MIB, &own).unwrap());
            // No part of the graph: what it frees is the pool's again at once.
            drop(empty_in(&inner, 4 * MIB, &streams.other).unwrap());
            drop(empty_in(&inner, 4 * MIB, &streams.asker).unwrap());
            end_capture(&own).expect("the caller's own capture is right");
            scope.end().unwrap().reset();
        })
    }),
    ("the reset of an older graph", |streams| {
        let (graphs, own) = (pool(), stream(0));
        let scope = graphs.capture(&own).unwrap();
        begin_capture(&own, CaptureMode::Relaxed).unwrap();
        drop(empty(4 * MIB, &own).unwrap());
        end_capture(&own).unwrap();
        let memory = scope.end().unwrap();
        drop(empty(4 * MIB, &streams.other).unwrap());
        step((memory, graphs, own), |(memory, graphs, own), streams| {
            memory.reset();
            drop(empty_in(&graphs, 4 * MIB, &streams.asker).unwrap());
            drop((graphs, own));
            drop(empty(4 * MIB, &streams.asker).unwrap());
        })
    }),
    ("memory of a stream that is gone", |streams| {
        let (pool, gone) = (pool(), view(create_stream(device(0)).unwrap()));
        drop(empty_in(&pool, 10 * MIB, &gone).unwrap());
        destroy_stream(gone.raw(), device(0)).unwrap();
        drop(empty_in(&pool, MIB, &streams.other).unwrap());
        step(pool, |pool, streams| {
            drop(empty_in(&pool, 10 * MIB, &streams.asker).unwrap());
            pool.trim().unwrap();
            empty_cache().unwrap();
        })
    }),
];

fn why(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default()
}

/// Does a step beside a capture; says what went wrong.
fn try_step(kind: Captured, mode: CaptureMode, by: By, step: Step, asker: Used, other: Used) -> Result<(), String> {
    let streams = Streams { asker: stream_of(asker), other: stream_of(other) };
    let run = AssertUnwindSafe(|| {
        let during = step(&streams);
        let (outcome, is_right) = captured(kind, mode, by, || catch_unwind(AssertUnwindSafe(|| during(&streams))));
        outcome.map_err(|panic| why(&*panic)).and(if is_right { Ok(()) } else { Err("spoilt".to_owned()) })
    });
    let outcome = catch_unwind(run).unwrap_or_else(|panic| Err(why(&*panic)));
    complete_all().unwrap();
    if other == Used::Foreign {
        destroy(&streams.other);
    }
    // Of a pool that a failure has left behind.
    let back = catch_unwind(assert_all_back).map_err(|panic| format!("not all is back: {}", why(&*panic)));
    outcome.and(back)
}

/// Nothing spoils captures of this mode, and nothing fails beside them.
fn check(mode: CaptureMode) {
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for kind in CAPTURED {
        for by in [By::ThisThread, By::AnotherThread] {
            // No driver reports it, so gpupool assumes that there is none.
            let is_unknown = kind == Captured::NonBlocking;
            let of_device: &[(&str, Step)] = if is_unknown { &[] } else { &STEPS_OF_THE_DEVICE };
            for &(name, step) in STEPS.iter().chain(of_device) {
                for (asker, other) in ASKERS.into_iter().flat_map(|asker| OTHERS.map(|other| (asker, other))) {
                    // Work on the captured stream itself is another matter.
                    let is_captured = kind == Captured::PerThread && by == By::ThisThread;
                    let uses_it = is_captured && [asker, other].contains(&Used::PerThread);
                    if uses_it || (is_unknown && other == Used::Foreign) {
                        continue;
                    }
                    tried += 1;
                    if let Err(why) = try_step(kind, mode, by, step, asker, other) {
                        wrong.push(format!("{kind:?} {by:?}, {asker:?} beside {other:?}: {name}: {why}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn nothing_spoils_global_ones_and_nothing_fails_beside_them() {
    memory!();
    check(CaptureMode::Global);
}

#[test]
fn nothing_spoils_a_threads_own_ones_and_nothing_fails_beside_them() {
    memory!();
    check(CaptureMode::ThreadLocal);
}

#[test]
fn nothing_spoils_relaxed_ones_and_nothing_fails_beside_them() {
    memory!();
    check(CaptureMode::Relaxed);
}

#[test]
fn a_block_goes_on_waiting_for_the_legacy_stream_until_the_capture_ends() {
    memory!();
    let (pool, own, legacy) = (pool(), stream(0), Stream::legacy(device(0)).unwrap());
    let block = empty_in(&pool, 4 * MIB, &own).unwrap();
    let address = block.ptr();
    block.record_stream(&legacy).unwrap();
    submit(&legacy).unwrap();
    let (beside, is_right) = captured(Captured::Blocking, CaptureMode::Global, By::ThisThread, || {
        drop(block);
        let beside = empty_in(&pool, 4 * MIB, &own).unwrap();
        complete_all().unwrap();
        drop(empty_in(&pool, 40 * MIB, &own).unwrap());
        assert_eq!(pool.stats().unwrap().waiting_blocks, 1);
        beside
    });
    assert!(is_right);
    assert_ne!(beside.ptr(), address);
    drop(empty_in(&pool, 100 * MIB, &own).unwrap());
    assert_eq!(pool.stats().unwrap().waiting_blocks, 0);
}

#[test]
fn a_request_on_the_legacy_stream_is_no_graphs() {
    memory!();
    let (pool, legacy) = (pool(), Stream::legacy(device(0)).unwrap());
    let (addresses, is_right) = captured(Captured::Blocking, CaptureMode::Global, By::AnotherThread, || {
        let _scope = pool.enter().unwrap();
        let first = empty(4 * MIB, &legacy).unwrap().ptr();
        let again = empty(4 * MIB, &legacy).unwrap();
        (first, again.ptr(), again)
    });
    assert!(is_right);
    // Work of the stream comes in order, so the memory is used again at once, and is the pool's after the capture.
    assert_eq!(addresses.0, addresses.1);
    let before = pool.stats().unwrap().reserved_bytes;
    drop(addresses);
    drop(empty_in(&pool, 4 * MIB, &legacy).unwrap());
    assert_eq!(pool.stats().unwrap().reserved_bytes, before);
}
