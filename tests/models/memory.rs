//! Random programs against a naive model: whatever happens, no block overlaps another, no bytes change hands before the
//! GPU is done with them, every count is right, and at the end everything comes back.
//!
//! The simulated memory has real bytes. Every block is marked with its number, so that a new block shows which blocks its
//! memory was part of before, wherever their pages stood then.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gpupool::runtime::host::{
    Call, Fault, UsedBlock, begin_capture, clear_faults, complete, complete_all, destroy_stream, end_capture, inject,
    register as register_memory, submit, submit_using, unregister,
};
use gpupool::runtime::{self, BoundDevice, MemoryInfo, RelaxedCapture};
use gpupool::{
    Backup, CaptureMode, CaptureScope, CommitOptions, Device, DeviceBuffer, ErrorKind, Event, GraphMemory, MemPool,
    MemoryRange, PoolId, PoolScope, SegmentEventKind, StatusKind, Stream, empty, empty_cache, memory_snapshot,
    memory_stats, memory_summary, pinned_stats,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::common::memory::{deallocate, foreign, read, write};
use crate::common::turns;

const MEMORY: u64 = 96 << 20;
/// So many that a pool lends them parts of pages.
const STREAMS: usize = 24;
/// Of which most programs use the first ones alone.
const FEW: usize = 4;
/// Those that are not gpupool's, and may be gone at any time.
const FOREIGN: Range<usize> = 2..4;
const POOLS: usize = 2;
const RANGES: usize = 3;
/// Pages of a range.
const RANGE_PAGES: u32 = 6;
const RESERVE: u64 = 12 << 20;
/// Marks stand at the start and the end of a block, and at every multiple of this, so that each page has some.
const STRIDE: u64 = 512 << 10;
/// In a block of at most this size every old mark is looked for.
const SMALL: u64 = 64 << 10;
const MARK: u64 = 0x6770_7570 << 32;

const DEVICE: Device = Device::from_ordinal(0);

#[derive(Clone, Debug)]
enum Op {
    Allocate {
        bytes: u64,
        stream: usize,
    },
    Free {
        which: usize,
        by: By,
    },
    Use {
        which: usize,
        stream: usize,
    },
    Complete {
        stream: usize,
        part: u64,
    },
    Enter {
        pool: usize,
    },
    Leave {
        which: usize,
    },
    Capture {
        pool: usize,
        stream: usize,
    },
    EndCapture {
        fails: bool,
    },
    Reset {
        which: usize,
    },
    Trim {
        pool: usize,
    },
    EmptyCache,
    Replace {
        stream: usize,
    },
    DropPool {
        pool: usize,
    },
    /// A pool in a place, or all of the device.
    Sleep {
        pool: Option<usize>,
        backup: Backup,
    },
    Wake {
        pool: Option<usize>,
    },
    /// Pages of the range in a place, which is of a pool in a place where there is none yet.
    Commit {
        range: usize,
        pool: usize,
        pages: Vec<u32>,
        stream: usize,
        priority: Option<i32>,
    },
    Pin {
        which: usize,
        is_end: bool,
    },
    DropRange {
        range: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum By {
    Drop,
    Address,
    Stream(usize),
}

/// Calls that the allocator makes.
const CALLS: [Call; 28] = [
    Call::CurrentDevice,
    Call::StreamDestroy,
    Call::StreamDevice,
    Call::StreamId,
    Call::Bind,
    Call::ContextSynchronize,
    Call::CopyToDevice,
    Call::CopyToHost,
    Call::HostAllocate,
    Call::HostFree,
    Call::NearestHostNode,
    Call::StreamCreate,
    Call::StreamSynchronize,
    Call::MemoryInfo,
    Call::ExchangeCaptureMode,
    Call::StreamQuery,
    Call::StreamCaptureStatus,
    Call::EventCreate,
    Call::EventRecord,
    Call::EventRecordContext,
    Call::EventQuery,
    Call::EventSynchronize,
    Call::EventDestroy,
    Call::ExtentCreate,
    Call::ExtentRelease,
    Call::MemoryMap,
    Call::MemorySetAccess,
    Call::MemoryUnmap,
];

fn fault() -> impl Strategy<Value = Fault> {
    let kinds = prop_oneof![Just(StatusKind::Other), Just(StatusKind::OutOfMemory), Just(StatusKind::NotSupported)];
    let calls = proptest::sample::select(&CALLS[..]);
    let times = prop_oneof![3 => 1..4_u32, 1 => Just(u32::MAX)];
    (calls, kinds, 0..6_u32, times).prop_map(|(call, kind, after, times)| Fault { call, kind, after, times })
}

/// An operation on one of so many streams.
fn op(streams: usize) -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![
        4 => 1..=8192_u64,
        3 => 1..=(128_u64 << 10),
        3 => 1..=(3_u64 << 20),
        3 => 1..=(8_u64 << 20),
    ];
    let by = prop_oneof![Just(By::Drop), Just(By::Address), (0..streams).prop_map(By::Stream)];
    let (stream, pool, which) = (0..streams, 0..POOLS, 0..1000_usize);
    let backup = prop_oneof![3 => Just(Backup::Host), 1 => Just(Backup::None)];
    prop_oneof![
        30 => (bytes, stream.clone()).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        26 => (which.clone(), by).prop_map(|(which, by)| Op::Free { which, by }),
        12 => (which.clone(), stream.clone()).prop_map(|(which, stream)| Op::Use { which, stream }),
        8 => (stream.clone(), 1..=4_u64).prop_map(|(stream, part)| Op::Complete { stream, part }),
        4 => pool.clone().prop_map(|pool| Op::Enter { pool }),
        4 => which.clone().prop_map(|which| Op::Leave { which }),
        3 => (pool.clone(), stream).prop_map(|(pool, stream)| Op::Capture { pool, stream }),
        4 => any::<bool>().prop_map(|fails| Op::EndCapture { fails }),
        3 => which.prop_map(|which| Op::Reset { which }),
        2 => pool.clone().prop_map(|pool| Op::Trim { pool }),
        2 => Just(Op::EmptyCache),
        4 => FOREIGN.prop_map(|stream| Op::Replace { stream }),
        2 => pool.clone().prop_map(|pool| Op::DropPool { pool }),
        1 => (prop::option::weighted(0.8, pool.clone()), backup).prop_map(|(pool, backup)| Op::Sleep { pool, backup }),
        2 => prop::option::weighted(0.5, pool).prop_map(|pool| Op::Wake { pool }),
        12 => commit(streams),
        4 => (0..1000_usize, any::<bool>()).prop_map(|(which, is_end)| Op::Pin { which, is_end }),
        2 => (0..RANGES).prop_map(|range| Op::DropRange { range }),
    ]
}

fn commit(streams: usize) -> impl Strategy<Value = Op> {
    let pages = prop::collection::vec(0..RANGE_PAGES, 1..6);
    let priority = prop::option::weighted(0.4, 0..3_i32);
    (0..RANGES, 0..POOLS, pages, 0..streams, priority).prop_map(|(range, pool, pages, stream, priority)| Op::Commit {
        range,
        pool,
        pages,
        stream,
        priority,
    })
}

/// A range, its pool, and the pages that were taken of it since the last look.
#[derive(Debug)]
struct Ranged {
    range: MemoryRange,
    pool: PoolId,
    taken: Arc<Mutex<Vec<u32>>>,
    unique: u64,
}

/// What a block is to its holder.
#[derive(Debug)]
enum Held {
    Buffer(DeviceBuffer),
    /// A page of a range.
    Page(Page),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    /// The range's place and number.
    range: (usize, u64),
    page: u32,
    address: u64,
    priority: Option<i32>,
    pins: u32,
}

/// What must be over before a block's memory serves another stream: events, by the streams' names.
type Uses = Vec<(u64, Event)>;

#[derive(Debug)]
struct Block {
    /// None once it is freed.
    held: Option<Held>,
    /// Where it is or was.
    address: u64,
    bytes: u64,
    pool: PoolId,
    /// Whether another pool, which had no memory, asked for it.
    is_lent: bool,
    /// The place of the stream that it was allocated on, and the name of that.
    stream: (usize, u64),
    /// A number that no block of any program has.
    unique: u64,
    uses: Uses,
    /// The places of streams that were recorded of it.
    recorded: Vec<usize>,
    /// For memory of a capture: how often the pool's graphs had all been reset.
    captured: Option<u64>,
    /// Whether its content was given up.
    is_lost: bool,
}

static NUMBERS: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
enum Scope {
    Pool(#[allow(dead_code, reason = "held for its drop")] PoolScope, PoolId),
    /// The pools that the graph uses, its own first, and the captured stream.
    Capture(CaptureScope, Vec<PoolId>, usize),
}

impl Scope {
    fn pool(&self) -> PoolId {
        match self {
            Self::Pool(_, pool) => *pool,
            Self::Capture(_, pools, _) => pools[0],
        }
    }
}

#[derive(Debug)]
struct Model {
    streams: Vec<Stream>,
    /// A number for each stream that there was in a place.
    names: [u64; STREAMS],
    submitted: [u64; STREAMS],
    completed: [u64; STREAMS],
    pools: [Option<MemPool>; POOLS],
    ranges: [Option<Ranged>; RANGES],
    /// Bytes that the last operation took of ranges, by pool.
    taken: BTreeMap<PoolId, u64>,
    /// Whether calls fail. Then no pool has segments: one whose source does not take it back counts as returned all the
    /// same.
    has_faults: bool,
    /// Pools with `use_on_oom`.
    helpers: BTreeSet<PoolId>,
    /// By pool: how many hold it, captures whose graphs live, and how often those fell to none.
    uses: BTreeMap<PoolId, u32>,
    captures: BTreeMap<PoolId, (u32, u64)>,
    scopes: Vec<Scope>,
    graphs: Vec<(GraphMemory, Vec<PoolId>)>,
    /// By number.
    blocks: Vec<Block>,
    /// The pools that are asleep.
    asleep: BTreeSet<PoolId>,
    /// What callbacks registered of pools with `no_split`: bytes by address, each with its pool.
    registered: Registered,
    /// What earlier programs lost, so that a program that fails for it is distinguished from one that does not.
    lost: u64,
    /// As many of their pools are there still.
    lost_pools: u64,
}

type Registered = Arc<Mutex<BTreeMap<u64, (PoolId, u64)>>>;

/// Registers the segments of a pool as they come and go, for as long as it has any, with the simulated device too, which sees
/// that none goes before it is taken back.
fn register(pool: &MemPool, registered: &Registered) {
    let (id, registered) = (pool.id(), Arc::clone(registered));
    let registrations = Mutex::new(BTreeMap::new());
    let guard = pool.on_segment(move |event| {
        let mut registrations = registrations.lock().unwrap();
        if matches!(event.kind, SegmentEventKind::Added) {
            registrations.insert(event.address, register_memory(DEVICE, event.address, event.nbytes));
        } else {
            registrations.remove(&event.address).into_iter().for_each(unregister);
        }
        let (segment, mut registered) = ((id, event.nbytes), registered.lock().unwrap());
        let before = match event.kind {
            SegmentEventKind::Added => registered.insert(event.address, segment),
            _ => registered.remove(&event.address),
        };
        assert_eq!(before, (event.kind == SegmentEventKind::Removed).then_some(segment), "{event:?}");
    });
    guard.unwrap().keep();
}

fn info() -> MemoryInfo {
    let runtime = runtime::get().unwrap();
    let _bound = BoundDevice::new(runtime, DEVICE).unwrap();
    runtime.memory_info().unwrap()
}

fn places(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let inner = (address + 1).next_multiple_of(STRIDE);
    let last = (address + bytes.saturating_sub(8)) & !7;
    std::iter::once(address).chain((inner..(address + bytes.saturating_sub(7))).step_by(STRIDE as usize)).chain([last])
}

/// Every place in a block where an older one may have left a mark.
fn old_places(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let step = if bytes <= SMALL { 512 } else { STRIDE };
    let inner = (address + 1).next_multiple_of(step);
    std::iter::once(address).chain((inner..(address + bytes)).step_by(step as usize))
}

impl Model {
    fn new(has_faults: bool) -> Self {
        Self {
            streams: (0..STREAMS)
                .map(|place| if FOREIGN.contains(&place) { foreign() } else { Stream::new(DEVICE).unwrap() })
                .collect(),
            names: std::array::from_fn(|place| place as u64),
            submitted: [0; STREAMS],
            completed: [0; STREAMS],
            pools: [None, None],
            ranges: [None, None, None],
            taken: BTreeMap::new(),
            has_faults,
            helpers: BTreeSet::new(),
            uses: BTreeMap::new(),
            captures: BTreeMap::new(),
            scopes: Vec::new(),
            graphs: Vec::new(),
            blocks: Vec::new(),
            asleep: BTreeSet::new(),
            registered: Registered::default(),
            lost: memory_stats(DEVICE).unwrap().total.reserved_bytes,
            lost_pools: memory_stats(DEVICE).unwrap().pools.saturating_sub(1),
        }
    }

    fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.blocks.len()).filter(|&number| self.blocks[number].held.is_some())
    }

    fn pick(&self, which: usize) -> Option<usize> {
        let live: Vec<_> = self.live().collect();
        (!live.is_empty()).then(|| live[which % live.len()])
    }

    fn is_captured(&self, stream: usize) -> bool {
        self.scopes.iter().any(|scope| matches!(scope, Scope::Capture(_, _, captured) if *captured == stream))
    }

    /// A pool that others may use or not in the first place, of several kinds in the second.
    fn pool(&mut self, place: usize) -> &MemPool {
        let (turn, segments) = (self.uses.len(), !self.has_faults);
        let (uses, helpers, registered) = (&mut self.uses, &mut self.helpers, &self.registered);
        self.pools[place].get_or_insert_with(|| {
            let builder = MemPool::builder().device(DEVICE);
            let builder = match (place, turn % 4) {
                (0, 0 | 2) => builder,
                (0, _) => builder.use_on_oom(true),
                (_, 0) => builder.segments(segments),
                (_, 1) => builder.no_split(true),
                (_, 2) => builder.limit(48 << 20),
                _ => builder.reserve(RESERVE).limit(2 * RESERVE),
            };
            // Where there is not enough for a reserve it gets none.
            let pool = builder.build().or_else(|_| MemPool::builder().device(DEVICE).build()).unwrap();
            uses.insert(pool.id(), 1);
            helpers.extend(Some(pool.id()).filter(|_| pool.use_on_oom()));
            if pool.no_split() {
                register(&pool, registered);
            }
            pool
        })
    }

    fn hold(&mut self, pool: PoolId, change: i32) {
        let uses = self.uses.get_mut(&pool).unwrap();
        *uses = uses.checked_add_signed(change).unwrap();
    }

    fn begin_capture_of(&mut self, pool: PoolId) {
        self.hold(pool, 1);
        self.captures.entry(pool).or_default().0 += 1;
    }

    fn end_capture_of(&mut self, pools: Vec<PoolId>) {
        for pool in pools {
            self.hold(pool, -1);
            let (captures, resets) = self.captures.get_mut(&pool).unwrap();
            *captures -= 1;
            *resets += u64::from(*captures == 0);
        }
    }

    /// Notes that a graph uses the pool of a scope inside its capture. Whether what is allocated now is a graph's.
    fn note_allocation(&mut self, stream: usize) -> bool {
        let capturing = self.scopes.iter_mut().find_map(|scope| match scope {
            Scope::Capture(_, pools, captured) => Some((pools, *captured == stream)),
            Scope::Pool(..) => None,
        });
        let Some((mut pools, is_captured)) = capturing.map(|(pools, is)| (std::mem::take(pools), is)) else {
            return false;
        };
        let innermost = self.scopes.last().map(|scope| match scope {
            Scope::Pool(_, pool) => Some(*pool),
            Scope::Capture(..) => None,
        });
        let inner = innermost.flatten();
        if let Some(pool) = inner.filter(|pool| is_captured && !pools.contains(pool)) {
            self.begin_capture_of(pool);
            pools.push(pool);
        }
        for scope in &mut self.scopes {
            if let Scope::Capture(_, place, _) = scope {
                *place = std::mem::take(&mut pools);
            }
        }
        is_captured || inner.is_none()
    }

    /// Returns what each pool holds for its own requests alone, and would lose if this program took it for another.
    fn kept(&self, op: &Op) -> Vec<(PoolId, u64)> {
        let destination = self.scopes.last().map_or(PoolId::NONE, Scope::pool);
        let is_kept = |pool: &&MemPool| match op {
            Op::Allocate { .. } => pool.id() != destination && !pool.use_on_oom() && pool.reserve() == 0,
            Op::Commit { range, pool: place, .. } => {
                let of_range = self.ranges[*range].as_ref().map(|range| range.pool);
                let destination = of_range.or_else(|| self.pools[*place].as_ref().map(MemPool::id));
                Some(pool.id()) != destination && !pool.use_on_oom() && pool.reserve() == 0
            }
            Op::EmptyCache => pool.no_split(),
            _ => false,
        };
        let held = |pool: &MemPool| {
            let stats = pool.stats().unwrap();
            (pool.id(), stats.live_bytes + stats.cached_bytes)
        };
        self.pools.iter().flatten().filter(is_kept).map(held).collect()
    }

    /// Returns the segments that the operation must leave registered, as no trim and no end of their pool.
    fn kept_registered(&self, op: &Op) -> BTreeMap<u64, (PoolId, u64)> {
        let registered = self.registered.lock().unwrap().clone();
        let trimmed = match op {
            Op::Trim { pool } => self.pools[*pool].as_ref().map(MemPool::id),
            _ => None,
        };
        let alive: BTreeSet<_> = self.pools.iter().flatten().map(MemPool::id).collect();
        let ends = matches!(op, Op::DropPool { .. });
        let is_kept = |pool: &PoolId| !ends && Some(*pool) != trimmed && alive.contains(pool);
        registered.into_iter().filter(|(_, (pool, _))| is_kept(pool)).collect()
    }

    /// What is registered are the segments of those pools, each a piece of its own, and nothing else.
    fn check_registered(&self, registered: &BTreeMap<u64, (PoolId, u64)>) {
        let whole: BTreeSet<_> = registered.values().map(|(pool, _)| *pool).collect();
        let alive: BTreeSet<_> =
            self.pools.iter().flatten().filter(|pool| pool.no_split()).map(MemPool::id).chain(whole).collect();
        let segments = memory_snapshot().unwrap().into_iter().filter(|segment| alive.contains(&segment.pool));
        let there: BTreeMap<_, _> = segments.map(|segment| (segment.address, (segment.pool, segment.nbytes))).collect();
        assert_eq!(&there, registered);
    }

    fn run_and_check(&mut self, op: &Op, fault: Option<Fault>) {
        let before = self.kept(op);
        let registered = self.kept_registered(op);
        self.taken.clear();
        self.run(op, fault);
        self.note_taken();
        let after: BTreeMap<_, _> = self.kept(op).into_iter().collect();
        for (id, bytes) in before {
            // What was taken of ranges was given up for that; it stays for now where the driver refuses to have it back.
            let taken = self.taken.get(&id).copied().unwrap_or(0);
            let may_have = |now: u64| now + taken == bytes || (fault.is_some() && (now..=now + taken).contains(&bytes));
            let now = after.get(&id);
            assert!(
                now.is_none_or(|&now| may_have(now)),
                "{op:?} with {fault:?} took memory of a pool that keeps it: of {bytes} it has {now:?}, {taken} were given up"
            );
        }
        let now = self.registered.lock().unwrap().clone();
        let kept = |(address, segment): (&u64, &(PoolId, u64))| now.get(address) == Some(segment);
        assert!(registered.iter().all(kept), "{op:?} took segments that are registered: {registered:?}, now {now:?}");
        self.check_registered(&now);
        self.check_counts();
    }

    fn run(&mut self, op: &Op, fault: Option<Fault>) {
        let arm = || fault.into_iter().for_each(inject);
        match *op {
            Op::Allocate { bytes, stream } => {
                let is_captured = self.note_allocation(stream);
                arm();
                let outcome = empty(bytes, &self.streams[stream]);
                clear_faults();
                let asked = self.scopes.last().map_or(PoolId::NONE, Scope::pool);
                match outcome {
                    Ok(buffer) => {
                        assert!(!self.asleep.contains(&asked), "a block of a pool that is asleep");
                        self.note_taken();
                        self.take(Held::Buffer(buffer), stream, is_captured);
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::Asleep(_)) => {
                        assert!(self.asleep.contains(&asked), "{error}");
                    }
                    Err(error) => self.check_refusal(&error, fault),
                }
            }
            Op::Free { which, by } => {
                let Some(number) = self.pick(which) else { return };
                let by = match by {
                    By::Stream(stream) if self.is_captured(stream) => By::Drop,
                    by => by,
                };
                if let By::Stream(stream) = by
                    && !self.asleep.contains(&self.blocks[number].pool)
                {
                    self.submit(number, stream);
                }
                self.check_marks(number);
                if let Some(Held::Page(page)) = self.blocks[number].held {
                    arm();
                    self.decommit(number, page, by, fault.is_some());
                    return;
                }
                let Some(Held::Buffer(buffer)) = self.blocks[number].held.take() else { unreachable!() };
                arm();
                let outcome = match by {
                    By::Drop => {
                        drop(buffer);
                        Ok(())
                    }
                    By::Address => deallocate(buffer.into_ptr(), None),
                    By::Stream(stream) => buffer.free_on(&self.streams[stream]),
                };
                clear_faults();
                if let Err(error) = outcome {
                    assert!(fault.is_some() && matches!(error.kind(), ErrorKind::Library(_)), "{error}");
                }
            }
            Op::Use { which, stream } => {
                let Some(number) = self.pick(which) else { return };
                // Work on what is asleep would be the program's fault.
                if !self.is_captured(stream) && !self.asleep.contains(&self.blocks[number].pool) {
                    let used = &self.streams[stream];
                    match self.blocks[number].held.as_ref().unwrap() {
                        Held::Buffer(buffer) => {
                            buffer.record_stream(used).unwrap();
                            self.blocks[number].recorded.push(stream);
                        }
                        // Its streams may be gone when it is decommitted.
                        Held::Page(page) => {
                            let range = &self.ranges[page.range.0].as_ref().unwrap().range;
                            assert_eq!(range.pin(&[page.page], Some(used)).unwrap(), [1]);
                            range.unpin(&[page.page], None).unwrap();
                        }
                    }
                    self.submit(number, stream);
                }
            }
            Op::Complete { stream, part } => {
                let left = self.submitted[stream] - self.completed[stream];
                self.completed[stream] += left.div_ceil(part);
                complete(&self.streams[stream], self.completed[stream]).unwrap();
            }
            Op::Enter { pool } => {
                let pool = self.pool(pool);
                let (id, scope) = (pool.id(), pool.enter().unwrap());
                self.hold(id, 1);
                self.scopes.push(Scope::Pool(scope, id));
            }
            Op::Leave { which } => {
                let scopes: Vec<_> =
                    (0..self.scopes.len()).filter(|&i| matches!(self.scopes[i], Scope::Pool(..))).collect();
                if !scopes.is_empty() {
                    let scope = self.scopes.remove(scopes[which % scopes.len()]);
                    let id = scope.pool();
                    arm();
                    drop(scope);
                    clear_faults();
                    self.hold(id, -1);
                }
            }
            Op::Capture { pool, stream } => {
                if self.scopes.iter().any(|scope| matches!(scope, Scope::Capture(..))) {
                    return;
                }
                let view = self.streams[stream].clone();
                let pool = self.pool(pool);
                let (id, scope) = (pool.id(), pool.capture(&view).unwrap());
                begin_capture(&view, CaptureMode::Global).unwrap();
                self.begin_capture_of(id);
                self.scopes.push(Scope::Capture(scope, vec![id], stream));
            }
            Op::EndCapture { fails } => {
                let Some(place) = self.scopes.iter().position(|scope| matches!(scope, Scope::Capture(..))) else {
                    return;
                };
                let Scope::Capture(scope, pools, stream) = self.scopes.remove(place) else { unreachable!() };
                end_capture(&self.streams[stream]).expect("nothing spoils a capture");
                arm();
                if fails {
                    drop(scope);
                    self.end_capture_of(pools);
                } else {
                    self.graphs.push((scope.end().unwrap(), pools));
                }
                clear_faults();
            }
            Op::Reset { which } => {
                if !self.graphs.is_empty() {
                    let (graph, pools) = self.graphs.remove(which % self.graphs.len());
                    arm();
                    graph.reset();
                    clear_faults();
                    self.end_capture_of(pools);
                }
            }
            Op::Trim { pool } => {
                let pool = self.pool(pool);
                arm();
                let outcome = pool.trim();
                clear_faults();
                assert!(outcome.is_ok() || fault.is_some(), "{outcome:?}");
            }
            Op::EmptyCache => {
                arm();
                let outcome = empty_cache();
                clear_faults();
                assert!(outcome.is_ok() || fault.is_some(), "{outcome:?}");
            }
            Op::Replace { stream } => {
                // A stream that was recorded of a block lives until that is freed.
                let is_recorded = self.live().any(|number| self.blocks[number].recorded.contains(&stream));
                if is_recorded || self.is_captured(stream) {
                    return;
                }
                // It ends once its work is done, and what that waits for.
                self.completed[stream] = self.submitted[stream];
                {
                    let _relaxed = RelaxedCapture::new(runtime::get().unwrap()).unwrap();
                    self.streams[stream].synchronize().unwrap();
                }
                destroy_stream(self.streams[stream].raw(), DEVICE).unwrap();
                self.streams[stream] = foreign();
                self.names[stream] = self.names.iter().max().unwrap() + 1;
                (self.submitted[stream], self.completed[stream]) = (0, 0);
            }
            Op::Sleep { pool, backup } => {
                let pool = pool.map(|place| {
                    let pool = self.pool(place);
                    (place, pool.id())
                });
                let is_meant = |id| pool.is_none_or(|(_, pool)| pool == id);
                let lends = self.live().any(|number| self.blocks[number].is_lent && is_meant(self.blocks[number].pool));
                arm();
                let outcome = match pool {
                    Some((place, _)) => self.pools[place].as_ref().unwrap().sleep(backup),
                    None => gpupool::sleep(DEVICE, backup),
                };
                clear_faults();
                let is_capturing = self.scopes.iter().any(|scope| matches!(scope, Scope::Capture(..)));
                if let Err(error) = &outcome {
                    match error.kind() {
                        ErrorKind::InvalidValue(_) => assert!(is_capturing, "{error}"),
                        // Some of the pools in the second place stay where they are.
                        ErrorKind::Unavailable(_) => {
                            assert!(pool.is_some_and(|(place, _)| place == 1 || lends), "{error}")
                        }
                        _ => assert!(fault.is_some(), "{error}"),
                    }
                }
                let is_refused = |error: &gpupool::Error| {
                    matches!(error.kind(), ErrorKind::InvalidValue(_) | ErrorKind::Unavailable(_))
                };
                if backup == Backup::None && !outcome.is_err_and(|error| is_refused(&error)) {
                    let asleep = &self.asleep;
                    let lost =
                        self.blocks.iter_mut().filter(|block| is_meant(block.pool) && !asleep.contains(&block.pool));
                    lost.for_each(|block| block.is_lost = true);
                }
                self.note_sleep();
            }
            Op::Wake { pool } => {
                let before = self.asleep.clone();
                let id = pool.map(|place| self.pool(place).id());
                arm();
                let outcome = match pool {
                    Some(place) => self.pools[place].as_ref().unwrap().wake(),
                    None => gpupool::wake(DEVICE),
                };
                clear_faults();
                // A pool that wakes may take pages of one that woke just before.
                self.note_taken();
                self.note_sleep();
                let meant = |id: Option<PoolId>, other: &PoolId| id.is_none_or(|id| id == *other);
                let left = self.asleep.iter().any(|other| meant(id, other));
                assert_eq!(outcome.is_err(), left, "{outcome:?}");
                assert!(self.asleep.is_subset(&before));
                if let Err(error) = outcome {
                    let is_short = matches!(error.kind(), ErrorKind::OutOfMemory(_));
                    assert!(is_short || fault.is_some(), "{error}");
                }
            }
            Op::Commit { range, pool, ref pages, stream, priority } => {
                self.commit(range, pool, pages, stream, priority, fault);
            }
            Op::Pin { which, is_end } => {
                let pages: Vec<_> =
                    self.live().filter(|&number| matches!(self.blocks[number].held, Some(Held::Page(_)))).collect();
                let Some(&number) = pages.get(which % pages.len().max(1)) else { return };
                let Some(Held::Page(page)) = &mut self.blocks[number].held else { unreachable!() };
                let range = &self.ranges[page.range.0].as_ref().unwrap().range;
                if !is_end {
                    assert_eq!(range.pin(&[page.page], None).unwrap(), [1]);
                    page.pins += 1;
                } else {
                    assert_eq!(range.unpin(&[page.page], None).is_ok(), page.pins > 0);
                    page.pins = page.pins.saturating_sub(1);
                }
            }
            Op::DropRange { range } => {
                let Some(dropped) = self.ranges[range].take() else { return };
                for number in self.live().collect::<Vec<_>>() {
                    if let Some(Held::Page(page)) = self.blocks[number].held
                        && page.range == (range, dropped.unique)
                    {
                        self.check_marks(number);
                        self.blocks[number].held = None;
                    }
                }
                let id = dropped.pool;
                arm();
                drop(dropped);
                clear_faults();
                self.hold(id, -1);
            }
            Op::DropPool { pool } => {
                if let Some(pool) = self.pools[pool].take() {
                    let id = pool.id();
                    arm();
                    drop(pool);
                    clear_faults();
                    self.hold(id, -1);
                }
            }
        }
    }

    fn commit(
        &mut self,
        place: usize,
        pool: usize,
        pages: &[u32],
        stream: usize,
        priority: Option<i32>,
        fault: Option<Fault>,
    ) {
        if self.ranges[place].is_none() {
            let pool = self.pool(pool);
            let (id, page_bytes) = (pool.id(), if place == 0 { 4 << 20 } else { 2 << 20 });
            let Ok(range) = pool.reserve_range(u64::from(RANGE_PAGES) * page_bytes, page_bytes) else {
                assert!(pool.no_split() || pool.stats().is_ok());
                return;
            };
            let taken = Arc::new(Mutex::new(Vec::new()));
            let list = Arc::clone(&taken);
            range.on_discard(move |pages| list.lock().unwrap().extend_from_slice(pages)).keep();
            let unique = NUMBERS.fetch_add(1, Ordering::Relaxed);
            self.ranges[place] = Some(Ranged { range, pool: id, taken, unique });
            self.hold(id, 1);
        }
        let of = self.ranges[place].as_ref().unwrap();
        let (id, unique, start, page_bytes) = (of.pool, of.unique, of.range.ptr(), of.range.page_bytes());
        let is_there = |model: &Self, page: u32| {
            model.live().find(|&number| {
                matches!(model.blocks[number].held, Some(Held::Page(held)) if held.range == (place, unique) && held.page == page)
            })
        };
        let before = of.range.committed_bytes().unwrap();
        fault.into_iter().for_each(inject);
        let outcome = of.range.commit(pages, &self.streams[stream], CommitOptions { priority, fill: None });
        clear_faults();
        // Its own pages may have been taken for it.
        self.note_taken();
        match outcome {
            Ok(()) => {
                assert!(!self.asleep.contains(&id), "a page of a pool that is asleep");
                for &page in &pages.iter().copied().collect::<BTreeSet<_>>() {
                    if let Some(number) = is_there(self, page) {
                        if let Some(Held::Page(held)) = &mut self.blocks[number].held {
                            held.priority = priority;
                        }
                        continue;
                    }
                    let address = start + u64::from(page) * page_bytes;
                    let page = Page { range: (place, unique), page, address, priority, pins: 0 };
                    self.take(Held::Page(page), stream, false);
                }
            }
            Err(error) => {
                let is_alive = self.pools.iter().flatten().any(|pool| pool.id() == id) || self.uses[&id] > 0;
                let is_capturing = self.scopes.iter().any(|scope| matches!(scope, Scope::Capture(..)));
                match error.kind() {
                    ErrorKind::Asleep(_) => assert!(self.asleep.contains(&id), "{error}"),
                    ErrorKind::InvalidValue(_) => assert!(!is_alive || is_capturing, "{error}"),
                    ErrorKind::OutOfMemory(_) => {}
                    _ => assert!(fault.is_some(), "{error}"),
                }
                let taken = self.taken.get(&id).copied().unwrap_or(0);
                let now = self.ranges[place].as_ref().unwrap().range.committed_bytes().unwrap();
                assert!(now == before || now < before && taken > 0, "{error}");
            }
        }
    }

    fn decommit(&mut self, number: usize, page: Page, by: By, has_fault: bool) {
        let of = self.ranges[page.range.0].as_ref().unwrap();
        let stream = match by {
            By::Stream(stream) => Some(&self.streams[stream]),
            By::Drop | By::Address => None,
        };
        let outcome = of.range.decommit(&[page.page], stream);
        clear_faults();
        let is_capturing = self.scopes.iter().any(|scope| matches!(scope, Scope::Capture(..)));
        let is_there = of.range.pin(&[page.page], None).unwrap() == [1];
        if is_there {
            of.range.unpin(&[page.page], None).unwrap();
            if let Some(stream) = stream {
                // It was not taken over, but was submitted before.
                of.range.pin(&[page.page], Some(stream)).unwrap();
                of.range.unpin(&[page.page], None).unwrap();
            }
        }
        assert_eq!(is_there, outcome.is_err());
        match outcome {
            Ok(()) => self.blocks[number].held = None,
            Err(error) => match error.kind() {
                ErrorKind::Asleep(_) => assert!(self.asleep.contains(&of.pool), "{error}"),
                ErrorKind::InvalidValue(_) => assert!(is_capturing || page.pins > 0, "{error}"),
                _ => assert!(has_fault, "{error}"),
            },
        }
    }

    /// Notes the pages that were taken of ranges since the last look: none that is pinned or has no priority.
    fn note_taken(&mut self) {
        for place in 0..RANGES {
            let Some(of) = &self.ranges[place] else { continue };
            let (id, unique, page_bytes) = (of.pool, of.unique, of.range.page_bytes());
            for page in std::mem::take(&mut *of.taken.lock().unwrap()) {
                let number = self.live().find(|&number| {
                    matches!(self.blocks[number].held, Some(Held::Page(held)) if held.range == (place, unique) && held.page == page)
                });
                let Some(number) = number else { panic!("page {page} was taken and not committed") };
                let Some(Held::Page(held)) = self.blocks[number].held else { unreachable!() };
                assert!(held.pins == 0 && held.priority.is_some(), "{held:?} was taken");
                self.blocks[number].held = None;
                *self.taken.entry(id).or_default() += page_bytes;
            }
        }
    }

    /// Notes which pools are asleep. What has come back holds what it held, unless that was given up.
    fn note_sleep(&mut self) {
        let before = std::mem::take(&mut self.asleep);
        let pools = memory_summary(DEVICE).unwrap().pools;
        self.asleep = pools.iter().filter(|pool| pool.is_asleep).map(|pool| pool.id).collect();
        for number in self.live().collect::<Vec<_>>() {
            let block = &mut self.blocks[number];
            if self.asleep.contains(&block.pool) {
                continue;
            }
            if std::mem::take(&mut block.is_lost) {
                let (address, bytes) = (block.address, block.bytes);
                places(address, bytes).for_each(|place| write(place, MARK | number as u64));
            }
            let pool = block.pool;
            if before.contains(&pool) {
                self.check_marks(number);
            }
        }
    }

    /// Submits work with a block, which is ordered behind what its own stream has to do, since that may still use the block's
    /// memory for an older one. The simulated device sees that nothing takes the block from under the work.
    fn submit(&mut self, number: usize, stream: usize) {
        let (block, used) = (&self.blocks[number], &self.streams[stream]);
        let (own, name) = block.stream;
        let is_apart = own != stream && self.names[own] == name;
        if is_apart && self.is_captured(own) {
            submit(used).unwrap();
        } else {
            if is_apart {
                let ready = Event::new(DEVICE).unwrap();
                ready.record(&self.streams[own]).unwrap();
                used.wait(&ready).unwrap();
            }
            let address = block.address;
            submit_using(used, &[UsedBlock { number: block.unique, address, bytes: block.bytes }]).unwrap();
        }
        self.submitted[stream] += 1;
        let event = Event::new(DEVICE).unwrap();
        event.record(&self.streams[stream]).unwrap();
        self.blocks[number].uses.push((self.names[stream], event));
    }

    /// A new block: marked, once it is clear that its memory is nobody's.
    fn take(&mut self, held: Held, stream: usize, is_captured: bool) {
        let asked = self.scopes.last().map_or(PoolId::NONE, Scope::pool);
        let (address, bytes, pool, asked) = match &held {
            Held::Buffer(buffer) => (buffer.ptr(), buffer.nbytes(), buffer.pool_id(), asked),
            Held::Page(page) => {
                let of = self.ranges[page.range.0].as_ref().unwrap();
                (page.address, of.range.page_bytes(), of.pool, of.pool)
            }
        };
        assert_eq!(address % 512, 0);
        let is_page = matches!(held, Held::Page(_));
        // The default pool and one with `use_on_oom` help others out, but for graphs; also one that only a scope has.
        let is_of_helper = pool == PoolId::NONE || self.helpers.contains(&pool) && self.uses[&pool] > 0;
        assert!(pool == asked || is_of_helper && !is_captured, "a block of pool {pool} for pool {asked}");
        let captured = is_captured.then(|| self.captures[&pool].1);
        for number in self.live() {
            let other = &self.blocks[number];
            let start = other.address;
            assert!(address + bytes <= start || start + other.bytes <= address, "{address:#x} overlaps {number}");
        }
        let run = self.blocks.len();
        let _relaxed = RelaxedCapture::new(runtime::get().unwrap()).unwrap();
        for place in old_places(address, bytes) {
            let found = read(place);
            if found & !u64::from(u32::MAX) != MARK {
                continue;
            }
            let number = (found & u64::from(u32::MAX)) as usize;
            // Marks of earlier programs are gone with their memory.
            let former = &self.blocks[number];
            assert!(former.held.is_none(), "block {run} has memory of live block {number}");
            for (user, event) in &former.uses {
                assert!(
                    // A page that is there still is taken back behind that work: the simulated device checks it.
                    *user == self.names[stream] || (is_page && former.address == address) || event.query().unwrap(),
                    "block {run} of stream {stream} has memory of block {number}, which stream {user} still uses"
                );
            }
            if let (Some(resets), None) = (former.captured, captured) {
                let (captures, now) = self.captures[&former.pool];
                assert!(captures == 0 || now > resets, "block {run} has memory of a graph, {number}");
            }
        }
        for place in places(address, bytes) {
            write(place, MARK | run as u64);
        }
        self.blocks.push(Block {
            held: Some(held),
            address,
            bytes,
            pool,
            is_lent: pool != asked,
            stream: (stream, self.names[stream]),
            unique: NUMBERS.fetch_add(1, Ordering::Relaxed),
            uses: Vec::new(),
            recorded: Vec::new(),
            captured,
            is_lost: false,
        });
        // The caller's own first work.
        if !self.is_captured(stream) {
            self.submit(run, stream);
        }
    }

    fn check_marks(&self, number: usize) {
        let block = &self.blocks[number];
        if self.asleep.contains(&block.pool) {
            return;
        }
        for place in places(block.address, block.bytes) {
            assert_eq!(read(place), MARK | number as u64, "block {number} at {place:#x}");
        }
    }

    fn check_refusal(&self, error: &gpupool::Error, fault: Option<Fault>) {
        match error.kind() {
            ErrorKind::OutOfMemory(_) => {
                // Nothing is in the way of any request where nobody holds anything.
                let is_held = self.live().next().is_some() || !self.graphs.is_empty() || !self.scopes.is_empty();
                assert!(fault.is_some() || is_held, "{error}");
            }
            // It names the call that was made to fail.
            ErrorKind::Library(refused) => {
                assert_eq!(Some(refused.function.clone()), fault.map(|fault| format!("{:?}", fault.call)), "{error}");
            }
            _ => panic!("{error}"),
        }
    }

    /// Every count of gpupool's is the model's.
    fn check_counts(&self) {
        let total = memory_stats(DEVICE).unwrap().total;
        assert_eq!(total.live_blocks - total.waiting_blocks, self.live().count() as u64);
        let used = info();
        let used = used.total - used.free;
        // Where a question is refused, pages that were moved and then given back stay mapped at the old place for a while.
        assert!(
            total.reserved_bytes == used || self.has_faults && total.reserved_bytes < used,
            "{total:?}, {used} used"
        );
        for pool in self.pools.iter().flatten() {
            let (stats, id) = (pool.stats().unwrap(), pool.id());
            let live = || self.live().map(|number| &self.blocks[number]).filter(|block| block.pool == id);
            assert_eq!(stats.live_blocks - stats.waiting_blocks, live().count() as u64);
            let requested: u64 = live().map(|block| block.bytes).sum();
            assert!(
                stats.requested_bytes == requested || stats.waiting_blocks > 0 && stats.requested_bytes > requested
            );
            assert!(stats.requested_bytes <= stats.live_bytes);
            assert!(stats.live_bytes - stats.asleep_bytes <= stats.reserved_bytes);
            assert_eq!(pool.is_asleep(), self.asleep.contains(&id));
            // What could not be given back is there still.
            assert!(!pool.is_asleep() || stats.reserved_bytes == 0 || self.has_faults, "{stats:?}");
            assert!(stats.reserved_bytes >= pool.reserve() || pool.is_asleep());
            assert_eq!(stats.asleep_bytes, if pool.is_asleep() { stats.live_bytes } else { 0 });
            assert!(pool.limit().is_none_or(|limit| stats.reserved_bytes <= limit), "{stats:?}");
            assert_eq!(pool.use_count(), self.uses[&id]);
        }
    }

    /// Ends everything, and all memory is back.
    fn finish(mut self) {
        // Where there is not enough some are freed asleep.
        let woken = gpupool::wake(DEVICE);
        assert!(woken.is_ok() || !self.asleep.is_empty(), "{woken:?}");
        // For what wakes.
        self.note_taken();
        self.note_sleep();
        for number in self.live().collect::<Vec<_>>() {
            self.check_marks(number);
            self.blocks[number].held = None;
        }
        self.ranges = [None, None, None];
        for scope in self.scopes.drain(..) {
            if let Scope::Capture(_, _, stream) = scope {
                end_capture(&self.streams[stream]).expect("nothing spoils a capture");
            }
        }
        self.graphs.clear();
        self.pools = [None, None];
        gpupool::wake(DEVICE).unwrap();
        complete_all().unwrap();
        empty_cache().unwrap();
        let stats = memory_stats(DEVICE).unwrap();
        assert_eq!((stats.total.live_blocks, stats.total.live_bytes, stats.total.requested_bytes), (0, 0, 0));
        assert_eq!((stats.total.reserved_bytes, stats.pools), (self.lost, 1 + self.lost_pools), "{stats:?}");
        assert_eq!(info().free, MEMORY - self.lost);
        assert_eq!(pinned_stats(None).unwrap().total.live_bytes, 0);
        assert!(self.registered.lock().unwrap().is_empty());
    }
}

impl Drop for Model {
    /// A program that failed leaves nothing to the next, or to a smaller one.
    fn drop(&mut self) {
        clear_faults();
        for scope in self.scopes.drain(..) {
            if let Scope::Capture(_, _, stream) = scope {
                let _ = end_capture(&self.streams[stream]);
            }
        }
        self.blocks.clear();
        self.ranges = [None, None, None];
        self.graphs.clear();
        self.pools = [None, None];
        let _ = gpupool::wake(DEVICE);
        let _ = complete_all();
        let _ = empty_cache();
        for stream in &self.streams[FOREIGN] {
            let _ = destroy_stream(stream.raw(), DEVICE);
        }
    }
}

fn check(program: &[(Op, Option<Fault>)]) {
    clear_faults();
    let mut model = Model::new(program.iter().any(|(_, fault)| fault.is_some()));
    for (op, fault) in program {
        model.run_and_check(op, *fault);
    }
    model.finish();
}

/// Prints the first program that fails, whose failure a smaller one may not repeat.
struct ShownIfItFails<'a>(&'a [(Op, Option<Fault>)]);

impl Drop for ShownIfItFails<'_> {
    fn drop(&mut self) {
        static IS_SHOWN: AtomicBool = AtomicBool::new(false);
        if std::thread::panicking() && !IS_SHOWN.swap(true, Ordering::Relaxed) {
            println!("the first program that failed: {:?}", self.0);
        }
    }
}

/// Checks programs for the time of a test. They are those of `GPUPOOL_MODEL_SEED`, a number, or of a new one, which is
/// printed first: a program may end the process.
fn check_all<P: Strategy>(programs: P, faults_of: impl Fn(P::Value) -> Vec<(Op, Option<Fault>)>) {
    let config = Config { failure_persistence: None, max_shrink_iters: 3000, ..Config::default() };
    let seed: u64 = match std::env::var("GPUPOOL_MODEL_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    eprintln!("GPUPOOL_MODEL_SEED={seed}");
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed.to_le_bytes(); 4].concat());
    let mut runner = TestRunner::new_with_rng(config, rng);
    let (operations, mut done) = (Cell::new(0), 0);
    for turn in turns(20) {
        let program = programs.new_tree(&mut runner).expect("nothing is rejected");
        let outcome = runner.run_one(program, |program| {
            let program = faults_of(program);
            operations.set(operations.get() + program.len());
            let shown = ShownIfItFails(&program);
            check(&program);
            drop(shown);
            Ok(())
        });
        if let Err(failure) = outcome {
            panic!("{failure}");
        }
        done = turn;
    }
    println!("{} operations in {done} programs", operations.get());
}

#[test]
fn any_program_keeps_its_bytes_and_counts() {
    host!(1, MEMORY);
    let without = |program: Vec<Op>| program.into_iter().map(|op| (op, None)).collect();
    let programs =
        prop_oneof![3 => prop::collection::vec(op(FEW), 1..200), 1 => prop::collection::vec(op(STREAMS), 1..200)];
    check_all(programs, without);
}

#[test]
fn whatever_the_driver_refuses_nothing_is_lost() {
    host!(1, MEMORY);
    let program = |streams| prop::collection::vec((op(streams), prop::option::weighted(0.3, fault())), 1..150);
    check_all(prop_oneof![3 => program(FEW), 1 => program(STREAMS)], |program| program);
}
