//! A new stream may get the address of one that was destroyed, whose work goes on: it is another stream, and gets no memory
//! that the former's work uses.

use crate::common::memory::{MIB, empty_in, foreign, use_buffer};
use crate::common::{device, stream};
use gpupool::runtime::host::{begin_capture, complete_all, end_capture, replace_stream};
use gpupool::{CaptureMode, DeviceBuffer, MemPool, Stream, empty, empty_cache, memory_stats};

/// The stream that stands at the address of this one, which is destroyed with its work pending.
fn replaced(stream: &Stream) -> Stream {
    replace_stream(stream.raw(), device(0)).unwrap();
    // SAFETY: the new stream is never destroyed.
    unsafe { Stream::from_raw_on(stream.raw().as_ptr(), device(0)).unwrap() }
}

#[test]
fn the_next_stream_at_the_address_waits_for_what_was_freed_on_the_former() {
    memory!(2, 64 * MIB);
    let pool = MemPool::builder().build().unwrap();
    for bytes in [512, 3 * MIB, 40 * MIB] {
        for allocate in [&|stream: &Stream| empty(bytes, stream), &|stream: &Stream| empty_in(&pool, bytes, stream)]
            as [&dyn Fn(&Stream) -> gpupool::Result<DeviceBuffer>; 2]
        {
            let mut current = foreign();
            for _ in 0..3 {
                let buffer = allocate(&current).unwrap();
                use_buffer(&current, &buffer);
                drop(buffer);
                let next = replaced(&current);
                let buffer = allocate(&next).unwrap();
                use_buffer(&next, &buffer);
                drop(buffer);
                current = next;
            }
            complete_all().unwrap();
            empty_cache().unwrap();
        }
    }
}

#[test]
fn a_free_that_names_the_next_stream_says_nothing_of_the_former() {
    memory!(2, 64 * MIB);
    let (former, own) = (foreign(), stream(0));
    let (large, small) = (empty(40 * MIB, &former).unwrap(), empty(4 * MIB, &former).unwrap());
    use_buffer(&former, &large);
    drop(large);
    let next = replaced(&former);
    // Passes over the free pages of a stream that may be gone: from now on frees mark what is done there.
    let _first = empty(16 * MIB, &own).unwrap();
    small.free_on(&next).unwrap();
    let second = empty(40 * MIB, &own).unwrap();
    use_buffer(&own, &second);
}

#[test]
fn streams_that_come_and_go_at_one_address_leave_nothing_behind() {
    memory!(2, 64 * MIB);
    let mut current = foreign();
    for _ in 0..100 {
        let small = empty(512, &current).unwrap();
        let large = empty(5 * MIB, &current).unwrap();
        use_buffer(&current, &small);
        use_buffer(&current, &large);
        drop((small, large));
        current = replaced(&current);
        complete_all().unwrap();
        let reserved = memory_stats(device(0)).unwrap().total.reserved_bytes;
        assert!(reserved <= 24 * MIB, "{reserved} bytes are reserved");
    }
}

#[test]
fn a_capture_that_gpupool_does_not_know_of_is_not_spoiled_by_requests_on_its_stream() {
    memory!(2, 64 * MIB);
    let captured = foreign();
    for is_first in [true, false] {
        begin_capture(&captured, CaptureMode::Global).unwrap();
        let buffers: Vec<_> = [512, 3 * MIB, 512].map(|bytes| empty(bytes, &captured).unwrap()).into();
        drop(buffers);
        assert!(end_capture(&captured).is_ok(), "the first requests: {is_first}");
    }
}
