//! The simulated devices behave as CUDA's do where the pools depend on it.

use crate::common::{device, on_thread, stream};
use gpupool::library::Library;
use gpupool::library::simulated::SimulatedLibrary;
use gpupool::runtime::host::{
    Call, Fault, begin_capture, complete, create_blocking_stream, end_capture, inject, submit,
};
use gpupool::runtime::{self, BoundDevice, RelaxedCapture, StreamScope};
use gpupool::{CaptureMode, CaptureStatus, Device, ErrorKind, Event, StatusKind, Stream, device_info};

#[test]
fn work_is_done_when_told_to() {
    memory!();
    let stream = stream(0);
    let first = submit(&stream).unwrap();
    let second = submit(&stream).unwrap();
    assert!(!stream.query().unwrap());
    complete(&stream, first).unwrap();
    assert!(!stream.query().unwrap());
    complete(&stream, second).unwrap();
    assert!(stream.query().unwrap());
    submit(&stream).unwrap();
    stream.synchronize().unwrap();
    assert!(stream.query().unwrap());
}

#[test]
fn an_event_is_done_with_the_work_before_it_and_holds_a_waiting_stream_back() {
    memory!();
    let (producer, consumer, event) = (stream(0), stream(0), Event::new(device(0)).unwrap());
    assert!(event.query().unwrap());
    let before = submit(&producer).unwrap();
    event.record(&producer).unwrap();
    let after = submit(&producer).unwrap();
    consumer.wait(&event).unwrap();
    assert!(!consumer.query().unwrap(), "a stream that waits has nothing left to do");
    let waiting = submit(&consumer).unwrap();
    complete(&consumer, waiting).unwrap();
    assert!(!consumer.query().unwrap() && !event.query().unwrap());
    complete(&producer, before).unwrap();
    assert!(event.query().unwrap());
    complete(&consumer, waiting).unwrap();
    assert!(consumer.query().unwrap() && !producer.query().unwrap());
    complete(&producer, after).unwrap();
    event.synchronize().unwrap();
}

#[test]
fn synchronizing_a_stream_completes_what_it_waits_for() {
    memory!();
    let (producer, consumer, event) = (stream(0), stream(0), Event::new(device(0)).unwrap());
    submit(&producer).unwrap();
    event.record(&producer).unwrap();
    consumer.wait(&event).unwrap();
    submit(&consumer).unwrap();
    consumer.synchronize().unwrap();
    assert!(producer.query().unwrap());
}

#[test]
fn an_unsafe_call_spoils_global_captures_and_ones_own() {
    memory!();
    let (global, local) = (stream(0), stream(0));
    begin_capture(&global, CaptureMode::Global).unwrap();
    begin_capture(&local, CaptureMode::ThreadLocal).unwrap();
    // Creating a handle allocates. Without the pool's guard, another thread spoils the global capture only.
    on_thread(|| assert!(SimulatedLibrary.create(device(0)).is_err()));
    assert_eq!(global.capture_status().unwrap(), CaptureStatus::Invalidated);
    assert_eq!(local.capture_status().unwrap(), CaptureStatus::Active);
    assert!(SimulatedLibrary.create(device(0)).is_err());
    let error = end_capture(&local).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Library(refused) if refused.code == 901), "{error}");
    assert!(end_capture(&global).is_err());
    assert_eq!(local.capture_status().unwrap(), CaptureStatus::None);
}

#[test]
fn a_stream_of_another_device_is_no_stream_of_an_event() {
    memory!();
    let error = Event::new(device(0)).unwrap().record(&stream(1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
}

#[test]
fn a_stream_used_after_its_end_is_recognised() {
    memory!();
    let raw = stream(0).raw().as_ptr();
    // SAFETY: the simulated streams tolerate an address that is no longer theirs, which is what is tested.
    let error = unsafe { Stream::from_raw(raw) }.unwrap_err();
    assert!(error.to_string().contains("HOST_ERROR_INVALID_HANDLE (400)"), "{error}");
}

#[test]
fn a_foreign_stream_finds_its_device() {
    memory!();
    let owned = stream(1);
    // SAFETY: `owned` outlives the view.
    let view = unsafe { Stream::from_raw(owned.raw().as_ptr()) }.unwrap();
    assert_eq!((view.raw(), view.device()), (owned.raw(), device(1)));
}

#[test]
fn a_device_tells_what_it_is_and_what_is_free() {
    memory!();
    let info = device_info(device(0)).unwrap();
    assert_eq!((info.name.as_str(), info.uuid, info.pci_bus_id, info.is_mig), ("simulated device", None, None, false));
    let free = info.free_bytes.unwrap();
    assert!(free <= info.total_bytes);
    let buffer = gpupool::empty(32 << 20, &stream(0)).unwrap();
    assert!(device_info(device(0)).unwrap().free_bytes.unwrap() <= free - (32 << 20));
    drop(buffer);
    assert!(matches!(device_info(Device::from_ordinal(99)).unwrap_err().kind(), ErrorKind::InvalidValue(_)));
}

#[test]
fn faults_come_after_and_as_often_as_said() {
    memory!();
    inject(Fault { call: Call::StreamCreate, kind: StatusKind::Other, after: 1, times: 2 });
    let results: Vec<_> = (0..4).map(|_| Stream::new(device(0)).is_ok()).collect();
    assert_eq!(results, [true, false, false, true]);
}

/// A blocking stream of another library's.
fn blocking(ordinal: u32) -> Stream {
    let raw = create_blocking_stream(device(ordinal)).unwrap();
    // SAFETY: the stream is never destroyed.
    unsafe { Stream::from_raw_on(raw.as_ptr(), device(ordinal)) }.unwrap()
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: gpupool::Result<T>, code: i32) {
    let error = outcome.expect_err("it is refused");
    assert!(matches!(error.kind(), ErrorKind::Library(refused) if refused.code == code), "{error}");
}

#[test]
fn any_use_of_the_legacy_stream_spoils_the_captures_of_blocking_ones() {
    memory!();
    let runtime = runtime::get().unwrap();
    let _bound = BoundDevice::new(runtime, device(0)).unwrap();
    let event = runtime.event_create().unwrap();
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        for legacy in [Stream::legacy(device(0)).unwrap().raw(), legacy_by_its_number().raw()] {
            // SAFETY: the event and the stream are alive.
            let uses: [&dyn Fn() -> gpupool::Result<()>; 5] = unsafe {
                [
                    &|| runtime.stream_query(legacy).map(drop),
                    &|| runtime.stream_synchronize(legacy),
                    &|| runtime.stream_wait_event(legacy, event),
                    &|| runtime.event_record(event, legacy),
                    &|| submit(&Stream::legacy(device(0)).unwrap()).map(drop),
                ]
            };
            for (index, used) in uses.iter().enumerate() {
                let captured = blocking(0);
                begin_capture(&captured, mode).unwrap();
                let _relaxed = RelaxedCapture::new(runtime).unwrap();
                // SAFETY: the stream is alive.
                let (status, capture) =
                    unsafe { (runtime.stream_capture_status(legacy), runtime.stream_capture(legacy)) };
                assert_eq!(status.unwrap(), CaptureStatus::Implicit);
                assert_refused(capture, 906);
                assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Active, "the question harms nothing");
                assert_refused(used(), 906);
                assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Invalidated, "{index}, {mode:?}");
                assert_refused(end_capture(&captured), 901);
                used().unwrap();
            }
        }
    }
    // SAFETY: the event is alive, and not used again.
    unsafe { runtime.event_destroy(event) }.unwrap();
}

/// The legacy default stream by its other name, `CU_STREAM_LEGACY`.
fn legacy_by_its_number() -> Stream {
    // SAFETY: the legacy default stream always exists.
    unsafe { Stream::from_raw_on(std::ptr::without_provenance_mut(1), device(0)) }.unwrap()
}

#[test]
fn the_legacy_stream_can_be_used_beside_other_captures() {
    memory!();
    let legacy = Stream::legacy(device(0)).unwrap();
    for captured in [stream(0), blocking(1)] {
        begin_capture(&captured, CaptureMode::Relaxed).unwrap();
        assert_eq!(legacy.capture_status().unwrap(), CaptureStatus::None);
        submit(&legacy).unwrap();
        legacy.synchronize().unwrap();
        end_capture(&captured).unwrap();
    }
}

#[test]
fn the_legacy_stream_is_never_captured_and_each_threads_default_stream_on_its_own() {
    memory!();
    assert_refused(begin_capture(&Stream::legacy(device(0)).unwrap(), CaptureMode::Relaxed), 900);
    let per_thread = Stream::per_thread(device(0)).unwrap();
    begin_capture(&per_thread, CaptureMode::Relaxed).unwrap();
    let status = on_thread(|| {
        let stream_of_another_thread = Stream::per_thread(device(0)).unwrap();
        (
            stream_of_another_thread.capture_status().unwrap(),
            Stream::legacy(device(0)).unwrap().capture_status().unwrap(),
        )
    });
    assert_eq!(status, (CaptureStatus::None, CaptureStatus::Implicit));
    end_capture(&per_thread).unwrap();
}

#[test]
fn no_call_of_gpupools_uses_the_legacy_stream_beside_a_capture() {
    memory!();
    let (legacy, own, captured) = (Stream::legacy(device(0)).unwrap(), stream(0), blocking(0));
    let (event, recorded) = (Event::new(device(0)).unwrap(), Event::new(device(0)).unwrap());
    recorded.record(&own).unwrap();
    let buffer = gpupool::empty(4096, &own).unwrap();
    let pinned = gpupool::empty_pinned(4096, None).unwrap();
    let mut bytes = [0; 4096];
    begin_capture(&captured, CaptureMode::Global).unwrap();
    let outcomes = [
        ("query", legacy.query().map(drop)),
        ("synchronize", legacy.synchronize()),
        ("wait", legacy.wait(&recorded)),
        ("record", event.record(&legacy)),
        ("fill", buffer.fill(1, &legacy)),
        ("copy_from_pinned", buffer.copy_from_pinned(&pinned, &legacy)),
        ("copy_to", buffer.copy_to(&mut bytes, &legacy)),
        ("share", buffer.share(&legacy).map(drop)),
    ];
    for (name, outcome) in outcomes {
        let error = outcome.expect_err(name);
        let is_told = error.to_string().contains("a blocking stream of device 0 is being captured");
        assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)) && is_told, "{name}: {error}");
    }
    end_capture(&captured).expect("nothing spoils the capture");
    legacy.synchronize().unwrap();
    buffer.fill(1, &legacy).unwrap();
}

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// What binds a device to the thread.
enum Binds {
    Guard(BoundDevice),
    Scope(StreamScope),
}

impl Binds {
    fn new(is_scope: bool, ordinal: u32) -> Self {
        if is_scope {
            return Self::Scope(stream(ordinal).enter().unwrap());
        }
        Self::Guard(BoundDevice::new(runtime::get().unwrap(), device(ordinal)).unwrap())
    }

    fn end(self) {
        match self {
            Self::Guard(guard) => drop(guard),
            Self::Scope(scope) => drop(scope),
        }
    }
}

#[test]
fn guards_and_scopes_that_end_in_any_order_leave_the_device_of_the_innermost_of_the_rest() {
    memory!(3, 1 << 30);
    let current = || runtime::get().unwrap().current_device().unwrap();
    for found in [0, 1] {
        let _found = BoundDevice::new(runtime::get().unwrap(), device(found)).unwrap();
        for order in ORDERS {
            for ordinals in [[1, 2, 0], [0, 1, 2], [1, 1, 2], [2, 0, 0], [0, 0, 0], [1, 0, 1]] {
                for are_scopes in [[false; 3], [true, false, false], [false, true, false], [false, true, true]] {
                    let made = ordinals.iter().zip(are_scopes);
                    let mut made: Vec<_> = made.map(|(&on, is_scope)| Some((on, Binds::new(is_scope, on)))).collect();
                    for place in order {
                        made[place].take().unwrap().1.end();
                        let innermost = made.iter().flatten().next_back().map_or(found, |(ordinal, _)| *ordinal);
                        let case = format!("{order:?} on {ordinals:?}, scopes {are_scopes:?}, after {place}");
                        assert_eq!(current(), device(innermost), "{case}");
                    }
                }
            }
        }
    }
    assert_eq!(current(), device(0));
}

#[test]
fn a_thread_captures_as_before_once_all_guards_have_ended_in_any_order() {
    memory!();
    let runtime = runtime::get().unwrap();
    let mode = || {
        let mode = runtime.exchange_capture_mode(CaptureMode::Relaxed).unwrap();
        runtime.exchange_capture_mode(mode).unwrap();
        mode
    };
    for found in [CaptureMode::Global, CaptureMode::ThreadLocal] {
        let before = runtime.exchange_capture_mode(found).unwrap();
        for order in ORDERS {
            let mut guards = [(); 3].map(|()| Some(RelaxedCapture::new(runtime).unwrap()));
            for place in order {
                drop(guards[place].take());
                let expected = if guards.iter().any(Option::is_some) { CaptureMode::Relaxed } else { found };
                assert_eq!(mode(), expected, "{order:?} after {place}");
            }
        }
        // What code in between sets is put back by the guards inside of it.
        let outer = RelaxedCapture::new(runtime).unwrap();
        assert_eq!(runtime.exchange_capture_mode(CaptureMode::ThreadLocal).unwrap(), CaptureMode::Relaxed);
        drop(RelaxedCapture::new(runtime).unwrap());
        assert_eq!(mode(), CaptureMode::ThreadLocal);
        drop(outer);
        assert_eq!(mode(), found);
        runtime.exchange_capture_mode(before).unwrap();
    }
}
