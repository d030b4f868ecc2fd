//! Copies from and to ordinary memory of the host: it may go as soon as the call returns, whatever the call returns.
//!
//! The memory is unmapped then, with work in front of the copy that is done only later: what still touches it ends the
//! process.

use std::ptr;

use crate::common::{on_thread, stream};
use gpupool::runtime::host::{
    Call, Fault, before_call, begin_capture, clear_faults, complete_all, end_capture, inject, submit,
};
use gpupool::{
    CaptureMode, DeviceBuffer, Error, PinnedBuffer, Result, StatusKind, Stream, empty, empty_pinned, pinned_stats,
};

const SIZES: [usize; 3] = [100, 64 << 10, (9 << 20) + 100];

/// Bytes of the host that are unmapped when this is dropped.
struct Lent(&'static mut [u8]);

impl Lent {
    fn new(bytes: usize, content: u8) -> Self {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the system chooses the place.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: so many bytes were just mapped, and are this value's alone until it is dropped.
        let mapped = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), bytes) };
        mapped.fill(content);
        Self(mapped)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: this mapping is this value's, whose bytes nothing else has.
        assert_eq!(unsafe { libc::munmap(self.0.as_mut_ptr().cast(), self.0.len()) }, 0);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    From,
    To,
}

const WAYS: [Way; 2] = [Way::From, Way::To];

/// Copies behind work that is not done, with memory that is gone when this returns. What a copy that succeeded has brought
/// is right.
fn copy_behind_work(buffer: &DeviceBuffer, way: Way, stream: &Stream) -> Result<()> {
    let bytes = buffer.nbytes() as usize;
    if way == Way::To {
        buffer.fill(7, stream)?;
    }
    submit(stream)?;
    let lent = Lent::new(bytes, 5);
    match way {
        Way::From => buffer.copy_from(lent.0, stream)?,
        Way::To => {
            buffer.copy_to(lent.0, stream)?;
            assert!(consists_of(lent.0, 7));
        }
    }
    Ok(())
}

fn consists_of(bytes: &[u8], byte: u8) -> bool {
    // Of slices, which is quick without optimisation too.
    bytes == vec![byte; bytes.len()]
}

/// Returns whether the device has this byte in all of the buffer, once its work is done.
fn is_filled(buffer: &DeviceBuffer, byte: u8) -> bool {
    let start = ptr::with_exposed_provenance::<u8>(buffer.ptr() as usize);
    // SAFETY: the simulated device's memory is read as the host's is, and no work is under way.
    consists_of(unsafe { std::slice::from_raw_parts(start, buffer.nbytes() as usize) }, byte)
}

/// All work is done, and no pinned memory is held.
#[track_caller]
fn assert_nothing_kept() {
    complete_all().unwrap();
    gpupool::empty_cache().unwrap();
    assert_eq!(pinned_stats(None).unwrap().total.live_bytes, 0);
}

fn injected(error: &Error) -> bool {
    error.to_string().contains("HOST_ERROR_INJECTED")
}

#[test]
fn memory_may_go_whichever_call_the_driver_refuses() {
    memory!();
    let stream = stream(0);
    let mut refused = Vec::new();
    for (bytes, way) in SIZES.into_iter().flat_map(|bytes| WAYS.map(|way| (bytes, way))) {
        let buffer = empty(bytes as u64, &stream).unwrap();
        for call in Call::ALL {
            // One later call after the other, until none is left that could fail.
            for after in 0.. {
                // As in a process that has copied nothing yet.
                gpupool::empty_cache().unwrap();
                inject(Fault { call, kind: StatusKind::Other, after, times: 1 });
                let outcome = copy_behind_work(&buffer, way, &stream);
                let is_over = clear_faults() > 0;
                complete_all().unwrap();
                match outcome {
                    Err(error) => {
                        assert!(injected(&error) && !is_over, "{call:?}: {error}");
                        refused.push(call);
                    }
                    Ok(()) if way == Way::From => assert!(is_filled(&buffer, 5)),
                    Ok(()) => {}
                }
                if is_over {
                    break;
                }
            }
        }
    }
    for call in [Call::CopyToDevice, Call::CopyToHost, Call::StreamSynchronize, Call::Bind, Call::ExchangeCaptureMode] {
        assert!(refused.contains(&call), "{call:?} was never refused");
    }
    assert_nothing_kept();
}

#[test]
fn memory_may_go_where_the_driver_refuses_every_wait() {
    memory!();
    let stream = stream(0);
    for (bytes, way) in SIZES.into_iter().flat_map(|bytes| WAYS.map(|way| (bytes, way))) {
        let buffer = empty(bytes as u64, &stream).unwrap();
        for call in [
            Call::StreamSynchronize,
            Call::StreamQuery,
            Call::EventSynchronize,
            Call::EventQuery,
            Call::EventRecord,
            Call::EventRecordContext,
            Call::ContextSynchronize,
        ] {
            inject(Fault { call, kind: StatusKind::Other, after: 0, times: u32::MAX });
        }
        let error = copy_behind_work(&buffer, way, &stream).unwrap_err();
        assert!(injected(&error), "{error}");
        clear_faults();
        // What the copy uses is no one else's before it is done.
        let mut others: Vec<PinnedBuffer> = (0..4).map(|_| empty_pinned(bytes as u64, None).unwrap()).collect();
        for other in &mut others {
            // SAFETY: no work of a device uses the memory.
            unsafe { other.as_mut_slice() }.fill(9);
        }
        complete_all().unwrap();
        // SAFETY: as before.
        assert!(others.iter().all(|other| consists_of(unsafe { other.as_slice() }, 9)));
        drop(others);
        copy_behind_work(&buffer, way, &stream).unwrap();
        assert_nothing_kept();
    }
}

#[test]
fn memory_may_go_where_the_stream_begins_to_be_captured_on_the_way() {
    memory!();
    let refused = |outcome: Result<()>| outcome.unwrap_err().to_string();
    for (bytes, way) in SIZES.into_iter().flat_map(|bytes| WAYS.map(|way| (bytes, way))) {
        let copy = if way == Way::From { Call::CopyToDevice } else { Call::CopyToHost };
        for call in [copy, Call::StreamSynchronize, Call::ExchangeCaptureMode] {
            let stream = stream(0);
            let buffer = empty(bytes as u64, &stream).unwrap();
            let captured = stream.clone();
            before_call(call, 0, move || begin_capture(&captured, CaptureMode::Relaxed).unwrap());
            let error = refused(copy_behind_work(&buffer, way, &stream));
            assert!(error.contains("CAPTURE"), "{error}");
            // The graph, if it is whole, has nothing of the host's either.
            drop(end_capture(&stream));
            complete_all().unwrap();
            copy_behind_work(&buffer, way, &stream).unwrap();
        }
    }
    assert_nothing_kept();
}

#[test]
fn another_streams_capture_is_neither_spoilt_nor_in_the_way() {
    memory!();
    let stream = stream(0);
    for (bytes, way) in SIZES.into_iter().flat_map(|bytes| WAYS.map(|way| (bytes, way))) {
        let buffer = empty(bytes as u64, &stream).unwrap();
        for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
            let other = Stream::new(stream.device()).unwrap();
            let captured = other.clone();
            on_thread(move || begin_capture(&captured, mode).unwrap());
            copy_behind_work(&buffer, way, &stream).unwrap();
            end_capture(&other).unwrap();
            // One that begins just when the copy was submitted, on this thread.
            let captured = other.clone();
            before_call(Call::StreamSynchronize, 0, move || begin_capture(&captured, mode).unwrap());
            copy_behind_work(&buffer, way, &stream).unwrap();
            end_capture(&other).unwrap();
        }
    }
    assert_nothing_kept();
}
