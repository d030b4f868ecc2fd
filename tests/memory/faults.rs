//! Each driver call that memory makes fails at each place of one program, once or from there on: every error says which
//! call it was, nothing is handed out twice, and afterwards everything comes back.

use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crate::common::memory::{MIB, deallocate, used};
use crate::common::{device, turns};
use gpupool::memory::{
    SegmentSource, begin_allocate_to_pool, end_allocate_to_pool, pool_use_count, record_stream, release_pool,
};
use gpupool::runtime::host::{
    Call, Fault, begin_capture, clear_faults, complete, complete_all, create_stream, end_capture, inject, submit,
};
use gpupool::runtime::{self, BoundDevice};
use gpupool::{
    CaptureMode, Device, DeviceBuffer, Error, ErrorKind, MemPool, Result, StatusKind, Stream, empty, empty_cache,
    enable_peer_access, graph_pool_handle, memory_stats,
};

/// Little, so that the program fills it.
const MEMORY: u64 = 96 * MIB;
/// One for the program, one as its peer, the others to be used for the first time.
const DEVICES: u32 = 80;
const DEVICE: Device = Device::from_ordinal(0);
/// Every so many-th call of a kind fails whatever time there is.
const FIRST_STEP: u32 = 64;

/// What the program calls, each often. The rest are asked for once per device, or never by memory.
const CALLS: [Call; 19] = [
    Call::CurrentDevice,
    Call::Bind,
    Call::MemoryInfo,
    Call::ExchangeCaptureMode,
    Call::StreamCreate,
    Call::StreamDestroy,
    Call::StreamDevice,
    Call::StreamId,
    Call::StreamQuery,
    Call::StreamCaptureStatus,
    Call::EventRecord,
    Call::EventRecordContext,
    Call::EventQuery,
    Call::EventSynchronize,
    Call::ExtentCreate,
    Call::ExtentRelease,
    Call::MemoryMap,
    Call::MemorySetAccess,
    Call::MemoryUnmap,
];

/// Memory of a user's own: numbers, which gpupool never touches.
#[derive(Debug)]
struct Own {
    next: AtomicU64,
    held: Mutex<Vec<(u64, u64)>>,
}

// SAFETY: the addresses are the test's own, and no memory is behind them but the simulated driver's.
unsafe impl SegmentSource for Own {
    fn allocate(&self, bytes: u64, _stream: &Stream) -> Result<u64> {
        let address = self.next.fetch_add(bytes, Ordering::Relaxed);
        self.held.lock().unwrap().push((address, bytes));
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: u64, _stream: &Stream) -> Result<()> {
        let mut held = self.held.lock().unwrap();
        let place = held.iter().position(|&given| given == (address, bytes)).expect("it comes back once");
        held.swap_remove(place);
        Ok(())
    }
}

/// A block with its number in its first and last bytes, unless its memory is only numbers.
#[derive(Debug)]
struct Held {
    buffer: DeviceBuffer,
    mark: Option<u64>,
}

impl Held {
    fn ends(&self) -> [*mut u64; 2] {
        let start = self.buffer.ptr();
        let last = (start + self.buffer.nbytes().max(8) - 8) & !7;
        [start, last].map(|address| std::ptr::with_exposed_provenance_mut(address as usize))
    }

    fn write(&self) {
        for end in self.ends() {
            // SAFETY: both are inside the block, which has bytes behind it.
            self.mark.into_iter().for_each(|mark| unsafe { end.write_volatile(mark) });
        }
    }

    /// The buffer, which nobody wrote to meanwhile.
    fn take(self) -> DeviceBuffer {
        for end in self.ends() {
            // SAFETY: both are inside the block, which has bytes behind it.
            let found = self.mark.map(|_| unsafe { end.read_volatile() });
            assert_eq!(found, self.mark, "somebody else wrote to a block at {:#x}", self.buffer.ptr());
        }
        self.buffer
    }
}

/// One run of the program: what it holds, and what was refused.
#[derive(Debug, Default)]
struct Run {
    refusals: Vec<Error>,
    held: Vec<Held>,
    marks: u64,
    /// One that stays until the end, when it must be empty.
    pool: Option<MemPool>,
}

impl Run {
    fn try_to<T>(&mut self, outcome: Result<T>) -> Option<T> {
        outcome.map_err(|error| self.refusals.push(error)).ok()
    }

    fn allocate(&mut self, bytes: u64, stream: &Stream) {
        let outcome = empty(bytes, stream);
        self.keep(outcome, true);
    }

    fn keep(&mut self, outcome: Result<DeviceBuffer>, has_bytes: bool) {
        let Some(buffer) = self.try_to(outcome) else { return };
        let (start, end) = (buffer.ptr(), buffer.ptr() + buffer.nbytes());
        for other in &self.held {
            let (first, last) = (other.buffer.ptr(), other.buffer.ptr() + other.buffer.nbytes());
            assert!(end <= first || last <= start, "{start:#x} was handed out twice");
        }
        self.marks += 1;
        let held = Held { buffer, mark: has_bytes.then_some(self.marks << 32 | 0x6661) };
        held.write();
        self.held.push(held);
    }

    /// The oldest block.
    fn take(&mut self) -> Option<DeviceBuffer> {
        (!self.held.is_empty()).then(|| self.held.remove(0).take())
    }

    fn free(&mut self) {
        if let Some(buffer) = self.take() {
            let outcome = deallocate(buffer.into_ptr(), None);
            self.try_to(outcome);
        }
    }

    fn free_all(&mut self) {
        while !self.held.is_empty() {
            self.free();
        }
    }
}

/// The program: everything that memory does, each step with what the steps before it could get.
fn program(run: &mut Run, own: &Arc<Own>) {
    let Some(first) = run.try_to(Stream::new(DEVICE)) else { return };
    let Some(second) = run.try_to(Stream::new(DEVICE)) else { return };

    streams(run, &first, &second);
    growth_and_moves(run, &first, &second);
    threads(run, &first, &second);
    pools(run, &first, &second, own);
    reserves(run, &first, &second);
    foreign_pages(run, &first);
    captures(run, &first, &second);
    run.free_all();
    complete_all().unwrap();
    let outcome = empty_cache();
    run.try_to(outcome);
}

/// Small, medium and large blocks that other streams use.
fn streams(run: &mut Run, first: &Stream, second: &Stream) {
    for bytes in [700, 100 << 10, 5 * MIB] {
        for stream in [first, second, first] {
            run.allocate(bytes, stream);
        }
        let done = submit(second).unwrap();
        if let Some(buffer) = run.take() {
            run.try_to(record_stream(buffer.ptr(), second));
            drop(buffer);
        }
        if let Some(buffer) = run.take() {
            run.try_to(buffer.free_on(second));
        }
        complete(second, done).unwrap();
        run.allocate(bytes, first);
        submit(second).unwrap();
        run.free();
    }
    run.free_all();
}

/// A stream of somebody else's, the same in each run: gpupool does not learn when such a stream ends.
fn theirs() -> &'static Stream {
    static THEIRS: OnceLock<Stream> = OnceLock::new();
    THEIRS.get_or_init(|| {
        let raw = create_stream(DEVICE).unwrap();
        // SAFETY: the stream is never destroyed.
        unsafe { Stream::from_raw_on(raw.as_ptr(), DEVICE).unwrap() }
    })
}

/// A device full of pieces, whose pages go where they are needed, until there are none left.
fn growth_and_moves(run: &mut Run, first: &Stream, second: &Stream) {
    for _ in 0..8 {
        run.allocate(8 * MIB, first);
        run.allocate(2 * MIB, second);
    }
    for _ in 0..6 {
        run.free();
        // Every other one.
        if !run.held.is_empty() {
            run.held.rotate_left(1);
        }
    }
    submit(first).unwrap();
    run.allocate(30 * MIB, second);
    run.allocate(20 * MIB, first);
    // More than there is: all steps, and the error at their end.
    run.allocate(MEMORY - MIB, second);
    // A stream that gpupool may not touch later.
    let theirs = theirs();
    // SAFETY: the stream is never destroyed.
    if let Some(foreign) = run.try_to(unsafe { Stream::from_raw(theirs.raw().as_ptr()) }) {
        run.allocate(MIB, &foreign);
        run.allocate(6 * MIB, &foreign);
        submit(theirs).unwrap();
    }
    run.try_to(enable_peer_access(DEVICE, device(1)));
    run.free_all();
    let outcome = empty_cache();
    run.try_to(outcome);
    run.allocate(70 * MIB, first);
    run.free_all();
}

/// Blocks that one thread makes and another frees, in both directions.
fn threads(run: &mut Run, first: &Stream, second: &Stream) {
    for bytes in [700, 5 * MIB] {
        run.allocate(bytes, first);
        let sent = run.take();
        let (made, freed) = thread::scope(|scope| {
            let there = scope.spawn(|| {
                let made = [first, second].map(|stream| empty(bytes, stream));
                (made, sent.map_or(Ok(()), |buffer| deallocate(buffer.into_ptr(), None)))
            });
            there.join().expect("nothing panics")
        });
        made.into_iter().for_each(|made| run.keep(made, true));
        run.try_to(freed);
        run.free_all();
    }
}

/// A pool of each source, one that is made by its id, and blocks that outlive theirs.
fn pools(run: &mut Run, first: &Stream, second: &Stream, own: &Arc<Own>) {
    let bound = runtime::get().and_then(|runtime| BoundDevice::new(runtime, DEVICE));
    if run.try_to(bound).is_some() {
        // On the current device, which is that again: it is the first.
        let pool = MemPool::builder().limit(40 * MIB).build();
        let pool = run.try_to(pool);
        pool.into_iter().for_each(|pool| one_pool(run, pool, first, second, true));
    }
    let custom = MemPool::builder().device(DEVICE).allocator(Arc::<Own>::clone(own)).build();
    let custom = run.try_to(custom);
    custom.into_iter().for_each(|pool| one_pool(run, pool, first, second, false));

    for id in [graph_pool_handle(true), graph_pool_handle(false)] {
        let begun = begin_allocate_to_pool(DEVICE, id);
        let begun = run.try_to(begun).is_some();
        assert_eq!(pool_use_count(DEVICE, id).unwrap(), begun.then_some(1));
        run.allocate(5 * MIB, first);
        if begun {
            end_allocate_to_pool(DEVICE, id).expect("it was begun");
            run.try_to(release_pool(DEVICE, id));
            assert!(pool_use_count(DEVICE, id).unwrap_err().to_string().contains("is gone"));
        }
        run.free_all();
    }
}

fn one_pool(run: &mut Run, pool: MemPool, first: &Stream, second: &Stream, has_bytes: bool) {
    for bytes in [700, 5 * MIB, 12 * MIB] {
        {
            let _scope = pool.enter().expect("this thread lives");
            assert_eq!(pool.use_count(), 2);
            for stream in [first, second] {
                let outcome = empty(bytes, stream);
                assert!(outcome.as_ref().map_or(true, |buffer| buffer.pool_id() == pool.id()));
                run.keep(outcome, has_bytes);
            }
        }
        submit(second).unwrap();
        if let Some(buffer) = run.take() {
            run.try_to(buffer.free_on(second));
        }
        run.try_to(pool.trim());
    }
    let token = pool.token();
    let made = thread::scope(|scope| {
        let there = scope.spawn(|| {
            let _scope = token.enter().expect("the pool lives");
            empty(6 * MIB, first)
        });
        there.join().expect("nothing panics")
    });
    run.keep(made, has_bytes);
    assert_eq!(pool.use_count(), 1);
    run.free();
    drop(pool);
    // The rest outlives it.
    complete_all().unwrap();
    run.free_all();
}

/// Pools with a reserve: one that has it beside what others keep free, one that there is no room for, and one that
/// blocks outlive.
fn reserves(run: &mut Run, first: &Stream, second: &Stream) {
    run.allocate(60 * MIB, first);
    run.free();
    let reserve = |bytes| MemPool::builder().device(DEVICE).reserve(bytes).build();
    if let Some(pool) = run.try_to(reserve(70 * MIB)) {
        assert_eq!(pool.stats().expect("it asks the driver nothing").reserved_bytes, 70 * MIB);
        run.try_to(reserve(40 * MIB));
        let scope = pool.enter().expect("this thread lives");
        for bytes in [700, 20 * MIB] {
            run.allocate(bytes, first);
            run.allocate(bytes, second);
        }
        submit(second).unwrap();
        run.free_all();
        run.allocate(60 * MIB, first);
        run.free();
        run.try_to(pool.trim());
        // Beside the reserve.
        run.allocate(8 * MIB, second);
        run.allocate(64 * MIB, first);
        drop(scope);
    }
    complete_all().unwrap();
    run.free_all();
}

/// A pool that takes what the default pool keeps free.
fn foreign_pages(run: &mut Run, first: &Stream) {
    run.allocate(80 * MIB, first);
    run.free();
    let pool = MemPool::builder().device(DEVICE).build();
    run.pool = run.try_to(pool);
    let scope = run.pool.as_ref().map(|pool| pool.enter().expect("this thread lives"));
    run.allocate(70 * MIB, first);
    drop(scope);
    run.free();
}

/// A capture that is ended, and one that fails, with work of other streams beside them.
fn captures(run: &mut Run, first: &Stream, second: &Stream) {
    let Some(pool) = run.try_to(MemPool::builder().device(DEVICE).build()) else { return };
    for fails in [false, true] {
        run.allocate(4 * MIB, first);
        run.free();
        let scope = pool.capture(first).expect("this thread lives");
        begin_capture(first, CaptureMode::Global).unwrap();
        assert_eq!(pool.use_count(), 2);
        run.allocate(700, first);
        run.allocate(5 * MIB, first);
        run.free();
        let outside = thread::scope(|scope| {
            let there = scope.spawn(|| (empty(9 * MIB, second), empty_cache()));
            there.join().expect("nothing panics")
        });
        run.keep(outside.0, true);
        run.try_to(outside.1);
        end_capture(first).expect("nothing spoils a capture");
        if fails {
            drop(scope);
        } else {
            let graph = scope.end().expect("on its own thread");
            run.try_to(pool.trim());
            run.allocate(5 * MIB, second);
            assert_eq!(pool.use_count(), 2);
            graph.reset();
        }
        assert_eq!(pool.use_count(), 1);
        run.free_all();
    }
    drop(pool);
}

/// Each error is one of memory that ran out, or names the call that was made to fail.
fn check_refusals(run: &Run, fault: Option<Fault>) {
    for error in &run.refusals {
        match error.kind() {
            ErrorKind::OutOfMemory(_) => {}
            ErrorKind::Library(refused) => {
                let fault = fault.unwrap_or_else(|| panic!("{error} without a fault"));
                assert_eq!(refused.function, format!("{:?}", fault.call), "{error}");
            }
            _ => panic!("{fault:?}: {error}"),
        }
    }
}

/// Runs the program on a thread of its own, and answers whether the fault came.
fn run_with(fault: Option<Fault>) -> bool {
    crate::common::on_thread(move || {
        let own = Arc::new(Own { next: AtomicU64::new(1 << 36), held: Mutex::default() });
        let before = used(0);
        let mut run = Run::default();
        fault.into_iter().for_each(inject);
        program(&mut run, &own);
        let left = clear_faults();
        check_refusals(&run, fault);
        run.free_all();
        complete_all().unwrap();
        let emptied = empty_cache();
        assert!(emptied.is_ok(), "{fault:?}: {emptied:?}");
        if let Some(pool) = run.pool.take() {
            assert_eq!((pool.stats().unwrap().reserved_bytes, pool.use_count()), (0, 1), "{fault:?}");
        }
        let stats = memory_stats(DEVICE).unwrap();
        let total = stats.total;
        let live = (total.live_blocks, total.live_bytes, total.requested_bytes, total.waiting_blocks);
        assert_eq!((live, total.reserved_bytes, stats.pools), ((0, 0, 0, 0), 0, 1), "{fault:?}");
        assert_eq!(used(0), before, "{fault:?}");
        assert_eq!(*own.held.lock().unwrap(), [], "{fault:?}");
        fault.is_some_and(|fault| left < fault.times)
    })
}

/// The program with a fault at each call of these kinds, up to the last that it makes: first at every so many-th, then
/// at those in the middle between them, as far as the test's time allows.
fn fail_each(cases: &[(Call, StatusKind)], times: u32) {
    let mut time = turns(1);
    for step in iter::successors(Some(FIRST_STEP), |step| (*step > 1).then_some(step / 2)) {
        let is_first = step == FIRST_STEP;
        for &(call, kind) in cases {
            for after in (if is_first { 0 } else { step }..).step_by(if is_first { step } else { 2 * step } as usize) {
                if !is_first && time.next().is_none() {
                    return;
                }
                let came = run_with(Some(Fault { call, kind, after, times }));
                assert!(came || after > 0, "the program makes no {call:?}");
                if !came {
                    break;
                }
            }
        }
    }
}

#[test]
fn the_program_does_what_it_is_to_fail_in() {
    host!(DEVICES, MEMORY);
    theirs();
    let before = memory_stats(DEVICE).unwrap();
    assert!(!run_with(None));
    let after = memory_stats(DEVICE).unwrap();
    assert!(after.moved_pages > before.moved_pages && after.total.peak_reserved_bytes >= MEMORY, "{after:?}");
    assert_eq!(after.total.allocations - before.total.allocations, after.total.frees - before.total.frees);
}

#[test]
fn any_one_call_may_fail() {
    host!(DEVICES, MEMORY);
    theirs();
    fail_each(&CALLS.map(|call| (call, StatusKind::Other)), 1);
}

#[test]
fn any_one_call_may_find_no_memory() {
    host!(DEVICES, MEMORY);
    theirs();
    let calls = [Call::EventRecord, Call::ExtentCreate, Call::MemoryMap, Call::MemorySetAccess, Call::MemoryUnmap];
    fail_each(&calls.map(|call| (call, StatusKind::OutOfMemory)), 1);
}

#[test]
fn any_call_may_fail_from_some_time_on() {
    host!(DEVICES, MEMORY);
    theirs();
    let mut cases = CALLS.map(|call| (call, StatusKind::Other)).to_vec();
    cases.extend(
        [Call::ExtentCreate, Call::MemoryMap, Call::MemorySetAccess].map(|call| (call, StatusKind::OutOfMemory)),
    );
    fail_each(&cases, u32::MAX);
}

#[test]
fn a_device_whose_first_use_failed_works_the_next_time() {
    host!(DEVICES, MEMORY);
    theirs();
    let mut fresh = (2..DEVICES).map(device);
    let calls = [
        Call::Bind,
        Call::ExchangeCaptureMode,
        Call::PageBytes,
        Call::AddressReserve,
        Call::ExtentCreate,
        Call::EventCreate,
    ];
    for call in calls {
        let mut came = 0;
        for after in 0.. {
            let unused = fresh.next().expect("there are enough devices");
            let (stream, user) = (Stream::legacy(unused).unwrap(), Stream::per_thread(unused).unwrap());
            inject(Fault { call, kind: StatusKind::Other, after, times: 1 });
            // A block that another stream uses, so that an event is made too.
            let outcome = empty(5 * MIB, &stream).and_then(|block| {
                submit(&user)?;
                block.free_on(&user)
            });
            let left = clear_faults();
            if let Err(error) = outcome {
                let ErrorKind::Library(refused) = error.kind() else { panic!("{call:?} {after}: {error}") };
                assert_eq!(refused.function, format!("{call:?}"));
                drop(empty(5 * MIB, &stream).unwrap());
            }
            complete_all().unwrap();
            empty_cache().unwrap();
            let stats = memory_stats(unused).unwrap();
            assert_eq!((stats.total.live_blocks, stats.total.reserved_bytes, stats.pools), (0, 0, 1));
            assert_eq!(used(unused.ordinal() as u32), 0, "{call:?} {after}");
            if left > 0 {
                break;
            }
            came += 1;
        }
        assert!(came > 0, "the first use makes no {call:?}");
    }
}

/// The driver's plain allocations: a refused one takes nothing.
#[test]
fn segments_that_the_driver_refuses_take_nothing() {
    host!(DEVICES, MEMORY);
    theirs();
    let stream = Stream::new(DEVICE).unwrap();
    let pool = MemPool::builder().device(DEVICE).segments(true).build().unwrap();
    let scope = pool.enter().unwrap();
    for kind in [StatusKind::Other, StatusKind::OutOfMemory] {
        inject(Fault { call: Call::MemoryAllocate, kind, after: 0, times: u32::MAX });
        let error = empty(5 * MIB, &stream).map(drop).unwrap_err();
        assert!(error.to_string().contains("MemoryAllocate"), "{error}");
        clear_faults();
        assert_eq!((pool.stats().unwrap().reserved_bytes, used(0)), (0, 0));
        inject(Fault { call: Call::MemoryAllocate, kind, after: 0, times: 1 });
        // Asked once more, after what is free was given back.
        drop(empty(5 * MIB, &stream).unwrap());
        clear_faults();
        assert_eq!(pool.trim().unwrap(), 6 * MIB);
    }
    drop((scope, pool));
    assert_eq!((used(0), memory_stats(DEVICE).unwrap().pools), (0, 1));
}

#[test]
fn a_refusal_on_one_device_leaves_the_others_caches_to_be_emptied() {
    host!(DEVICES, MEMORY);
    theirs();
    let elsewhere = device(1);
    drop(empty(5 * MIB, &Stream::new(DEVICE).unwrap()).unwrap());
    drop(empty(5 * MIB, &Stream::new(elsewhere).unwrap()).unwrap());
    inject(Fault { call: Call::ExtentRelease, kind: StatusKind::Other, after: 0, times: 1 });
    empty_cache().unwrap_err();
    assert_eq!(clear_faults(), 0);
    assert_eq!(memory_stats(elsewhere).unwrap().total.reserved_bytes, 0);
    empty_cache().unwrap();
    assert_eq!(memory_stats(DEVICE).unwrap().total.reserved_bytes, 0);
}

#[test]
fn memory_that_the_driver_did_not_take_back_is_given_back_later() {
    host!(DEVICES, MEMORY);
    theirs();
    let (stream, before) = (Stream::new(DEVICE).unwrap(), used(0));
    for call in [Call::MemoryFree, Call::Bind, Call::ExchangeCaptureMode] {
        let pool = MemPool::builder().device(DEVICE).segments(true).build().unwrap();
        let scope = pool.enter().unwrap();
        drop(empty(6 * MIB, &stream).unwrap());
        drop(scope);
        inject(Fault { call, kind: StatusKind::Other, after: 0, times: 1 });
        pool.trim().unwrap_err();
        assert_eq!(clear_faults(), 0, "{call:?}");
        assert_eq!(pool.stats().unwrap().reserved_bytes, 6 * MIB, "{call:?}");
        assert_eq!(pool.trim().unwrap(), 6 * MIB, "{call:?}");
        assert_eq!(used(0), before, "{call:?}");
    }
}

/// Gives addresses that nobody has, and takes none back.
#[derive(Debug)]
struct KeepsAll;

// SAFETY: the addresses are the test's own, and no memory is behind them but the simulated driver's.
unsafe impl SegmentSource for KeepsAll {
    fn allocate(&self, _bytes: u64, _stream: &Stream) -> Result<u64> {
        Ok(0xa_0000_0000)
    }

    unsafe fn free(&self, _address: u64, _bytes: u64, _stream: &Stream) -> Result<()> {
        Err(Error::refused("theirs", "free", "NO", 7, StatusKind::Other))
    }
}

#[test]
fn what_another_pools_allocator_refuses_ends_no_request() {
    host!(DEVICES, MEMORY);
    theirs();
    let stream = Stream::new(DEVICE).unwrap();
    let other = MemPool::builder().device(DEVICE).allocator(Arc::new(KeepsAll)).build().unwrap();
    let scope = other.enter().unwrap();
    drop(empty(MIB, &stream).unwrap());
    drop(scope);
    let held = Arc::new(Mutex::new(Some(empty(80 * MIB, &stream).unwrap())));
    let given_up = Arc::clone(&held);
    let callback = gpupool::on_oom(move |_, _| given_up.lock().unwrap().take().is_some());
    // The last step of all serves it.
    let served = empty(60 * MIB, &stream).unwrap();
    assert!(held.lock().unwrap().is_none());
    drop((served, callback, other));
    empty_cache().unwrap();
}
