//! What is recorded agrees with what is there: undone event by event, as PyTorch's viewer does, a snapshot leads back to a
//! state that can have been, also while many threads are at work.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::common::memory::{Mapped, builder, deallocate, pool};
use crate::common::{device, on_thread, stream, wait_until};
use gpupool::memory::{MemoryAction, MemoryEvent, MemorySnapshot, allocate, empty_cache};
use gpupool::runtime::host::{complete, submit};
use gpupool::{DeviceBuffer, HandleAction, HandleEvent, Recording, Simulated, StackContext, empty, snapshot};

/// Records for one test, and no longer.
struct Recorded;

impl Recorded {
    fn start(recording: Recording) -> Self {
        empty_cache().unwrap();
        recording.start().unwrap();
        Self
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = Recording::stop();
    }
}

fn taken() -> MemorySnapshot {
    snapshot(None).unwrap().memory
}

fn actions(events: &[MemoryEvent]) -> Vec<MemoryAction> {
    events.iter().map(|event| event.action).collect()
}

/// Segments and blocks of one device, from which events are taken back.
#[derive(Default)]
struct Undone {
    mapped: Mapped,
    /// Blocks that are held, or wait: bytes asked for, and whether it waits.
    blocks: BTreeMap<u64, (u64, bool)>,
}

impl Undone {
    fn new(snapshot: &MemorySnapshot, ordinal: u32) -> Self {
        let mut state = Self::default();
        for segment in snapshot.segments.iter().filter(|segment| segment.location == device(ordinal)) {
            assert_eq!(segment.blocks.iter().map(|block| block.nbytes).sum::<u64>(), segment.nbytes);
            state.map(segment.address, segment.nbytes);
            for block in segment.blocks.iter().filter(|block| block.is_live) {
                state.blocks.insert(block.address, (block.requested, block.is_waiting));
            }
        }
        state
    }

    fn map(&mut self, start: u64, bytes: u64) {
        assert!(self.mapped.map(start, bytes), "{start:#x} is mapped twice: {:x?}", self.mapped);
    }

    fn unmap(&mut self, start: u64, bytes: u64) {
        assert!(self.mapped.unmap(start, bytes), "{start:#x} and {bytes} bytes are mapped: {:x?}", self.mapped);
        let has_blocks = self.blocks.range(start..start + bytes).next().is_some();
        assert!(!has_blocks, "nothing is held in memory that is not mapped yet");
    }

    fn undo(&mut self, event: &MemoryEvent) {
        let address = event.address;
        match event.action {
            MemoryAction::FreeCompleted => {
                let former = self.blocks.insert(address, (event.nbytes, true));
                assert!(former.is_none(), "{event:?}: it is held, {former:?}");
                assert!(self.mapped.has(address, event.nbytes), "{event:?}: it is in a segment");
            }
            MemoryAction::FreeRequested => {
                let block = self.blocks.get_mut(&address).unwrap_or_else(|| panic!("{event:?}: it is there"));
                assert_eq!(*block, (event.nbytes, true), "{event:?}");
                block.1 = false;
            }
            MemoryAction::Alloc => {
                let block = self.blocks.remove(&address);
                assert_eq!(block, Some((event.nbytes, false)), "{event:?}");
            }
            MemoryAction::SegmentMap | MemoryAction::SegmentAlloc => self.unmap(address, event.nbytes),
            MemoryAction::SegmentUnmap | MemoryAction::SegmentFree => self.map(address, event.nbytes),
            _ => {}
        }
    }

    /// Takes all events of a device back.
    fn all(snapshot: &MemorySnapshot, ordinal: u32) -> Self {
        let mut state = Self::new(snapshot, ordinal);
        for event in snapshot.events.iter().filter(|event| event.location == device(ordinal)).rev() {
            state.undo(event);
        }
        state
    }
}

#[test]
fn a_block_s_life_is_three_events_with_the_bytes_asked_for() {
    memory!();
    let stream = stream(0);
    let _recorded = Recorded::start(Recording::new());
    let buffer = empty(100, &stream).unwrap();
    let address = buffer.ptr();
    drop(buffer);
    let events = taken().events;
    assert_eq!(
        actions(&events),
        [
            MemoryAction::SegmentMap,
            MemoryAction::Alloc,
            MemoryAction::FreeRequested,
            MemoryAction::FreeCompleted,
            MemoryAction::Snapshot
        ]
    );
    for event in &events[1..4] {
        assert_eq!((event.address, event.nbytes, event.location), (address, 100, device(0).into()));
        assert_eq!(event.stream, stream.raw().address());
    }
    let times: Vec<_> = events.iter().map(MemoryEvent::unix_micros).collect();
    assert!(times.is_sorted());
}

#[test]
fn a_block_that_another_stream_uses_is_free_when_that_is_done() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    let _recorded = Recorded::start(Recording::new());
    let buffer = empty(1 << 20, &own).unwrap();
    buffer.record_stream(&other).unwrap();
    let work = submit(&other).unwrap();
    drop(buffer);
    let pending = taken();
    assert_eq!(
        actions(&pending.events)[1..],
        [MemoryAction::Alloc, MemoryAction::FreeRequested, MemoryAction::Snapshot]
    );
    let blocks: Vec<_> = pending.segments.iter().flat_map(|segment| &segment.blocks).collect();
    assert!(blocks.iter().any(|block| block.is_waiting && block.requested == 1 << 20));
    complete(&other, work).unwrap();
    // The next request that finds no block asks.
    drop(empty(1 << 20, &own).unwrap());
    let events = taken().events;
    assert!(actions(&events).contains(&MemoryAction::FreeCompleted));
    let state = Undone::all(&taken(), 0);
    assert!(state.blocks.is_empty() && state.mapped.is_empty());
}

#[test]
fn memory_of_before_is_known_when_it_is_freed() {
    memory!();
    let stream = stream(0);
    let before = [empty(100, &stream).unwrap(), empty(3 << 20, &stream).unwrap()];
    let _recorded = Recorded::start(Recording::new());
    drop(before);
    let events = taken().events;
    let freed: Vec<_> = events.iter().filter(|event| event.action == MemoryAction::FreeCompleted).collect();
    assert_eq!(freed.iter().map(|event| event.nbytes).collect::<Vec<_>>(), [100, 3 << 20]);
    assert_eq!(Undone::all(&taken(), 0).blocks.len(), 2);
}

#[test]
fn pages_that_move_leave_one_place_and_come_to_another() {
    memory!();
    let stream = stream(0);
    let _recorded = Recorded::start(Recording::new());
    let buffers: Vec<_> = (0..8).map(|_| empty(2 << 20, &stream).unwrap()).collect();
    // Every second one stays, so that what is free is in pieces.
    let _kept: Vec<_> =
        buffers.into_iter().enumerate().filter(|(place, _)| place % 2 == 0).map(|(_, kept)| kept).collect();
    let _large = empty(8 << 20, &stream).unwrap();
    let snapshot = taken();
    assert!(actions(&snapshot.events).contains(&MemoryAction::SegmentUnmap), "the free pages were moved");
    let mapped: u64 = snapshot.segments.iter().map(|segment| segment.nbytes).sum();
    let sum = |wanted| -> u64 {
        snapshot.events.iter().filter(|event| event.action == wanted).map(|event| event.nbytes).sum()
    };
    assert_eq!(sum(MemoryAction::SegmentMap) - sum(MemoryAction::SegmentUnmap), mapped);
    assert!(Undone::all(&snapshot, 0).mapped.is_empty());
}

#[test]
fn a_segment_that_a_source_supplies_comes_and_goes() {
    memory!();
    let stream = stream(0);
    let _recorded = Recorded::start(Recording::new());
    let pool = builder().segments(true).build().unwrap();
    let scope = pool.enter().unwrap();
    drop(empty(1 << 20, &stream).unwrap());
    drop(scope);
    pool.trim().unwrap();
    let events = taken().events;
    let of_pool: Vec<_> = events.iter().filter(|event| event.pool == pool.id()).copied().collect();
    assert_eq!(
        actions(&of_pool),
        [
            MemoryAction::SegmentAlloc,
            MemoryAction::Alloc,
            MemoryAction::FreeRequested,
            MemoryAction::FreeCompleted,
            MemoryAction::SegmentFree
        ]
    );
}

#[test]
fn only_the_newest_events_are_kept_and_they_are_whole() {
    memory!();
    let stream = stream(0);
    let _recorded = Recorded::start(Recording::new().max_entries(1000));
    let kept: Vec<_> = (0..50).map(|_| empty(512, &stream).unwrap()).collect();
    // A thread that was quick long ago has nothing among the newest, whatever is left in its buffer.
    on_thread(|| drop(empty(512, &crate::common::stream(1)).unwrap()));
    for _ in 0..5000 {
        drop(empty(4096, &stream).unwrap());
    }
    let snapshot = taken();
    assert_eq!(snapshot.events.len(), 1000);
    assert!(snapshot.events.iter().all(|event| event.location == device(0) || event.action == MemoryAction::Snapshot));
    let at_first = Undone::all(&snapshot, 0).blocks.len();
    assert!(at_first.abs_diff(kept.len()) <= 1, "{at_first}: the newest begin anywhere in a block's life");
}

#[test]
fn what_is_left_out_is_not_written() {
    memory!();
    let stream = stream(0);
    let skipped = [MemoryAction::FreeRequested, MemoryAction::SegmentMap, MemoryAction::Snapshot];
    let _recorded = Recorded::start(Recording::new().skip(skipped));
    drop(empty(100, &stream).unwrap());
    assert_eq!(actions(&taken().events), [MemoryAction::Alloc, MemoryAction::FreeCompleted]);
    Recording::new().events(false).context(StackContext::State).start().unwrap();
    drop(empty(100, &stream).unwrap());
    assert!(taken().events.is_empty(), "the state alone has no events");
}

#[test]
fn a_second_start_changes_the_settings_and_keeps_the_events() {
    memory!();
    let stream = stream(0);
    let _recorded = Recorded::start(Recording::new());
    let buffer = empty(100, &stream).unwrap();
    Recording::new().context(StackContext::None).start().unwrap();
    drop(buffer);
    assert_eq!(
        actions(&taken().events)[1..4],
        [MemoryAction::Alloc, MemoryAction::FreeRequested, MemoryAction::FreeCompleted]
    );
    Recording::new().clear_history(true).start().unwrap();
    assert_eq!(actions(&taken().events), [MemoryAction::Snapshot]);
    Recording::stop().unwrap();
    assert!(taken().events.is_empty());
    assert!(Recording::new().max_entries(0).start().is_err());
}

#[test]
fn out_of_memory_is_written_before_callbacks_are_asked() {
    memory!();
    let stream = stream(0);
    let _recorded = Recorded::start(Recording::new());
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let guard = {
        let seen = Arc::clone(&seen);
        gpupool::on_oom(move |_, _| {
            *seen.lock().unwrap() = snapshot(None).unwrap().memory.events;
            false
        })
    };
    let _held = empty(900 << 20, &stream).unwrap();
    assert!(empty(500 << 20, &stream).is_err());
    drop(guard);
    let seen = seen.lock().unwrap();
    let oom = seen.iter().find(|event| event.action == MemoryAction::Oom).expect("it is there");
    assert_eq!(oom.nbytes, 500 << 20);
    assert!(
        oom.address > 0 && oom.address <= crate::common::MEMORY - (900 << 20),
        "what the driver has: {}",
        oom.address
    );
    assert_eq!(actions(&taken().events).iter().filter(|&&action| action == MemoryAction::Oom).count(), 1);
}

/// What a thread of the stress holds.
enum Held {
    Buffer(DeviceBuffer),
    Address(u64),
}

#[test]
fn snapshots_taken_while_sixteen_threads_allocate_agree_with_their_events() {
    memory!();
    let _recorded = Recorded::start(Recording::new().max_entries(20_000));
    let is_over = AtomicBool::new(false);
    /// Lets the threads end, also where a check fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (sender, receiver) = mpsc::channel::<u64>();
    let receiver = std::sync::Mutex::new(receiver);
    let shared = stream(0);
    thread::scope(|scope| {
        for number in 0..16_u64 {
            let (is_over, sender, receiver, shared) = (&is_over, sender.clone(), &receiver, &shared);
            scope.spawn(move || {
                let mut own = stream(0);
                let pool = (number % 4 == 0).then(pool);
                let mut random = number + 1;
                let mut next = move |bound: u64| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) % bound
                };
                let mut held = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    if next(50) == 0 {
                        // A cache that a snapshot under way has not seen.
                        own = stream(0);
                    }
                    let stream = if next(3) == 0 { shared } else { &own };
                    let _scope = pool.as_ref().filter(|_| next(2) == 0).map(|pool| pool.enter().unwrap());
                    let bytes = if next(4) == 0 { 1 + next(3 << 20) } else { 1 + next(9000) };
                    if held.len() < 20 {
                        held.push(match next(3) {
                            0 => Held::Address(allocate(bytes, stream).unwrap()),
                            _ => Held::Buffer(empty(bytes, stream).unwrap()),
                        });
                        continue;
                    }
                    match held.swap_remove(next(held.len() as u64) as usize) {
                        // Freed by whoever comes.
                        Held::Address(address) => sender.send(address).unwrap(),
                        Held::Buffer(buffer) if next(4) == 0 => buffer.free_on(shared).unwrap(),
                        Held::Buffer(buffer) => drop(buffer),
                    }
                    let other = receiver.lock().unwrap().try_recv();
                    if let Ok(address) = other {
                        deallocate(address, None).unwrap();
                    }
                    if next(500) == 0 {
                        empty_cache().unwrap();
                    }
                }
                held.into_iter().for_each(|held| {
                    if let Held::Address(address) = held {
                        deallocate(address, None).unwrap();
                    }
                });
            });
        }
        let _end = End(&is_over);
        let mut events = 0;
        for _ in 0..30 {
            let snapshot = taken();
            events += snapshot.events.len();
            Undone::all(&snapshot, 0);
            // So that the threads get on, however slow the machine is.
            let before = snapshot.events.last().map_or(0, MemoryEvent::unix_micros);
            wait_until("the threads have recorded 200 more events", || {
                taken().events.iter().filter(|event| event.unix_micros() > before).count() >= 200
            });
        }
        assert!(events > 20_000, "{events}");
    });
}

#[test]
fn events_of_threads_that_ended_stay() {
    memory!();
    let _recorded = Recorded::start(Recording::new());
    for _ in 0..20 {
        on_thread(|| drop(empty(512, &crate::common::stream(0)).unwrap()));
    }
    let events = taken().events;
    let mut threads: HashMap<u32, usize> = HashMap::new();
    for event in events.iter().filter(|event| event.action == MemoryAction::Alloc) {
        *threads.entry(event.thread).or_default() += 1;
    }
    assert_eq!(threads.values().sum::<usize>(), 20);
}

fn of_handles(events: &[HandleEvent]) -> Vec<HandleAction> {
    events.iter().filter(|event| event.library == "simulated").map(|event| event.action).collect()
}

#[test]
fn handles_are_taken_and_go_back() {
    memory!();
    let pool = <Simulated as gpupool::Pooled>::pool();
    pool.trim(None).unwrap();
    let _recorded = Recorded::start(Recording::new());
    let used = on_thread(move || {
        let stream = stream(0);
        // The second request is a hit, and no event.
        pool.handle(&stream).unwrap();
        pool.handle(&stream).unwrap().as_ptr().addr()
    });
    let lease = pool.lease(&stream(0)).unwrap();
    lease.discard();
    drop(pool.lease(&stream(0)).unwrap());
    pool.trim(None).unwrap();
    let events = snapshot(Some(device(0))).unwrap().handle_events;
    use HandleAction::{Create, Destroy, Discard, GiveBack, Take};
    assert_eq!(of_handles(&events), [Create, Take, GiveBack, Take, Discard, Create, Take, GiveBack, Destroy, Destroy]);
    assert!(events[..5].iter().all(|event| event.handle == used));
    assert_ne!(events[1].thread, events[3].thread);
    assert!(events.iter().map(HandleEvent::unix_micros).is_sorted());
    assert!(snapshot(Some(device(1))).unwrap().handle_events.is_empty());
}
