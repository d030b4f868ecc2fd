//! Copies between device memory and the host, and fills, on simulated devices.

use crate::common::stream;
use gpupool::runtime::host::{begin_capture, complete, end_capture, submit};
use gpupool::{CaptureMode, ErrorKind, MemPool, PinnedBuffer, empty, empty_pinned, synchronize};

/// Returns the bytes of pinned memory.
fn read(pinned: &PinnedBuffer) -> &[u8] {
    // SAFETY: the tests read once the stream is done.
    unsafe { pinned.as_slice() }
}

#[test]
fn slices_are_waited_for() {
    memory!();
    let stream = stream(0);
    let buffer = empty(5, &stream).unwrap();
    submit(&stream).unwrap();
    buffer.copy_from(b"bytes", &stream).unwrap();
    assert!(stream.query().unwrap());
    let mut found = [0; 5];
    submit(&stream).unwrap();
    buffer.copy_to(&mut found, &stream).unwrap();
    assert_eq!(&found, b"bytes");
}

#[test]
fn pinned_memory_is_copied_when_its_turn_comes() {
    memory!();
    let stream = stream(0);
    let buffer = empty(4, &stream).unwrap();
    let mut pinned = empty_pinned(4, None).unwrap();
    // SAFETY: no device uses the memory yet.
    unsafe { pinned.as_mut_slice() }.copy_from_slice(b"abcd");
    let target = empty_pinned(4, None).unwrap();
    let work = submit(&stream).unwrap();
    buffer.copy_from_pinned(&pinned, &stream).unwrap();
    buffer.copy_to_pinned(&target, &stream).unwrap();
    assert!(!stream.query().unwrap());
    drop(pinned);
    complete(&stream, work).unwrap();
    assert!(stream.query().unwrap());
    assert_eq!(read(&target), b"abcd");
}

#[test]
fn a_copy_waits_for_what_its_stream_waits_for() {
    memory!();
    let (stream, other) = (stream(0), stream(0));
    let buffer = empty(4, &stream).unwrap();
    let target = empty_pinned(4, None).unwrap();
    let work = submit(&other).unwrap();
    let event = gpupool::Event::new(stream.device()).unwrap();
    event.record(&other).unwrap();
    stream.wait(&event).unwrap();
    buffer.fill(9, &stream).unwrap();
    buffer.copy_to_pinned(&target, &stream).unwrap();
    assert!(!stream.query().unwrap());
    complete(&other, work).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(read(&target), [9; 4]);
}

#[test]
fn a_captured_stream_takes_pinned_memory_alone_and_copies_nothing_yet() {
    memory!();
    let stream = stream(0);
    let buffer = empty(4, &stream).unwrap();
    let pinned = empty_pinned(4, None).unwrap();
    buffer.fill(1, &stream).unwrap();
    begin_capture(&stream, CaptureMode::Global).unwrap();
    let refused = buffer.copy_from(&[0; 4], &stream).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::InvalidValue(why) if why.contains("empty_pinned")), "{refused}");
    assert!(matches!(synchronize(stream.device()).unwrap_err().kind(), ErrorKind::InvalidValue(_)));
    buffer.copy_from_pinned(&pinned, &stream).unwrap();
    buffer.fill(2, &stream).unwrap();
    end_capture(&stream).unwrap();
    let mut found = [0; 4];
    buffer.copy_to(&mut found, &stream).unwrap();
    assert_eq!(found, [1; 4]);
}

#[test]
fn sizes_must_agree_and_the_device_must_have_access() {
    memory!();
    let (stream, far) = (stream(0), stream(1));
    let buffer = empty(4, &stream).unwrap();
    for refused in [
        buffer.copy_from(&[0; 5], &stream),
        buffer.copy_to(&mut [0; 3], &stream),
        buffer.copy_from_pinned(&empty_pinned(3, None).unwrap(), &stream),
        buffer.fill(0, &far),
    ] {
        assert!(matches!(refused.unwrap_err().kind(), ErrorKind::InvalidValue(_)));
    }
    let nothing = empty(0, &stream).unwrap();
    nothing.copy_from(&[], &stream).unwrap();
    nothing.fill(0, &stream).unwrap();
}

#[test]
fn a_device_is_waited_for() {
    memory!();
    let (stream, far) = (stream(0), stream(1));
    submit(&stream).unwrap();
    submit(&far).unwrap();
    synchronize(far.device()).unwrap();
    assert!(far.query().unwrap());
}

#[test]
fn a_pool_allocates_whatever_scope_the_thread_is_in() {
    memory!();
    let stream = stream(0);
    let (pool, around) = (MemPool::builder().build().unwrap(), MemPool::builder().build().unwrap());
    let _scope = around.enter().unwrap();
    assert_eq!(pool.empty(1000, &stream).unwrap().pool_id(), pool.id());
    assert_eq!(empty(1000, &stream).unwrap().pool_id(), around.id());
    assert!(pool.empty(1000, &crate::common::stream(1)).is_err());
    pool.close().unwrap();
    assert!(pool.is_closed());
    assert!(pool.empty(1000, &stream).is_err());
}

#[test]
fn a_copy_goes_by_whatever_pinned_memory_there_is() {
    memory!();
    let stream = stream(0);
    let bytes = (9 << 20) + 100;
    let buffer = empty(bytes, &stream).unwrap();
    for limit in [16 << 20, 8 << 20, 6 << 20, 4 << 20, 2 << 20] {
        gpupool::empty_cache().unwrap();
        gpupool::set_pinned_limit(Some(limit)).unwrap();
        let sent: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        buffer.copy_from(&sent, &stream).unwrap_or_else(|error| panic!("{limit}: {error}"));
        let mut found = vec![0; bytes as usize];
        buffer.copy_to(&mut found, &stream).unwrap_or_else(|error| panic!("{limit}: {error}"));
        assert!(found == sent, "{limit}");
        buffer.fill(0, &stream).unwrap();
    }
}
