//! Graphs that the driver does not report keep their pinned memory, which never comes back.

use gpupool::runtime::host::{Call, Fault, begin_capture, complete_all, end_capture, inject};
use gpupool::{CaptureMode, StatusKind, empty_pinned, pinned_stats};

#[test]
fn a_graph_that_the_driver_does_not_report_keeps_its_blocks() {
    host!();
    let refused: [&[Call]; 3] =
        [&[Call::StreamCapture], &[Call::GraphRetain], &[Call::StreamCaptureStatus, Call::StreamCapture]];
    for (count, calls) in (1..).zip(refused) {
        let stream = crate::common::stream(0);
        begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        calls.iter().for_each(|&call| inject(Fault { call, kind: StatusKind::Other, after: 0, times: 1 }));
        let buffer = empty_pinned(1 << 20, Some(&stream)).unwrap();
        drop(end_capture(&stream).unwrap());
        drop(buffer);
        complete_all().unwrap();
        // Looks at what waits.
        drop(empty_pinned(5 << 20, None).unwrap());
        gpupool::empty_cache().unwrap();
        assert_eq!(pinned_stats(None).unwrap().total.waiting_blocks, count, "{calls:?}");
    }
}
