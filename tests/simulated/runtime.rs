//! The simulated devices behave as CUDA's do where the pools depend on it.

use crate::common::{device, on_thread, stream};
use gpupool::library::Library;
use gpupool::library::host::HostLibrary;
use gpupool::runtime::host::{Call, Fault, begin_capture, complete, end_capture, inject, submit};
use gpupool::{CaptureMode, CaptureStatus, Device, ErrorKind, Event, StatusKind, Stream, device_info};

#[test]
fn work_is_done_when_told_to() {
    host!();
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
    host!();
    let (producer, consumer, event) = (stream(0), stream(0), Event::new(device(0)).unwrap());
    assert!(event.query().unwrap());
    let before = submit(&producer).unwrap();
    event.record(&producer).unwrap();
    let after = submit(&producer).unwrap();
    consumer.wait(&event).unwrap();
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
    host!();
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
    host!();
    let (global, local) = (stream(0), stream(0));
    begin_capture(&global, CaptureMode::Global).unwrap();
    begin_capture(&local, CaptureMode::ThreadLocal).unwrap();
    // Creating a handle allocates. Without the pool's guard, another thread spoils the global capture only.
    on_thread(|| assert!(HostLibrary.create(device(0)).is_err()));
    assert_eq!(global.capture_status().unwrap(), CaptureStatus::Invalidated);
    assert_eq!(local.capture_status().unwrap(), CaptureStatus::Active);
    assert!(HostLibrary.create(device(0)).is_err());
    let error = end_capture(&local).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Library(refused) if refused.code == 901), "{error}");
    assert!(end_capture(&global).is_err());
    assert_eq!(local.capture_status().unwrap(), CaptureStatus::None);
}

#[test]
fn a_stream_of_another_device_is_no_stream_of_an_event() {
    host!();
    let error = Event::new(device(0)).unwrap().record(&stream(1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
}

#[test]
fn a_stream_used_after_its_end_is_recognised() {
    host!();
    let raw = stream(0).raw().as_ptr();
    // SAFETY: the simulated streams tolerate an address that is no longer theirs, which is what is tested.
    let error = unsafe { Stream::from_raw(raw) }.unwrap_err();
    assert!(error.to_string().contains("HOST_ERROR_INVALID_HANDLE (400)"), "{error}");
}

#[test]
fn a_foreign_stream_finds_its_device() {
    host!();
    let owned = stream(1);
    // SAFETY: `owned` outlives the view.
    let view = unsafe { Stream::from_raw(owned.raw().as_ptr()) }.unwrap();
    assert_eq!((view.raw(), view.device()), (owned.raw(), device(1)));
}

#[test]
fn a_device_tells_what_it_is_and_what_is_free() {
    host!();
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
    host!();
    inject(Fault { call: Call::StreamCreate, kind: StatusKind::Other, after: 1, times: 2 });
    let results: Vec<_> = (0..4).map(|_| Stream::new(device(0)).is_ok()).collect();
    assert_eq!(results, [true, false, false, true]);
}
