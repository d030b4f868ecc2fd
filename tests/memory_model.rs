//! Random programs against a naive model: no two live blocks overlap, no block is handed out before its stream order
//! allows, what was written stays, and every byte comes back, whatever the driver refuses on the way.

mod common;

use std::collections::HashMap;

use common::{device, host, stream};
use gpupool::memory::{PoolScope, memory_stats};
use gpupool::runtime::host::{Call, Fault, clear_faults, complete, complete_all, completed, inject, submit};
use gpupool::{DeviceBuffer, MemPool, StatusKind, Stream, empty, empty_cache};
use proptest::prelude::*;

const STREAMS: usize = 3;
const POOLS: usize = 2;
const FAULTS: [Call; 9] = [
    Call::PhysicalCreate,
    Call::PhysicalRelease,
    Call::MemoryMap,
    Call::MemorySetAccess,
    Call::MemoryUnmap,
    Call::EventCreate,
    Call::EventRecord,
    Call::EventQuery,
    Call::StreamCaptureStatus,
];

#[derive(Clone, Debug)]
enum Step {
    Allocate { bytes: u64, stream: usize, pool: Option<usize> },
    Free { block: usize },
    FreeOn { block: usize, stream: usize },
    RecordStream { block: usize, stream: usize },
    Submit { stream: usize },
    Complete { stream: usize, part: u64 },
    Trim { pool: usize },
    EmptyCache,
    DropPool { pool: usize },
    Fault { call: usize, out_of_memory: bool, after: u32 },
    ClearFaults,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![1..65_536_u64, 65_536..2_000_000_u64, 2_000_000..60_000_000_u64];
    let pool = prop_oneof![2 => Just(None), 1 => (0..POOLS).prop_map(Some)];
    prop_oneof![
        12 => (bytes, 0..STREAMS, pool).prop_map(|(bytes, stream, pool)| Step::Allocate { bytes, stream, pool }),
        7 => any::<usize>().prop_map(|block| Step::Free { block }),
        2 => (any::<usize>(), 0..STREAMS).prop_map(|(block, stream)| Step::FreeOn { block, stream }),
        2 => (any::<usize>(), 0..STREAMS).prop_map(|(block, stream)| Step::RecordStream { block, stream }),
        4 => (0..STREAMS).prop_map(|stream| Step::Submit { stream }),
        3 => (0..STREAMS, 0..4_u64).prop_map(|(stream, part)| Step::Complete { stream, part }),
        1 => (0..POOLS).prop_map(|pool| Step::Trim { pool }),
        1 => Just(Step::EmptyCache),
        1 => (0..POOLS).prop_map(|pool| Step::DropPool { pool }),
        1 => (0..FAULTS.len(), any::<bool>(), 0..4_u32)
            .prop_map(|(call, out_of_memory, after)| Step::Fault { call, out_of_memory, after }),
        2 => Just(Step::ClearFaults),
    ]
}

/// A live block, its pattern, and the further streams that use it.
struct Block {
    buffer: DeviceBuffer,
    stream: usize,
    seed: u8,
    uses: Vec<usize>,
}

/// Memory that was freed: whoever gets it may use it only once this work is done, unless on the same stream.
struct Freed {
    start: u64,
    end: u64,
    stream: usize,
    /// Work on the stream it was allocated on, which orders its reuse there.
    own: u64,
    /// Work that must be done before anybody uses it.
    others: Vec<(usize, u64)>,
}

struct Model {
    streams: Vec<Stream>,
    pools: Vec<Option<MemPool>>,
    submitted: [u64; STREAMS],
    completed: [u64; STREAMS],
    live: Vec<Block>,
    freed: Vec<Freed>,
    next_seed: u8,
}

/// The bytes that are written and checked: all of a small block, the ends and the middle of a large one.
fn places(bytes: u64) -> impl Iterator<Item = u64> {
    let step = (bytes / 64).max(1);
    (0..bytes).step_by(step as usize).chain([bytes - 1])
}

fn write(buffer: &DeviceBuffer, seed: u8) {
    for place in places(buffer.nbytes()) {
        let address = (buffer.address() + place) as usize;
        // SAFETY: the simulated device's memory is this process's, and the place is inside a live block.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write(seed ^ place as u8) };
    }
}

fn check(buffer: &DeviceBuffer, seed: u8) {
    for place in places(buffer.nbytes()) {
        let address = (buffer.address() + place) as usize;
        // SAFETY: as in `write`.
        let found = unsafe { std::ptr::with_exposed_provenance::<u8>(address).read() };
        assert_eq!(found, seed ^ place as u8, "byte {place} of a block of {}", buffer.nbytes());
    }
}

impl Model {
    fn allocate(&mut self, bytes: u64, stream: usize, pool: Option<usize>) {
        let scope: Option<PoolScope> =
            pool.and_then(|pool| self.pools[pool].as_ref()).map(|pool| pool.enter().unwrap());
        let outcome = empty(bytes, &self.streams[stream]);
        drop(scope);
        // Faults and a full device are refused with a typed error, which is checked by reaching here.
        let Ok(buffer) = outcome else { return };
        let (start, end) = (buffer.address(), buffer.address() + bytes);
        assert!(start.is_multiple_of(512));
        for other in &self.live {
            let (from, to) = (other.buffer.address(), other.buffer.address() + other.buffer.nbytes());
            assert!(end <= from || to <= start, "two live blocks overlap");
        }
        // A request may wait for streams where memory is short, which completes their work.
        self.look_at_streams();
        for freed in self.freed.iter().filter(|freed| freed.start < end && start < freed.end) {
            let is_done = |&(stream, work): &(usize, u64)| self.completed[stream] >= work;
            assert!(freed.others.iter().all(is_done), "handed out before another stream was done with it");
            assert!(
                freed.stream == stream || is_done(&(freed.stream, freed.own)),
                "handed out before its stream was done"
            );
        }
        self.freed.retain(|freed| freed.end <= start || end <= freed.start);
        self.next_seed = self.next_seed.wrapping_add(37);
        write(&buffer, self.next_seed);
        self.live.push(Block { buffer, stream, seed: self.next_seed, uses: Vec::new() });
    }

    /// What the simulated streams have completed, also because a request waited for it.
    fn look_at_streams(&mut self) {
        for (index, stream) in self.streams.iter().enumerate() {
            self.completed[index] = completed(stream).unwrap();
        }
    }

    fn take(&mut self, block: usize) -> Option<Block> {
        (!self.live.is_empty()).then(|| self.live.swap_remove(block % self.live.len()))
    }

    fn note_freed(&mut self, block: &Block, also: Option<usize>) {
        let start = block.buffer.address();
        let work = |stream: usize| (stream, self.submitted[stream]);
        self.freed.push(Freed {
            start,
            end: start + block.buffer.nbytes(),
            stream: block.stream,
            own: self.submitted[block.stream],
            // What its own stream does needs no more than its order.
            others: block.uses.iter().copied().chain(also).filter(|&stream| stream != block.stream).map(work).collect(),
        });
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Allocate { bytes, stream, pool } => self.allocate(bytes, stream, pool),
            Step::Free { block } => {
                if let Some(block) = self.take(block) {
                    check(&block.buffer, block.seed);
                    self.note_freed(&block, None);
                }
            }
            Step::FreeOn { block, stream } => {
                if let Some(block) = self.take(block) {
                    check(&block.buffer, block.seed);
                    self.note_freed(&block, Some(stream));
                    let _ = block.buffer.free_on(&self.streams[stream]);
                }
            }
            Step::RecordStream { block, stream } => {
                if !self.live.is_empty() {
                    let place = block % self.live.len();
                    let block = &mut self.live[place];
                    block.buffer.record_stream(&self.streams[stream]).unwrap();
                    block.uses.push(stream);
                }
            }
            Step::Submit { stream } => self.submitted[stream] = submit(&self.streams[stream]).unwrap(),
            Step::Complete { stream, part } => {
                let until = self.completed[stream] + (self.submitted[stream] - self.completed[stream]) * part / 3;
                complete(&self.streams[stream], until).unwrap();
                self.completed[stream] = self.completed[stream].max(until);
            }
            Step::Trim { pool } => {
                if let Some(pool) = &self.pools[pool] {
                    let _ = pool.trim();
                }
            }
            Step::EmptyCache => {
                let _ = empty_cache();
            }
            // Blocks of it stay alive.
            Step::DropPool { pool } => self.pools[pool] = None,
            Step::Fault { call, out_of_memory, after } => {
                let kind = if out_of_memory { StatusKind::OutOfMemory } else { StatusKind::Other };
                inject(Fault { call: FAULTS[call], kind, after, times: 2 });
            }
            Step::ClearFaults => clear_faults(),
        }
    }
}

fn live_requested() -> (u64, u64) {
    let total = memory_stats(device(0)).unwrap().total;
    (total.live_blocks - total.waiting_blocks, total.requested_bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_keep_every_promise(steps in prop::collection::vec(step(), 1..160)) {
        let _host = host();
        let pool = || Some(MemPool::builder().device(device(0)).build().unwrap());
        let mut model = Model {
            streams: (0..STREAMS).map(|_| stream(0)).collect(),
            pools: (0..POOLS).map(|_| pool()).collect(),
            submitted: [0; STREAMS],
            completed: [0; STREAMS],
            live: Vec::new(),
            freed: Vec::new(),
            next_seed: 0,
        };
        for step in &steps {
            model.run(step);
        }
        clear_faults();
        let sizes: HashMap<u64, u64> = model.live.iter().map(|block| (block.buffer.address(), block.buffer.nbytes())).collect();
        prop_assert_eq!(live_requested().0, sizes.len() as u64);
        for block in model.live.drain(..) {
            check(&block.buffer, block.seed);
        }
        complete_all().unwrap();
        model.pools.clear();
        empty_cache().unwrap();
        // What was retired by the first is unmapped by the second.
        empty_cache().unwrap();
        let stats = memory_stats(device(0)).unwrap();
        prop_assert_eq!((stats.total.live_blocks, stats.total.requested_bytes, stats.total.reserved_bytes, stats.pools), (0, 0, 0, 1));
    }
}
