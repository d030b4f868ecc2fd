//! Random programs with pinned memory against a naive model, with faults: no block overlaps another, no bytes of a block
//! change hands before its streams and graphs are done with it, every count is right, and at the end everything comes back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::thread;

use gpupool::runtime::host::{
    Call, Fault, Graph, begin_capture, clear_faults, complete, complete_all, end_capture, inject, submit,
};
use gpupool::{
    CaptureMode, ErrorKind, Event, NumaNode, PinnedBuffer, StatusKind, Stream, device, empty_cache,
    empty_pinned_on_node, pinned_stats, runtime, set_pinned_limit, warm_pinned,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::common::turns;

const MEMORY: u64 = 1 << 30;
const STREAMS: usize = 3;
const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Op {
    Allocate { bytes: u64, node: u32, stream: Option<usize>, elsewhere: bool },
    Record { which: usize, stream: usize },
    Free { which: usize, stream: Option<usize>, elsewhere: bool },
    Submit { stream: usize },
    Complete { stream: usize, part: u64 },
    Capture { stream: usize },
    EndCapture { stream: usize },
    DropGraph { which: usize },
    EmptyCache,
    Warm { bytes: u64 },
    Limit { bytes: Option<u64> },
    Fail(Fault),
}

const CALLS: [Call; 15] = [
    Call::Bind,
    Call::ExchangeCaptureMode,
    Call::StreamCaptureStatus,
    Call::StreamCapture,
    Call::GraphRetain,
    Call::EventCreate,
    Call::EventRecord,
    Call::EventRecordContext,
    Call::EventQuery,
    Call::ExtentCreate,
    Call::MemoryMap,
    Call::MemorySetAccess,
    Call::MemoryUnmap,
    Call::HostAllocate,
    Call::HostFree,
];

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![
        4 => 1..=8192_u64,
        3 => 1..=(3 * MIB),
        3 => 1..=(40 * MIB),
        1 => (256 * MIB)..=(300 * MIB),
    ];
    let kinds = prop_oneof![Just(StatusKind::Other), Just(StatusKind::OutOfMemory)];
    let fault = (proptest::sample::select(&CALLS[..]), kinds, 0..4_u32, 1..3_u32);
    let (stream, which) = (0..STREAMS, 0..1000_usize);
    let one = || proptest::option::of(0..STREAMS);
    prop_oneof![
        30 => (bytes, 0..2_u32, one(), any::<bool>())
            .prop_map(|(bytes, node, stream, elsewhere)| Op::Allocate { bytes, node, stream, elsewhere }),
        10 => (which.clone(), stream.clone()).prop_map(|(which, stream)| Op::Record { which, stream }),
        25 => (which.clone(), one(), any::<bool>())
            .prop_map(|(which, stream, elsewhere)| Op::Free { which, stream, elsewhere }),
        8 => stream.clone().prop_map(|stream| Op::Submit { stream }),
        8 => (stream.clone(), 1..=3_u64).prop_map(|(stream, part)| Op::Complete { stream, part }),
        4 => stream.clone().prop_map(|stream| Op::Capture { stream }),
        4 => stream.prop_map(|stream| Op::EndCapture { stream }),
        4 => which.prop_map(|which| Op::DropGraph { which }),
        3 => Just(Op::EmptyCache),
        1 => (1..=(64 * MIB)).prop_map(|bytes| Op::Warm { bytes }),
        1 => proptest::option::of(MIB..MEMORY).prop_map(|bytes| Op::Limit { bytes }),
        5 => fault.prop_map(|(call, kind, after, times)| Op::Fail(Fault { call, kind, after, times })),
    ]
}

/// What must be over before memory changes hands: recorded work of streams, and graphs.
#[derive(Debug)]
struct Uses {
    works: Vec<Event>,
    graphs: Vec<u64>,
}

/// Makes a call of the model's own, which a fault that is due may refuse.
fn surely<R>(call: impl Fn() -> gpupool::Result<R>) -> R {
    (0..100).find_map(|_| call().ok()).expect("a fault refuses a few calls")
}

#[derive(Debug)]
struct Block {
    buffer: PinnedBuffer,
    mark: u8,
    recorded: Vec<usize>,
    graphs: Vec<u64>,
}

/// A block that was freed, and is used by others.
#[derive(Debug)]
struct Freed {
    start: u64,
    end: u64,
    uses: Uses,
}

/// What is left of pinned memory once all that is free went back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Left {
    live_blocks: u64,
    /// As the counts of allocations and frees say.
    unfreed_blocks: u64,
    waiting_blocks: u64,
    cached_bytes: u64,
    reserved_bytes: u64,
    /// Of the driver, which counts what is mapped anywhere.
    used_bytes: u64,
}

impl Left {
    fn now() -> Self {
        empty_cache().unwrap();
        if pinned_stats(None).unwrap().total.reserved_bytes > 0 {
            // A request that finds no memory waits until the segments are released, which a thread of gpupool's own does.
            for call in [Call::ExtentCreate, Call::HostAllocate] {
                inject(Fault { call, kind: StatusKind::OutOfMemory, after: 0, times: u32::MAX });
            }
            drop(empty_pinned_on_node(1, 0, None));
            clear_faults();
        }
        let stats = pinned_stats(None).unwrap().total;
        let used = |node| {
            let info = runtime::get().unwrap().host_memory_info(NumaNode::from_number(node)).unwrap();
            info.total - info.free
        };
        Self {
            live_blocks: stats.live_blocks,
            unfreed_blocks: stats.allocations - stats.frees,
            waiting_blocks: stats.waiting_blocks,
            cached_bytes: stats.cached_bytes,
            reserved_bytes: stats.reserved_bytes,
            used_bytes: (0..2).map(used).sum(),
        }
    }
}

#[derive(Default)]
struct Model {
    /// What a program that failed has lost: none of it is this one's.
    lost: Left,
    streams: Vec<Stream>,
    submitted: Vec<u64>,
    completed: Vec<u64>,
    /// The graph that each stream is captured for.
    captured: Vec<Option<u64>>,
    graphs: BTreeMap<u64, Graph>,
    next_graph: u64,
    blocks: Vec<Block>,
    freed: Vec<Freed>,
    next_mark: u8,
}

/// Where a block of this size is marked.
fn places(bytes: u64) -> impl Iterator<Item = usize> {
    (0..bytes).step_by(1 << 16).chain([bytes - 1]).map(|place| place as usize)
}

impl Model {
    fn new() -> Self {
        let streams = (0..STREAMS).map(|index| Stream::new(device(index as i64 % 2).unwrap()).unwrap()).collect();
        let zeros = || vec![0; STREAMS];
        let mut model = Self::default();
        (model.lost, model.streams, model.captured) = (Left::now(), streams, vec![None; STREAMS]);
        (model.submitted, model.completed) = (zeros(), zeros());
        model
    }

    fn is_over(&self, uses: &Uses) -> bool {
        let is_captured = |graph: &u64| self.captured.contains(&Some(*graph));
        uses.works.iter().all(|work| surely(|| work.query()))
            && uses.graphs.iter().all(|graph| !self.graphs.contains_key(graph) && !is_captured(graph))
    }

    fn add(&mut self, mut buffer: PinnedBuffer, stream: Option<usize>) {
        let (start, end) = (buffer.ptr(), buffer.ptr() + buffer.nbytes());
        for Block { buffer: other, .. } in &self.blocks {
            assert!(other.ptr() + other.nbytes() <= start || end <= other.ptr(), "two live blocks overlap");
        }
        for freed in &self.freed {
            let overlaps = freed.start < end && start < freed.end;
            assert!(!overlaps || self.is_over(&freed.uses), "memory in use was handed out: {freed:?}");
        }
        self.next_mark = self.next_mark.wrapping_add(1);
        let mark = self.next_mark;
        // SAFETY: simulated devices touch no memory.
        let bytes = unsafe { buffer.as_mut_slice() };
        places(bytes.len() as u64).for_each(|place| bytes[place] = mark);
        let graphs = stream.and_then(|stream| self.captured[stream]).into_iter().collect();
        self.blocks.push(Block { buffer, mark, recorded: stream.into_iter().collect(), graphs });
    }

    fn free(&mut self, which: usize, stream: Option<usize>, elsewhere: bool) {
        if self.blocks.is_empty() {
            return;
        }
        let Block { buffer, mark, mut recorded, mut graphs } = self.blocks.swap_remove(which % self.blocks.len());
        {
            // SAFETY: simulated devices touch no memory.
            let bytes = unsafe { buffer.as_slice() };
            assert!(places(bytes.len() as u64).all(|place| bytes[place] == mark), "a block's bytes changed");
        }
        recorded.extend(stream);
        graphs.extend(recorded.iter().filter_map(|&stream| self.captured[stream]));
        let running = recorded.iter().filter(|&&stream| self.captured[stream].is_none());
        let works = running.map(|&stream| {
            let work = surely(|| Event::new(self.streams[stream].device()));
            surely(|| work.record(&self.streams[stream]));
            work
        });
        let works = works.collect();
        let (start, end) = (buffer.ptr(), buffer.ptr() + buffer.nbytes());
        self.freed.push(Freed { start, end, uses: Uses { works, graphs } });
        let on = stream.map(|stream| self.streams[stream].clone());
        let free = move || buffer.free(on.as_ref());
        if elsewhere { thread::spawn(free).join().unwrap() } else { free() }.unwrap();
        let over: Vec<_> = self.freed.iter().map(|freed| self.is_over(&freed.uses)).collect();
        let mut over = over.into_iter();
        self.freed.retain(|_| !over.next().unwrap());
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Allocate { bytes, node, stream, elsewhere } => {
                let on = stream.map(|stream| self.streams[stream].clone());
                let allocate = move || empty_pinned_on_node(bytes, node, on.as_ref());
                let made = if elsewhere { thread::spawn(allocate).join().unwrap() } else { allocate() };
                match made {
                    Ok(buffer) => self.add(buffer, stream),
                    Err(error) => assert!(
                        matches!(error.kind(), ErrorKind::OutOfMemory(_) | ErrorKind::Library(_)),
                        "a request failed with {error}"
                    ),
                }
            }
            Op::Record { which, stream } => {
                let count = self.blocks.len().max(1);
                let graph = self.captured[stream];
                if let Some(block) = self.blocks.get_mut(which % count)
                    && block.buffer.record_stream(&self.streams[stream]).is_ok()
                {
                    block.recorded.push(stream);
                    block.graphs.extend(graph);
                }
            }
            Op::Free { which, stream, elsewhere } => self.free(which, stream, elsewhere),
            Op::Submit { stream } if self.captured[stream].is_none() => {
                self.submitted[stream] = submit(&self.streams[stream]).unwrap();
            }
            Op::Complete { stream, part } => {
                let left = self.submitted[stream] - self.completed[stream];
                let until = self.completed[stream] + left.div_ceil(part);
                complete(&self.streams[stream], until).unwrap();
                self.completed[stream] = until;
            }
            Op::Capture { stream } if self.captured[stream].is_none() => {
                begin_capture(&self.streams[stream], CaptureMode::Relaxed).unwrap();
                self.next_graph += 1;
                self.captured[stream] = Some(self.next_graph);
            }
            Op::EndCapture { stream } => {
                if let Some(graph) = self.captured[stream] {
                    // A fault may have spoilt it; then nothing of it will run.
                    if let Ok(made) = end_capture(&self.streams[stream]) {
                        self.graphs.insert(graph, made);
                    }
                    self.captured[stream] = None;
                }
            }
            Op::DropGraph { which } => {
                let graph = self.graphs.keys().nth(which % self.graphs.len().max(1)).copied();
                graph.and_then(|graph| self.graphs.remove(&graph));
            }
            Op::EmptyCache => drop(empty_cache()),
            Op::Warm { bytes } => drop(warm_pinned(bytes, Some(0))),
            Op::Limit { bytes } => set_pinned_limit(bytes).unwrap(),
            Op::Fail(fault) => inject(fault),
            Op::Submit { .. } | Op::Capture { .. } => {}
        }
        let stats = pinned_stats(None).unwrap().total;
        assert!(stats.live_blocks >= self.blocks.len() as u64, "{stats:?}");
        let held: u64 = self.blocks.iter().map(|block| block.buffer.nbytes()).sum();
        assert!(stats.requested_bytes >= held && stats.reserved_bytes >= stats.live_bytes + stats.cached_bytes);
    }

    fn end(mut self) {
        clear_faults();
        set_pinned_limit(None).unwrap();
        while !self.blocks.is_empty() {
            self.free(0, None, false);
        }
        (0..STREAMS).for_each(|stream| self.run(Op::EndCapture { stream }));
        self.graphs.clear();
        complete_all().unwrap();
        assert_eq!(Left::now(), self.lost, "some pinned memory has not come back");
    }
}

/// Ends what a program that fails has begun: an open capture, say, would keep memory from the next, shorter one, which
/// would fail by that.
impl Drop for Model {
    fn drop(&mut self) {
        clear_faults();
        let _ = set_pinned_limit(None);
        for stream in &self.streams {
            let _ = end_capture(stream);
        }
        let _ = complete_all();
    }
}

/// Runs programs with these faults, or without.
fn run(with_faults: bool) {
    let mut runner = TestRunner::new(Config { max_shrink_iters: 200, failure_persistence: None, ..Config::default() });
    let programs = proptest::collection::vec(op(), 1..120);
    for _ in turns(10) {
        let program = programs.new_tree(&mut runner).expect("nothing is rejected");
        let outcome = runner.run_one(program, |ops| {
            let mut model = Model::new();
            // A refusal to report a capture leaves a graph that is unknown.
            let is_known = |op: &Op| !matches!(op, Op::Fail(fault) if matches!(fault.call, Call::StreamCapture | Call::GraphRetain));
            for op in ops.into_iter().filter(|op| with_faults || !matches!(op, Op::Fail(_))).filter(is_known) {
                model.run(op);
            }
            model.end();
            Ok(())
        });
        outcome.unwrap();
    }
}

#[test]
fn random_programs() {
    host!();
    run(false);
}

#[test]
fn random_programs_with_faults() {
    host!();
    run(true);
}
