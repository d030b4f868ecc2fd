//! Pinned memory on simulated devices: what the host may write at once, and what waits for streams and graphs.

use crate::common::memory::{MIB, Random, deallocate};
use crate::common::wait_until;
use gpupool::runtime::host::{self, Call, Fault};
use gpupool::{
    CaptureMode, Device, ErrorKind, PinnedBuffer, StatusKind, Stream, empty_pinned, pinned_limit, pinned_stats,
    set_pinned_limit,
};

const GIB: u64 = 1 << 30;

fn device(ordinal: i64) -> Device {
    gpupool::device(ordinal).unwrap()
}

fn fill(buffer: &mut PinnedBuffer, byte: u8) {
    // SAFETY: no device uses the memory.
    unsafe { buffer.as_mut_slice() }.fill(byte);
}

#[test]
fn the_host_writes_and_reads_what_every_device_has_access_to() {
    memory!(2, 8 * GIB);
    let mut buffer = empty_pinned(3 * MIB, None).unwrap();
    fill(&mut buffer, 7);
    // SAFETY: no device uses the memory.
    assert!(unsafe { buffer.as_slice() }.iter().all(|&byte| byte == 7));
    assert!(host::accessible(buffer.ptr(), device(0)) && host::accessible(buffer.ptr(), device(1)));
    assert_eq!((buffer.nbytes(), buffer.numa(), buffer.ptr() % 512), (3 * MIB, 0, 0));
}

#[test]
fn memory_is_on_the_node_of_the_device_unless_another_is_named() {
    memory!(2, 8 * GIB);
    let stream = Stream::new(device(1)).unwrap();
    assert_eq!(empty_pinned(4096, Some(&stream)).unwrap().numa(), 1);
    assert_eq!(empty_pinned(4096, None).unwrap().numa(), 0);
    assert_eq!(gpupool::empty_pinned_on_node(4096, 1, None).unwrap().numa(), 1);
    let refused = gpupool::empty_pinned_on_node(4096, 2, None).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::InvalidValue(_)) && refused.to_string().contains("no NUMA node 2"));
}

#[test]
fn other_nodes_help_one_that_has_no_more() {
    memory!(2, 8 * GIB);
    host::inject(Fault { call: Call::ExtentCreate, kind: StatusKind::OutOfMemory, after: 0, times: u32::MAX });
    let buffers = [4096, 3 * MIB, 40 * MIB].map(|bytes| empty_pinned(bytes, None));
    host::clear_faults();
    for buffer in buffers {
        let mut buffer = buffer.unwrap();
        fill(&mut buffer, 5);
        assert_eq!(buffer.numa(), 0);
    }
}

#[test]
fn with_no_stream_recorded_it_is_used_again_at_once() {
    memory!(2, 8 * GIB);
    let first = empty_pinned(5 * MIB, None).unwrap();
    let address = first.ptr();
    drop(first);
    assert_eq!(empty_pinned(5 * MIB, None).unwrap().ptr(), address);
}

#[test]
fn it_waits_for_the_work_of_every_stream_that_was_named() {
    memory!(2, 8 * GIB);
    let streams = [0, 1, 0].map(|ordinal| Stream::new(device(ordinal)).unwrap());
    let works = streams.each_ref().map(|stream| host::submit(stream).unwrap());
    let buffer = empty_pinned(32 * MIB, Some(&streams[0])).unwrap();
    buffer.record_stream(&streams[1]).unwrap();
    let address = buffer.ptr();
    buffer.free(Some(&streams[2])).unwrap();
    let mut others = Vec::new();
    for (stream, work) in streams.iter().zip(works) {
        let other = empty_pinned(32 * MIB, None).unwrap();
        assert_ne!(other.ptr(), address, "before the work of {stream:?} is done");
        others.push(other);
        host::complete(stream, work).unwrap();
    }
    assert_eq!(empty_pinned(32 * MIB, None).unwrap().ptr(), address);
}

#[test]
fn a_captured_block_is_the_graphs_until_that_is_gone() {
    memory!(2, 8 * GIB);
    let stream = Stream::new(device(0)).unwrap();
    host::begin_capture(&stream, CaptureMode::Global).unwrap();
    let buffer = empty_pinned(32 * MIB, Some(&stream)).unwrap();
    let address = buffer.ptr();
    drop(buffer);
    let mut others = Vec::new();
    let mut again = || {
        others.push(empty_pinned(32 * MIB, None).unwrap());
        others.last().unwrap().ptr() == address
    };
    assert!(!again(), "while the stream is captured");
    let graph = host::end_capture(&stream).unwrap();
    assert!(!again(), "while the graph may run");
    drop(graph);
    assert!(again());
}

fn refuse_capture_status() {
    host::inject(Fault { call: Call::StreamCaptureStatus, kind: StatusKind::Other, after: 0, times: u32::MAX });
}

/// Once the capture has ended nothing tells which graph it made, so a refusal must not pass for "not captured".
#[test]
fn a_captured_block_is_the_graphs_though_the_driver_refuses_to_say_whether_the_stream_is_captured() {
    memory!(2, 8 * GIB);
    let mut others = Vec::new();
    for is_recorded_before in [false, true] {
        let stream = Stream::new(device(0)).unwrap();
        let buffer = empty_pinned(32 * MIB, is_recorded_before.then_some(&stream)).unwrap();
        let address = buffer.ptr();
        host::begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        refuse_capture_status();
        let kept = if is_recorded_before {
            drop(buffer);
            None
        } else {
            buffer.record_stream(&stream).unwrap();
            Some(buffer)
        };
        host::clear_faults();
        let graph = host::end_capture(&stream).unwrap();
        drop(kept);
        let mut again = || {
            others.push(empty_pinned(32 * MIB, None).unwrap());
            others.last().unwrap().ptr() == address
        };
        assert!(!again(), "while the graph may run; recorded before: {is_recorded_before}");
        drop(graph);
        assert!(again());
    }
}

#[test]
fn a_block_of_no_capture_comes_back_though_the_driver_refuses_to_say_whether_the_stream_is_captured() {
    memory!(2, 8 * GIB);
    let stream = Stream::new(device(0)).unwrap();
    refuse_capture_status();
    let buffer = empty_pinned(32 * MIB, Some(&stream)).unwrap();
    let address = buffer.ptr();
    drop(buffer);
    host::clear_faults();
    assert_eq!(empty_pinned(32 * MIB, None).unwrap().ptr(), address);
}

#[test]
fn large_needs_are_segments_that_go_when_asked() {
    memory!(2, 8 * GIB);
    let calls = host::driver_calls();
    let buffer = empty_pinned(GIB, None).unwrap();
    assert_eq!(host::driver_calls() - calls, 1, "one registration");
    drop(buffer);
    assert_eq!(pinned_stats(None).unwrap().total.cached_bytes, GIB);
    gpupool::empty_cache().unwrap();
    wait_until("the segment has gone", || pinned_stats(None).unwrap().total.reserved_bytes == 0);
}

#[test]
fn buffers_of_random_sizes_leave_little_unused() {
    memory!(1, 8 * GIB);
    let (mut random, mut live, mut peak) = (Random(1), Vec::new(), 0);
    for _ in 0..1500 {
        let bytes = random.below((32 * MIB) as usize) as u64 + 512;
        let mut asked = live.iter().map(PinnedBuffer::nbytes).sum::<u64>();
        while asked + bytes > GIB {
            asked -= live.swap_remove(random.below(live.len())).nbytes();
        }
        live.push(empty_pinned(bytes, None).unwrap());
        peak = peak.max(asked + bytes);
    }
    let held = pinned_stats(None).unwrap().total.peak_reserved_bytes as f64 / peak as f64;
    assert!(held < 1.08, "{held} of what was asked for");
}

#[test]
fn warmed_memory_serves_every_thread() {
    memory!(2, 8 * GIB);
    gpupool::warm_pinned_in_background(GIB, None).unwrap();
    wait_until("the memory is made", || pinned_stats(None).unwrap().total.cached_bytes == GIB);
    let calls = host::driver_calls();
    let own = empty_pinned(300 * MIB, None).unwrap();
    let other = std::thread::spawn(|| empty_pinned(300 * MIB, None).unwrap()).join().unwrap();
    assert_eq!((host::driver_calls(), pinned_stats(None).unwrap().total.reserved_bytes), (calls, GIB));
    drop((own, other));
    gpupool::warm_pinned(GIB, None).unwrap();
    assert_eq!(pinned_stats(None).unwrap().total.reserved_bytes, GIB);
}

#[test]
fn a_limit_is_of_all_nodes_and_what_is_free_gives_way() {
    memory!(2, 8 * GIB);
    set_pinned_limit(Some(GIB)).unwrap();
    assert_eq!(pinned_limit().unwrap(), Some(GIB));
    let held = empty_pinned(700 * MIB, None).unwrap();
    let refused = gpupool::empty_pinned_on_node(500 * MIB, 1, None).unwrap_err().to_string();
    assert!(refused.contains("out of pinned memory on NUMA node 1 of the host"), "{refused}");
    assert!(refused.contains("set_pinned_limit"), "{refused}");
    drop(held);
    assert_eq!(gpupool::empty_pinned_on_node(500 * MIB, 1, None).unwrap().numa(), 1);
    assert_eq!(empty_pinned(GIB, None).unwrap().nbytes(), GIB);
}

#[test]
fn it_is_freed_and_recorded_by_its_address_alone() {
    memory!(2, 8 * GIB);
    let stream = Stream::new(device(0)).unwrap();
    let address = empty_pinned(32 * MIB, None).unwrap().into_ptr();
    let work = host::submit(&stream).unwrap();
    gpupool::memory::record_stream(address, &stream).unwrap();
    deallocate(address, None).unwrap();
    assert!(deallocate(address, None).unwrap_err().to_string().contains("freed before"));
    assert_ne!(empty_pinned(32 * MIB, None).unwrap().ptr(), address);
    host::complete(&stream, work).unwrap();
}

/// Graphs that the driver does not report keep their pinned memory, which never comes back.
#[test]
fn a_graph_that_the_driver_does_not_report_keeps_its_blocks() {
    host!();
    let refused: [&[Call]; 3] =
        [&[Call::StreamCapture], &[Call::GraphRetain], &[Call::StreamCaptureStatus, Call::StreamCapture]];
    for (count, calls) in (1..).zip(refused) {
        let stream = Stream::new(device(0)).unwrap();
        host::begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        calls.iter().for_each(|&call| host::inject(Fault { call, kind: StatusKind::Other, after: 0, times: 1 }));
        let buffer = empty_pinned(1 << 20, Some(&stream)).unwrap();
        drop(host::end_capture(&stream).unwrap());
        drop(buffer);
        host::complete_all().unwrap();
        // Looks at what waits.
        drop(empty_pinned(5 << 20, None).unwrap());
        gpupool::empty_cache().unwrap();
        assert_eq!(pinned_stats(None).unwrap().total.waiting_blocks, count, "{calls:?}");
    }
}
