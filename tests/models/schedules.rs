//! Random programs of a few threads, each in a random schedule of the real code: whatever happens in between, no memory is
//! unmapped or handed on while work uses it, no request fails that need not, and at the end everything comes back.
//!
//! The simulated device sees what work uses. Each program does a few kinds of things only, so that those meet often, and its
//! seed makes it again, after those before it: `GPUPOOL_SCHEDULE=<seed> cargo test --test models schedules::<test> --
//! --nocapture` prints what it does.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use gpupool::library::simulated::{SimulatedLibrary, set_workspace_bytes, workspace_of};
use gpupool::memory::enable_peer_access;
use gpupool::runtime::host::schedule::{self, Body};
use gpupool::runtime::host::{
    Graph, UsedBlock, accessible, begin_capture, collect_mistakes, complete, complete_all, create_stream,
    destroy_stream, end_capture, replace_stream, submit_using,
};
use gpupool::{
    Backup, CaptureMode, CommitOptions, Device, DeviceBuffer, Error, ErrorKind, Event, GraphMemory, HandlePool,
    MemPool, MemoryRange, RawStream, Stream, attach, empty, empty_cache, memory_stats,
};

use crate::common::memory::{PAGE, Random, deallocate, used};
use crate::common::{turns, wait_until};

const MEMORY: u64 = 64 << 20;
const DEVICE: Device = Device::from_ordinal(0);
const THREADS: usize = 3;
const STREAMS: usize = 3;
/// With a cache for each a pool lends slabs.
const STREAMS_OF_LENDER: usize = 18;
const POOLS: usize = 2;
/// Pages that a thread holds at most.
const PAGES_MOST: u64 = 10;
/// The same where no request may fail, and what all of them together are given.
const TIGHT_MOST: u64 = 2;
const TIGHT_MEMORY: u64 = THREADS as u64 * TIGHT_MOST * PAGE;
/// What a handle computes with on each stream.
const WORKSPACE: u64 = 64 << 10;

/// A kind of thing that a thread does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Allocate,
    /// Allocates a block, uses it and frees it.
    Once,
    /// The same on a stream that ends with it.
    OnceApart,
    Use,
    UseElsewhere,
    Fill,
    /// Shares a block and takes it up again, for another stream.
    Attach,
    /// Computes with a library's handle, in the workspace that it has for the stream.
    Compute,
    Free,
    FreeByAddress,
    FreeElsewhere,
    PassOn,
    TakeOver,
    Complete,
    EmptyCache,
    Trim,
    ReplaceStream,
    /// The thread's own stream ends with its work pending, and the next one has its address.
    ReplaceInPlace,
    ReplacePool,
    ClosePool,
    Sleep,
    Wake,
    Capture,
    Reset,
    EnablePeer,
    /// A pool serves all threads for a while, on so many streams that it lends slabs.
    ServeAll,
    Look,
    /// Pages of a range, of which each is one thread's until it is decommitted.
    Commit,
    Decommit,
    UsePage,
    ReplaceRange,
    /// The same of pages that all threads name, which nothing uses.
    CommitAny,
    DecommitAny,
}

/// Those that most programs have.
const OFTEN: [Kind; 4] = [Kind::Allocate, Kind::Use, Kind::Free, Kind::Complete];
const SELDOM: [Kind; 10] = [
    Kind::UseElsewhere,
    Kind::FreeByAddress,
    Kind::FreeElsewhere,
    Kind::PassOn,
    Kind::TakeOver,
    Kind::EmptyCache,
    Kind::Trim,
    Kind::ReplaceStream,
    Kind::ReplacePool,
    Kind::Look,
];

/// How large blocks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sizes {
    Small,
    /// Parts of a page, of which others are live: whole free pages move instead.
    Parts,
    /// One page each: whatever is free serves any request.
    Pages,
    Mixed,
}

/// What the programs of a test do.
#[derive(Clone, Copy, Debug)]
enum Theme {
    /// Memory comes, is used and goes.
    Flow,
    /// The same of one stream, with as little as may be in between.
    Trims,
    /// Never more is held than there is: no request may fail.
    Tight,
    /// Pools are closed while others use them.
    Closing,
    /// Pools with reserves come and go, while others free blocks of those before.
    Reserves,
    /// Pools that lend slabs end while other threads allocate there.
    Lent,
    /// Streams are of other code, which gpupool touches in calls alone that name them.
    Foreign,
    /// The same of streams that end with their work pending, and leave their addresses to others: each thread has its own.
    Addresses,
    /// The same of each thread's per-thread default stream besides, of blocks that are attached, and of workspaces.
    Own,
    /// Graphs are captured and reset.
    Graphs,
    /// Pools sleep and wake.
    Sleep,
    /// The same of pools that have all pages and serve the default pool, which never sleeps.
    SleepingHelpers,
    /// Other devices get access.
    Peers,
    /// Pages of ranges come and go, and some are taken.
    Ranges,
    /// The same while pools sleep and wake.
    RangesAsleep,
    /// Threads commit and decommit the same pages.
    SharedPages,
}

struct Program {
    kinds: Vec<Kind>,
    sizes: Sizes,
    theme: Theme,
    reserve: u64,
    use_on_oom: bool,
    streams: usize,
    steps: usize,
}

impl Program {
    fn new(theme: Theme, random: &mut Random) -> Self {
        let mut kinds = OFTEN.to_vec();
        kinds.extend_from_slice(match theme {
            Theme::Flow => &[Kind::EmptyCache, Kind::Trim],
            Theme::Trims => &[],
            Theme::Tight => &[Kind::Allocate, Kind::Allocate],
            Theme::Closing => &[Kind::ClosePool, Kind::ReplacePool, Kind::ReplacePool, Kind::ReplaceStream],
            Theme::Reserves => &[Kind::PassOn, Kind::TakeOver, Kind::EmptyCache, Kind::ReplacePool, Kind::ReplacePool],
            Theme::Lent => &[],
            Theme::Foreign => &[Kind::EmptyCache, Kind::Free, Kind::ReplacePool, Kind::PassOn, Kind::TakeOver],
            Theme::Addresses => &[Kind::EmptyCache, Kind::ReplaceInPlace, Kind::ReplaceInPlace],
            Theme::Own => &[
                Kind::Attach,
                Kind::Attach,
                Kind::Compute,
                Kind::Free,
                Kind::UseElsewhere,
                Kind::PassOn,
                Kind::TakeOver,
                Kind::ReplaceInPlace,
            ],
            Theme::Graphs => &[Kind::Capture, Kind::Reset, Kind::ReplaceStream],
            Theme::Sleep => &[Kind::Fill, Kind::Sleep, Kind::Wake],
            Theme::SleepingHelpers => &[],
            Theme::Peers => &[Kind::EnablePeer, Kind::PassOn, Kind::TakeOver],
            Theme::Ranges | Theme::RangesAsleep | Theme::SharedPages => &[],
        });
        if matches!(theme, Theme::Closing) && random.below(2) == 0 {
            // Caches come and go as fast as may be.
            kinds = vec![Kind::OnceApart, Kind::OnceApart, Kind::ReplacePool, Kind::ClosePool];
        }
        if matches!(theme, Theme::Trims) {
            kinds = vec![Kind::Once, Kind::EmptyCache, Kind::Complete];
        }
        if matches!(theme, Theme::Lent) {
            kinds = vec![Kind::Once, Kind::Once, Kind::Once, Kind::ServeAll];
        }
        if matches!(theme, Theme::SleepingHelpers) {
            kinds = vec![Kind::Allocate, Kind::Allocate, Kind::Fill, Kind::Fill, Kind::Free, Kind::Sleep, Kind::Wake];
        }
        if matches!(theme, Theme::Ranges | Theme::RangesAsleep) {
            kinds = vec![Kind::Commit, Kind::Commit, Kind::UsePage, Kind::Decommit, Kind::Complete, Kind::Allocate];
            kinds.extend([Kind::Free, Kind::Trim, Kind::ReplaceRange, Kind::Decommit]);
        }
        if matches!(theme, Theme::RangesAsleep) {
            kinds.extend([Kind::Sleep, Kind::Wake]);
        }
        if matches!(theme, Theme::SharedPages) {
            kinds = vec![Kind::CommitAny, Kind::CommitAny, Kind::DecommitAny, Kind::DecommitAny];
            kinds.extend([Kind::Complete, Kind::Trim].into_iter().filter(|_| random.below(2) == 0));
        }
        let more: Vec<_> = (0..random.below(if matches!(theme, Theme::Trims | Theme::SharedPages) { 1 } else { 4 }))
            .map(|_| SELDOM[random.below(SELDOM.len())])
            .collect();
        kinds.extend(more);
        if matches!(theme, Theme::Sleep | Theme::SleepingHelpers | Theme::RangesAsleep) {
            // Work on what is asleep would be the program's fault.
            kinds.retain(|kind| !matches!(kind, Kind::Use | Kind::UseElsewhere | Kind::FreeElsewhere | Kind::UsePage));
        }
        if matches!(theme, Theme::Addresses) {
            // No thread uses another one's stream, which may end at any time.
            let own = |kind: &Kind| !matches!(kind, Kind::UseElsewhere | Kind::FreeElsewhere | Kind::PassOn);
            kinds.retain(|kind| own(kind) && !matches!(kind, Kind::TakeOver | Kind::ReplaceStream));
        }
        if matches!(theme, Theme::Own) {
            kinds.retain(|kind| *kind != Kind::ReplaceStream);
        }
        if matches!(theme, Theme::Tight | Theme::SleepingHelpers) {
            // So that each thread knows what it holds, and takes no block over that pools keep.
            kinds.retain(|kind| !matches!(kind, Kind::PassOn | Kind::TakeOver));
        }
        let sizes = match theme {
            Theme::Trims | Theme::Reserves | Theme::Lent => Sizes::Small,
            Theme::SleepingHelpers => Sizes::Parts,
            Theme::Tight | Theme::Ranges | Theme::RangesAsleep | Theme::SharedPages | Theme::Own => Sizes::Pages,
            _ => [Sizes::Small, Sizes::Pages, Sizes::Mixed][random.below(3)],
        };
        let may_reserve = matches!(theme, Theme::Graphs | Theme::Closing | Theme::Peers);
        Self {
            kinds,
            sizes,
            theme,
            reserve: match theme {
                Theme::Reserves => PAGE,
                _ if may_reserve && random.below(2) == 0 => 2 * PAGE,
                _ => 0,
            },
            use_on_oom: random.below(2) == 0 || matches!(theme, Theme::SleepingHelpers),
            streams: match theme {
                Theme::Trims => 1,
                Theme::Lent => STREAMS_OF_LENDER,
                _ => STREAMS,
            },
            steps: 4 + random.below(24),
        }
    }

    fn bytes(&self, random: &mut Random) -> u64 {
        match self.sizes {
            Sizes::Small => [512, 1024, 4096, 64 << 10][random.below(4)],
            Sizes::Parts => [512, 64 << 10, 300 << 10, 700 << 10][random.below(4)],
            Sizes::Pages => PAGE,
            Sizes::Mixed => [512, 4096, 300 << 10, 1 << 20, PAGE, 3 << 20, 3 * PAGE][random.below(7)],
        }
    }

    fn pool(&self) -> Arc<MemPool> {
        let builder = MemPool::builder().device(DEVICE).use_on_oom(self.use_on_oom);
        let builder = if self.reserve > 0 { builder.reserve(self.reserve) } else { builder };
        Arc::new(builder.build().unwrap())
    }
}

/// A block, which one thread has at a time.
struct Block {
    buffer: DeviceBuffer,
    stream: Stream,
    number: u64,
    /// Whether a pool that may sleep was asked for it.
    is_of_pool: bool,
    /// Whether its stream is at its end.
    is_stream_gone: bool,
    /// The place of the thread that has named its stream.
    place: usize,
}

impl Block {
    /// A small block of a pool, which keeps a page there.
    fn of(pool: &MemPool, stream: &Stream) -> Self {
        Self::new(pool.empty(512, stream).unwrap(), stream.clone(), true)
    }

    fn new(buffer: DeviceBuffer, stream: Stream, is_of_pool: bool) -> Self {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Self { buffer, stream, number, is_of_pool, is_stream_gone: false, place: PLACE.get() }
    }

    /// Whether this thread can name its stream.
    fn is_nameable(&self) -> bool {
        !self.is_stream_gone && (self.place == PLACE.get() || self.stream.raw() != RawStream::PER_THREAD)
    }

    fn used(&self) -> UsedBlock {
        UsedBlock { number: self.number, address: self.buffer.ptr(), bytes: self.buffer.nbytes() }
    }
}

fn is_asleep(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Asleep(_))
}

/// A graph, with what gpupool holds for it. It goes first, as a library's does before it calls gpupool.
struct LiveGraph {
    graph: Graph,
    memory: GraphMemory,
}

/// What the threads share. No lock is held over a call of gpupool's.
struct World {
    program: Program,
    streams: Mutex<Vec<Stream>>,
    pools: Mutex<Vec<Arc<MemPool>>>,
    shelf: Mutex<VecDeque<Block>>,
    ranges: Mutex<Vec<Arc<MemoryRange>>>,
    /// A page of each range that no thread has.
    spare_pages: Mutex<[u32; POOLS]>,
    graphs: Mutex<Vec<LiveGraph>>,
    submitted: AtomicU64,
    peer: Device,
    has_peer: AtomicBool,
}

/// Whether the programs say what they do.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A page of a range that a thread has, with the number of what it holds and the stream that uses it, from when the thread has
/// committed it.
#[derive(Clone, Debug)]
struct OwnPage {
    page: u32,
    held: Option<(u64, Stream)>,
}

thread_local! {
    /// The calling thread's place among the program's threads.
    static PLACE: Cell<usize> = const { Cell::new(0) };
    static PAGES: RefCell<Vec<OwnPage>> = const { RefCell::new(Vec::new()) };
}

/// Handles that compute, for all programs: such a pool lives as long as the process.
static HANDLES: LazyLock<HandlePool> = LazyLock::new(|| {
    set_workspace_bytes(WORKSPACE);
    HandlePool::new(SimulatedLibrary).unwrap()
});

/// The foreign streams of a program, which live as long.
static FOREIGN: Mutex<Vec<RawStream>> = Mutex::new(Vec::new());

/// Pages of a range that each thread has.
const OWN_PAGES: usize = 2;
/// As many for each thread, and a spare one.
const PAGES_OF_RANGE: usize = OWN_PAGES * THREADS + 1;
/// Streams that a range tells apart, of which a program's ranges know so many before its own.
const STREAMS_OF_RANGE: [usize; 3] = [0, 62, 63];

fn range_of(pool: &Arc<MemPool>) -> Arc<MemoryRange> {
    Arc::new(pool.reserve_range(PAGES_OF_RANGE as u64 * PAGE, PAGE).unwrap())
}

fn foreign_stream() -> Stream {
    let raw = create_stream(DEVICE).unwrap();
    FOREIGN.lock().unwrap().push(raw);
    // SAFETY: it is destroyed at the end of the program, when nothing uses it any more.
    unsafe { Stream::from_raw_on(raw.as_ptr(), DEVICE) }.unwrap()
}

impl World {
    fn new(program: Program, peer: Device) -> Self {
        let pools: Vec<_> = (0..POOLS).map(|_| program.pool()).collect();
        let is_foreign = matches!(program.theme, Theme::Foreign | Theme::Addresses | Theme::Own);
        let stream = |_| if is_foreign { foreign_stream() } else { Stream::new(DEVICE).unwrap() };
        let streams: Vec<_> = (0..program.streams).map(stream).collect();
        let has_ranges = matches!(program.theme, Theme::Ranges | Theme::RangesAsleep | Theme::SharedPages);
        let ranges: Vec<_> = pools.iter().filter(|_| has_ranges).map(range_of).collect();
        for range in &ranges {
            let others = (0..STREAMS_OF_RANGE[peer.ordinal() % STREAMS_OF_RANGE.len()]).map(|_| foreign_stream());
            others.for_each(|other| assert!(range.pin(&[], Some(&other)).unwrap().is_empty()));
        }
        let keeps = matches!(program.theme, Theme::SleepingHelpers);
        let kept = pools.iter().filter(|_| keeps).map(|pool| Block::of(pool, &streams[0]));
        Self {
            program,
            shelf: Mutex::new(kept.collect()),
            streams: Mutex::new(streams),
            ranges: Mutex::new(ranges),
            spare_pages: Mutex::new([PAGES_OF_RANGE as u32 - 1; POOLS]),
            pools: Mutex::new(pools),
            graphs: Mutex::default(),
            submitted: AtomicU64::new(0),
            peer,
            has_peer: AtomicBool::new(false),
        }
    }

    fn stream(&self, random: &mut Random) -> Stream {
        let any = random.below(self.program.streams);
        if matches!(self.program.theme, Theme::Own | Theme::Ranges) && random.below(2) == 0 {
            return Stream::per_thread(DEVICE).unwrap();
        }
        let place = if matches!(self.program.theme, Theme::Addresses | Theme::Own) { PLACE.get() } else { any };
        self.streams.lock().unwrap()[place].clone()
    }

    fn pool(&self, random: &mut Random) -> Arc<MemPool> {
        Arc::clone(&self.pools.lock().unwrap()[random.below(POOLS)])
    }

    /// Sees that a refusal of a call may be, of a pool if that is closed.
    fn allow(&self, what: Kind, error: &Error, pool: Option<&MemPool>) {
        let theme = self.program.theme;
        let is_allowed = match error.kind() {
            ErrorKind::OutOfMemory(_) => !matches!(theme, Theme::Tight),
            ErrorKind::Asleep(_) => matches!(theme, Theme::Sleep | Theme::SleepingHelpers | Theme::RangesAsleep),
            ErrorKind::Unavailable(_) => matches!(theme, Theme::SleepingHelpers) && what == Kind::Sleep,
            ErrorKind::InvalidValue(_) => {
                pool.is_some_and(MemPool::is_closed)
                    || matches!(theme, Theme::Lent)
                    // The range was dropped meanwhile, or its pool is gone.
                    || matches!(what, Kind::Commit | Kind::Decommit)
            }
            _ => false,
        };
        assert!(is_allowed, "{what:?}: {error}");
    }

    fn allocate(&self, stream: Stream, random: &mut Random, held: &mut Vec<Block>) {
        let pages: u64 = held.iter().map(|block| block.buffer.nbytes().div_ceil(PAGE)).sum();
        if pages >= if matches!(self.program.theme, Theme::Tight) { TIGHT_MOST } else { PAGES_MOST } {
            return;
        }
        let bytes = self.program.bytes(random);
        let is_of_pool = matches!(self.program.theme, Theme::Closing | Theme::Foreign | Theme::Reserves | Theme::Sleep)
            || random.below(2) == 0;
        // Another pool keeps its free pages unless it helps others.
        let is_of_pool = is_of_pool
            && !matches!(self.program.theme, Theme::Lent)
            && (self.program.use_on_oom || !matches!(self.program.theme, Theme::Tight));
        let had_peer = self.has_peer.load(Ordering::SeqCst);
        let pool = is_of_pool.then(|| self.pool(random));
        let made = pool.as_ref().map_or_else(|| empty(bytes, &stream), |pool| pool.empty(bytes, &stream));
        match made {
            Ok(buffer) => {
                let block = Block::new(buffer, stream, is_of_pool);
                if had_peer {
                    self.check_peer(&block);
                }
                held.push(block);
            }
            Err(error) => {
                assert!(is_of_pool || !is_asleep(&error), "the default pool does not sleep: {error}");
                self.allow(Kind::Allocate, &error, pool.as_deref());
            }
        }
    }

    fn check_peer(&self, block: &Block) {
        let UsedBlock { address, bytes, .. } = block.used();
        let is_open = (address..address + bytes).step_by(PAGE as usize).chain([address + bytes - 1]);
        let closed: Vec<_> = is_open.filter(|&at| !accessible(at, self.peer)).collect();
        assert!(closed.is_empty(), "{} cannot reach {closed:#x?} of {address:#x}", self.peer);
    }

    fn submit(&self, block: &Block, stream: &Stream) {
        let number = submit_using(stream, &[block.used()]).unwrap();
        self.submitted.fetch_max(number, Ordering::Relaxed);
    }

    fn use_elsewhere(&self, block: &Block, random: &mut Random) -> Stream {
        // What a block was recorded on outlives it.
        let is_own = matches!(self.program.theme, Theme::Own);
        let stream = if is_own { Stream::per_thread(DEVICE).unwrap() } else { self.stream(random) };
        // What was the block's memory before may still be in use, in the order of its stream.
        let ready = Event::new(DEVICE).unwrap();
        ready.record(&block.stream).unwrap();
        stream.wait(&ready).unwrap();
        block.buffer.record_stream(&stream).unwrap();
        self.submit(block, &stream);
        stream
    }

    fn capture(&self, random: &mut Random, held: &mut Vec<Block>) {
        let (pool, stream) = (self.pool(random), Stream::new(DEVICE).unwrap());
        let scope = match pool.capture(&stream) {
            Ok(scope) => scope,
            Err(error) => return self.allow(Kind::Capture, &error, Some(&pool)),
        };
        begin_capture(&stream, CaptureMode::Global).unwrap();
        for _ in 0..1 + random.below(3) {
            let Ok(buffer) = empty(self.program.bytes(random), &stream) else { continue };
            let block = Block::new(buffer, stream.clone(), true);
            submit_using(&stream, &[block.used()]).unwrap();
            if random.below(3) == 0 {
                // Its graph holds it, so nothing else may use it meanwhile.
                held.push(block);
            }
        }
        let graph = end_capture(&stream).expect("nothing invalidates a capture");
        let graph = LiveGraph { graph, memory: scope.end().unwrap() };
        self.graphs.lock().unwrap().push(graph);
    }

    fn reset(&self) {
        let first = { self.graphs.lock().unwrap().pop() };
        if let Some(LiveGraph { graph, memory }) = first {
            drop(graph);
            memory.reset();
        }
    }

    fn replace_pool(&self, random: &mut Random, close: bool) {
        let place = random.below(POOLS);
        let pool = Arc::clone(&self.pools.lock().unwrap()[place]);
        if close {
            pool.close().unwrap();
            return;
        }
        drop(pool);
        if self.program.reserve > 0 && !matches!(self.program.theme, Theme::Reserves) {
            return;
        }
        let new = self.program.pool();
        let old = std::mem::replace(&mut self.pools.lock().unwrap()[place], new);
        drop(old);
    }

    fn step(&self, kind: Kind, random: &mut Random, held: &mut Vec<Block>) {
        let picked = if held.is_empty() { None } else { Some(random.below(held.len())) };
        match (kind, picked) {
            (Kind::Allocate, _) => self.allocate(self.stream(random), random, held),
            (Kind::Once | Kind::OnceApart, _) => {
                let mut block = Vec::new();
                let is_apart = matches!(kind, Kind::OnceApart);
                let stream = if is_apart { Stream::new(DEVICE).unwrap() } else { self.stream(random) };
                self.allocate(stream, random, &mut block);
                block.iter().for_each(|block| self.submit(block, &block.stream));
            }
            (Kind::Use | Kind::UseElsewhere | Kind::FreeElsewhere | Kind::Attach, Some(at))
                if !held[at].is_nameable() => {}
            (Kind::Use, Some(at)) => self.submit(&held[at], &held[at].stream),
            (Kind::UseElsewhere, Some(at)) => drop(self.use_elsewhere(&held[at], random)),
            (Kind::Fill, Some(at)) => {
                if let Err(error) = held[at].buffer.fill(7, &held[at].stream) {
                    assert!(held[at].is_of_pool || !is_asleep(&error), "its pool was not put to sleep: {error}");
                    self.allow(kind, &error, None);
                }
            }
            (Kind::Attach, Some(at)) if held[at].buffer.is_attached() => {}
            (Kind::Attach, Some(at)) => {
                let (shared, stream) = (&held[at], self.stream(random));
                let token = shared.buffer.share(&shared.stream).unwrap();
                let number = shared.number;
                let buffer = attach(&token, None, Some(&stream)).unwrap();
                held.push(Block { number, ..Block::new(buffer, stream, false) });
                self.submit(&held[held.len() - 1], &held[held.len() - 1].stream);
                if random.below(2) == 0 {
                    drop(held.swap_remove(at));
                }
            }
            (Kind::Compute, _) => {
                let stream = self.stream(random);
                let handle = HANDLES.handle(&stream).unwrap();
                // SAFETY: the thread holds the handle until it ends.
                let address = unsafe { workspace_of(handle.as_ptr()) };
                if address != 0 {
                    // Of one stream at a time.
                    let used = UsedBlock { number: 0, address, bytes: WORKSPACE };
                    self.submitted.fetch_max(submit_using(&stream, &[used]).unwrap(), Ordering::Relaxed);
                }
            }
            (Kind::Free, Some(at)) => {
                let is_attached = held.swap_remove(at).buffer.is_attached();
                // A thread of gpupool's own lets it go.
                (0..if is_attached { 100 } else { 0 }).for_each(|_| std::thread::yield_now());
            }
            (Kind::FreeByAddress, Some(at)) if held[at].buffer.is_attached() => drop(held.swap_remove(at)),
            (Kind::FreeByAddress, Some(at)) => deallocate(held.swap_remove(at).buffer.into_ptr(), None).unwrap(),
            (Kind::FreeElsewhere, Some(at)) => {
                let stream = self.use_elsewhere(&held[at], random);
                held.swap_remove(at).buffer.free_on(&stream).unwrap();
            }
            (Kind::PassOn, Some(at)) => {
                let mut block = held.swap_remove(at);
                // Each thread has its streams, and ends them when it likes.
                block.is_stream_gone |= matches!(self.program.theme, Theme::Own);
                self.shelf.lock().unwrap().push_back(block);
            }
            (Kind::TakeOver, _) => {
                let had_peer = self.has_peer.load(Ordering::SeqCst);
                let block = { self.shelf.lock().unwrap().pop_front() };
                if had_peer {
                    block.iter().for_each(|block| self.check_peer(block));
                }
                held.extend(block);
            }
            (Kind::Complete, _) => {
                let number = random.below(self.submitted.load(Ordering::Relaxed) as usize + 2);
                complete(&self.stream(random), number as u64).unwrap();
            }
            (Kind::EmptyCache, _) => drop(empty_cache().unwrap()),
            (Kind::Trim, _) => drop(self.pool(random).trim().unwrap()),
            (Kind::ReplaceStream, _) => {
                let is_foreign = matches!(self.program.theme, Theme::Foreign);
                let new = if is_foreign { foreign_stream() } else { Stream::new(DEVICE).unwrap() };
                let old = std::mem::replace(&mut self.streams.lock().unwrap()[random.below(self.program.streams)], new);
                drop(old);
            }
            (Kind::ReplaceInPlace, _) => {
                let own = self.streams.lock().unwrap()[PLACE.get()].raw();
                replace_stream(own, DEVICE).unwrap();
                let is_of_it = |block: &&mut Block| block.stream.raw() == own;
                held.iter_mut().filter(is_of_it).for_each(|block| block.is_stream_gone = true);
            }
            (Kind::ReplacePool, _) => self.replace_pool(random, false),
            (Kind::ClosePool, _) => self.replace_pool(random, true),
            (Kind::Sleep, _) => {
                if let Err(error) = self.pool(random).sleep(Backup::None) {
                    self.allow(kind, &error, None);
                }
            }
            (Kind::Wake, _) => {
                if let Err(error) = self.pool(random).wake() {
                    self.allow(kind, &error, None);
                }
            }
            (Kind::Capture, _) => self.capture(random, held),
            (Kind::Reset, _) => self.reset(),
            (Kind::EnablePeer, _) => {
                enable_peer_access(DEVICE, self.peer).unwrap();
                self.has_peer.store(true, Ordering::SeqCst);
                held.iter().for_each(|block| self.check_peer(block));
            }
            (Kind::ServeAll, _) => {
                let pool = self.program.pool();
                let scope = pool.enter_all_threads().unwrap();
                let streams = self.streams.lock().unwrap().clone();
                streams.iter().for_each(|stream| drop(empty(512, stream)));
                drop(pool);
                drop(scope);
            }
            (Kind::Look, _) => drop(memory_stats(DEVICE).unwrap()),
            (Kind::Commit | Kind::Decommit | Kind::UsePage | Kind::ReplaceRange, _) => {
                self.step_of_ranges(kind, random)
            }
            (Kind::CommitAny | Kind::DecommitAny, _) => self.step_of_shared_pages(kind, random),
            (_, None) => {}
        }
    }

    fn step_of_ranges(&self, kind: Kind, random: &mut Random) {
        let place = random.below(POOLS);
        if kind == Kind::ReplaceRange {
            let pool = Arc::clone(&self.pools.lock().unwrap()[place]);
            let new = range_of(&pool);
            let old = std::mem::replace(&mut self.ranges.lock().unwrap()[place], new);
            // Another thread that has it uses it for its step alone.
            drop(old);
            return;
        }
        let Some(range) = self.ranges.lock().unwrap().get(place).cloned() else { return };
        let stream = self.stream(random);
        let mut own = PAGES.take();
        let first = place * OWN_PAGES;
        let mut named: Vec<_> = (0..1 + random.below(3)).map(|_| first + random.below(OWN_PAGES)).collect();
        named.sort_unstable();
        named.dedup();
        // Its later work comes after all that used a page before; another one's would not.
        let stream = own[named[0]].held.as_ref().map_or(stream, |(_, stream)| stream.clone());
        let is_of_it = |page: &OwnPage| page.held.as_ref().is_none_or(|(_, other)| other.raw() == stream.raw());
        let pages_of = |named: &[usize], own: &[OwnPage]| named.iter().map(|&at| own[at].page).collect::<Vec<_>>();
        match kind {
            Kind::Commit => {
                named.retain(|&at| is_of_it(&own[at]));
                let fill = (random.below(2) == 0).then_some(7);
                let priority = (random.below(3) == 0).then_some(random.below(2) as i32);
                match range.commit(&pages_of(&named, &own), &stream, CommitOptions { priority, fill }) {
                    Ok(()) => named.iter().for_each(|&at| {
                        let number = || NUMBERS.fetch_add(1, Ordering::Relaxed);
                        own[at].held.get_or_insert_with(|| (number(), stream.clone()));
                        self.use_page(&range, &own[at]);
                    }),
                    Err(error) => self.allow(kind, &error, None),
                }
            }
            Kind::Decommit => {
                let on = (random.below(2) == 0).then_some(&stream);
                match range.decommit(&pages_of(&named, &own), on) {
                    Ok(()) => {
                        named.iter().for_each(|&at| own[at].held = None);
                        // The next thread that has it commits it for a stream of its own.
                        std::mem::swap(&mut own[named[0]].page, &mut self.spare_pages.lock().unwrap()[place]);
                    }
                    Err(error) => self.allow(kind, &error, None),
                }
            }
            _ => self.use_page(&range, &own[named[0]]),
        }
        PAGES.set(own);
    }

    fn step_of_shared_pages(&self, kind: Kind, random: &mut Random) {
        let range = self.ranges.lock().unwrap()[0].clone();
        let (stream, pages) = (self.stream(random), [random.below(2) as u32, random.below(2) as u32]);
        let outcome = match kind {
            Kind::CommitAny => range.commit(&pages, &stream, CommitOptions::default()),
            _ => range.decommit(&pages, Some(&stream)),
        };
        // There is memory for all of them.
        outcome.unwrap();
    }

    /// Uses a page, which is pinned meanwhile, if it is there.
    fn use_page(&self, range: &MemoryRange, OwnPage { page, held }: &OwnPage) {
        let Some((number, stream)) = held.as_ref().filter(|_| self.program.kinds.contains(&Kind::UsePage)) else {
            return;
        };
        if range.pin(&[*page], Some(stream)).unwrap() != [1] {
            return;
        }
        let address = range.ptr() + u64::from(*page) * range.page_bytes();
        let used = UsedBlock { number: *number, address, bytes: range.page_bytes() };
        self.submitted.fetch_max(submit_using(stream, &[used]).unwrap(), Ordering::Relaxed);
        range.unpin(&[*page], Some(stream)).unwrap();
    }

    fn work(&self, place: usize, seed: u64) {
        PLACE.set(place);
        let own = |at: usize| OwnPage { page: (at % OWN_PAGES * THREADS + place) as u32, held: None };
        PAGES.set((0..POOLS * OWN_PAGES).map(own).collect());
        let mut random = Random(seed | 1);
        let mut held = Vec::new();
        for _ in 0..self.program.steps {
            let kind = self.program.kinds[random.below(self.program.kinds.len())];
            if IS_SHOWN.load(Ordering::Relaxed) {
                let blocks: Vec<_> = held.iter().map(|block: &Block| (block.number, block.buffer.ptr())).collect();
                println!("{:?} {kind:?} of {blocks:x?}", std::thread::current().id());
            }
            self.step(kind, &mut random, &mut held);
        }
        // What is left is freed while the thread ends, or by another one.
        if random.below(2) == 0 {
            let mut shelf = self.shelf.lock().unwrap();
            shelf.extend(held);
        }
    }
}

/// Runs the program of a seed; returns what went wrong.
fn try_seed(theme: Theme, seed: u64) -> Result<u64, String> {
    let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1);
    random.below(2);
    let peer = Device::from_ordinal(1 + (seed % 200) as u32);
    let world = Arc::new(World::new(Program::new(theme, &mut random), peer));
    let bodies = (0..THREADS).map(|place| {
        let (world, seed) = (Arc::clone(&world), random.below(usize::MAX) as u64);
        Box::new(move || world.work(place, seed)) as Body
    });
    let outcome = schedule::run(seed, bodies.collect());
    let shelf = std::mem::take(&mut *world.shelf.lock().unwrap());
    let graphs = std::mem::take(&mut *world.graphs.lock().unwrap());
    drop(shelf);
    for LiveGraph { graph, memory } in graphs {
        drop(graph);
        memory.reset();
    }
    let mut wrong = collect_mistakes();
    for pool in world.pools.lock().unwrap().iter().filter(|pool| !pool.is_closed()) {
        let reserved = pool.stats().unwrap().reserved_bytes;
        if reserved < pool.reserve() {
            wrong.push(format!("{reserved} bytes are left of a reserve of {}", pool.reserve()));
        }
    }
    drop(world);
    wrong.extend(collect_mistakes());
    if let Err(panic) = &outcome {
        let text = panic.downcast_ref::<String>().cloned();
        wrong.push(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default());
    }
    let foreign = std::mem::take(&mut *FOREIGN.lock().unwrap());
    let _ = complete_all();
    foreign.into_iter().for_each(|raw| destroy_stream(raw, DEVICE).unwrap());
    if matches!(theme, Theme::Own) && wrong.is_empty() {
        // What was attached is let go by a thread of gpupool's own.
        wait_until("what was attached is let go", || {
            empty_cache().unwrap();
            let total = memory_stats(DEVICE).unwrap().total;
            (total.live_blocks, total.waiting_blocks) == (0, 0)
        });
        HANDLES.trim(None).unwrap();
    }
    let end = complete_all().and_then(|()| empty_cache()).and_then(|_| memory_stats(DEVICE));
    match end {
        Ok(stats) if wrong.is_empty() => {
            let left = (stats.total.live_blocks, stats.total.reserved_bytes, stats.pools, used(0));
            if left != (0, 0, 1, 0) {
                wrong.push(format!("live blocks, reserved bytes, pools and used bytes are left: {left:?}"));
            }
        }
        Ok(_) => {}
        Err(error) => wrong.push(error.to_string()),
    }
    wrong.extend(collect_mistakes());
    if wrong.is_empty() { outcome.map_err(|_| String::new()) } else { Err(wrong.join("\n")) }
}

/// Runs programs of a theme, or those up to that of one seed, which is shown.
fn explore(theme: Theme) {
    let shown = env::var("GPUPOOL_SCHEDULE").ok().map(|seed| seed.parse().expect("the number of a schedule"));
    let seeds = turns(shown.unwrap_or(20)).take_while(|&seed| shown.is_none_or(|shown| seed <= shown));
    collect_mistakes();
    // What is made once is made before threads take turns.
    drop(empty(512, &Stream::new(DEVICE).unwrap()).unwrap());
    let (mut choices, mut done) = (0, 0);
    for seed in seeds {
        IS_SHOWN.store(shown == Some(seed), Ordering::Relaxed);
        match try_seed(theme, seed) {
            Ok(made) => (choices, done) = (choices + made, seed),
            Err(wrong) => panic!("{theme:?}, schedule {seed}: {wrong}"),
        }
    }
    println!("{theme:?}: {done} schedules, {choices} choices");
}

/// A test for each theme: its name, the simulated devices, and the theme.
macro_rules! themes {
    ($($test:ident, host!($($simulated:tt)*), $theme:ident;)*) => {
        $(
            #[test]
            fn $test() {
                host!($($simulated)*);
                explore(Theme::$theme);
            }
        )*
    };
}

themes! {
    memory_that_comes_and_goes, host!(1, MEMORY), Flow;
    memory_of_one_stream_that_is_trimmed, host!(1, MEMORY), Trims;
    no_request_fails_while_enough_is_free, host!(1, TIGHT_MEMORY), Tight;
    pools_closed_in_the_midst, host!(1, MEMORY), Closing;
    pools_with_reserves_that_come_and_go, host!(1, MEMORY), Reserves;
    pools_that_lend_slabs_and_end, host!(1, MEMORY), Lent;
    streams_of_other_code, host!(1, MEMORY), Foreign;
    streams_of_other_code_that_leave_their_addresses_to_others, host!(1, MEMORY), Addresses;
    streams_that_each_thread_alone_can_name, host!(1, MEMORY), Own;
    graphs_that_come_and_go, host!(1, MEMORY), Graphs;
    pools_that_sleep, host!(1, MEMORY), Sleep;
    pools_that_sleep_while_their_memory_serves_others, host!(1, 2 * PAGE), SleepingHelpers;
    peers_that_are_let_in, host!(201, MEMORY), Peers;
    pages_of_ranges_that_come_and_go, host!(1, 12 * PAGE), Ranges;
    pages_of_ranges_that_all_threads_name, host!(1, 12 * PAGE), SharedPages;
    pages_of_ranges_whose_pools_sleep, host!(1, 12 * PAGE), RangesAsleep;
}
