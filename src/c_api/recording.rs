//! What the allocator did and has, for C: events, as structs of C's, and the observer that is called for each; which of them
//! are recorded, with stacks that the program takes; and snapshots.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::blocks::Block;
use super::header::{Callback, SizedStruct, c_struct, read};
use crate::error::Result;
use crate::ids::MemoryLocation;
use crate::memory::cache::{MemoryAction, MemoryEvent};
use crate::memory::plug::call::{null, one_or_all, pointer, run};
use crate::memory::pool::{PoolId, SegmentEvent, SegmentEventKind};
use crate::memory::report::{self, BlockView, MemorySnapshot, SegmentView};
use crate::observe::recording::{self, Purpose, Settings, Stack, StackCallback};

c_struct! {
    /// `gpupool_event`: one thing that the allocator did.
    pub struct Event as "gpupool_event" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// A `gpupool_action`.
        pub action: c_int,
        /// The device.
        pub device: c_int,
        /// The start address of the block or the pages; for an OOM the bytes that the driver still had.
        pub address: u64,
        /// Their size in bytes.
        pub bytes: u64,
        /// The stream whose requests the memory serves.
        pub stream: *mut c_void,
        /// The pool.
        pub pool: PoolId,
        /// Microseconds since 1970.
        pub unix_micros: u64,
        /// The stack; 0 for none.
        pub stack: u32,
    }
}

/// Called for an event.
pub type Observer = unsafe extern "C" fn(*mut c_void, *const Event);

impl From<&MemoryEvent> for Event {
    fn from(event: &MemoryEvent) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            action: event.action as c_int,
            device: event.location.number() as c_int,
            address: event.address,
            bytes: event.nbytes,
            stream: pointer(event.stream as u64),
            pool: event.pool,
            unix_micros: event.unix_micros(),
            stack: number_of(event.stack),
        }
    }
}

impl From<&SegmentEvent> for Event {
    fn from(event: &SegmentEvent) -> Self {
        let action = match event.kind {
            SegmentEventKind::Added => MemoryAction::SegmentAlloc,
            SegmentEventKind::Removed => MemoryAction::SegmentFree,
        };
        Self {
            size: size_of::<Self>() as u64,
            action: action as c_int,
            device: event.device.number(),
            address: event.address,
            bytes: event.nbytes,
            stream: ptr::null_mut(),
            pool: event.pool,
            unix_micros: recording::unix_micros(recording::now()),
            stack: 0,
        }
    }
}

impl Callback<Observer> {
    pub(super) fn call(&self, event: &Event) {
        // SAFETY: the program that registered the function promises that it may be called so until it is removed.
        unsafe { (self.function)(self.context, event) };
    }
}

pub(super) unsafe extern "C" fn observe(observer: Option<Observer>, context: *mut c_void) -> c_int {
    run(|| {
        let _changes = recording::lock_changes();
        match observer.map(|function| Callback { function, context }) {
            Some(observer) => report::begin_observing(Arc::new(move |event| {
                if event.location.device().is_some() {
                    observer.call(&event.into());
                }
            })),
            None => report::end_observing(),
        }
        Ok(())
    })
}

/// Returns the number of the calling thread's stack, whose highest bit is set; 0 for none. The argument says whether
/// the stack is that of a free.
pub type TakeStack = unsafe extern "C" fn(c_int) -> u32;

c_struct! {
    /// `gpupool_recording`: the settings of a recording.
    pub struct Recording as "gpupool_recording" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// How many of the newest events are kept.
        pub most_events: u64,
        /// Whether to record the stack of each live block.
        pub live_stacks: c_int,
        /// Whether to record the stack of each recorded allocation.
        pub alloc_stacks: c_int,
        /// Whether to record the stack of each recorded free.
        pub free_stacks: c_int,
        /// A bit, `1 << action`, for each action that is not recorded.
        pub skipped_actions: u32,
        /// Called while gpupool holds no lock; none for no stacks.
        pub take_stack: Option<TakeStack>,
        /// Whether to discard earlier events.
        pub forget: c_int,
    }
}

// SAFETY: numbers and a function that may be none, the size first.
unsafe impl SizedStruct for Recording {}

/// Returns the calling thread's stack, as the program numbers it.
fn take_stack(function: TakeStack, purpose: Purpose) -> Stack {
    // SAFETY: the program that registered it promises that any thread may call it.
    let stack = Stack(unsafe { function(c_int::from(purpose == Purpose::Free)) });
    if stack.is_of_plug() { stack } else { Stack::NONE }
}

/// Returns the number by which the program knows a stack; 0 for one that it did not take.
pub(super) const fn number_of(stack: Stack) -> u32 {
    if stack.is_of_plug() { stack.0 } else { 0 }
}

pub(super) unsafe extern "C" fn record(recording: *const Recording) -> c_int {
    run(|| {
        if recording.is_null() {
            let _changes = recording::lock_changes();
            report::end_recording_with_stacks();
            return Ok(());
        }
        // SAFETY: the caller passes a recording of its version, whose size it has set.
        let wanted = unsafe { read(recording) }?;
        let has_stacks = wanted.take_stack.is_some();
        let settings = Settings {
            has_events: wanted.most_events > 0,
            has_live_stacks: has_stacks && wanted.live_stacks != 0,
            has_alloc_stacks: has_stacks && wanted.alloc_stacks != 0,
            has_free_stacks: has_stacks && wanted.free_stacks != 0,
            skipped: wanted.skipped_actions as u16,
        };
        let _changes = recording::lock_changes();
        let callback = |function| -> StackCallback { Arc::new(move |purpose| take_stack(function, purpose)) };
        recording::set_stack_callback(wanted.take_stack.map(callback));
        if wanted.forget != 0 {
            recording::forget_events();
        }
        report::begin_recording(settings, usize::try_from(wanted.most_events).unwrap_or(usize::MAX));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn visit_stacks(
    context: *mut c_void,
    visit: Option<unsafe extern "C" fn(*mut c_void, u32)>,
) -> c_int {
    run(|| {
        let visit = visit.ok_or_else(|| null("visit"))?;
        for stack in report::stacks_in_use().into_iter().filter(|stack| stack.is_of_plug()) {
            // SAFETY: the caller passes a function that takes this context.
            unsafe { visit(context, stack.0) };
        }
        Ok(())
    })
}

c_struct! {
    /// `gpupool_segment`: contiguous memory of one pool and one stream.
    pub struct Segment as "gpupool_segment" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// The device.
        pub device: c_int,
        /// The start address.
        pub address: *mut c_void,
        /// The size in bytes.
        pub bytes: u64,
        /// The stream whose requests it serves.
        pub stream: *mut c_void,
        /// The pool that it belongs to.
        pub pool: PoolId,
        /// Whether its pages can be moved.
        pub is_movable: c_int,
        /// Whether all its blocks are small.
        pub is_small: c_int,
        /// The stack of the request that it was allocated for, if recorded; otherwise 0.
        pub stack: u32,
    }
}

c_struct! {
    /// `gpupool_snapshot_visitor`: what [`Api::snapshot`](super::Api::snapshot) calls.
    pub struct SnapshotVisitor as "gpupool_snapshot_visitor" {
        /// The size of this struct, in bytes.
        pub size: u64,
        /// The first argument of the functions.
        pub context: *mut c_void,
        /// Called for each segment.
        pub segment: Option<unsafe extern "C" fn(*mut c_void, *const Segment)>,
        /// Called for each block of the segment.
        pub block: Option<unsafe extern "C" fn(*mut c_void, *const Block)>,
        /// Called for each event, after all segments.
        pub event: Option<unsafe extern "C" fn(*mut c_void, *const Event)>,
    }
}

// SAFETY: numbers, pointers and functions that may be none, the size first.
unsafe impl SizedStruct for SnapshotVisitor {}

impl SnapshotVisitor {
    /// Calls one of the functions, if there is one.
    ///
    /// # Safety
    /// It is the visitor's, and takes its context.
    unsafe fn call<T>(&self, function: Option<unsafe extern "C" fn(*mut c_void, *const T)>, of: &T) {
        if let Some(function) = function {
            // SAFETY: the caller promises that the function takes this context.
            unsafe { function(self.context, of) };
        }
    }
}

/// Splits movable memory into slabs and what is between them: a segment of PyTorch's has either small or large blocks, and
/// its statistics are separate for the two.
fn by_kind(view: SegmentView) -> Vec<SegmentView> {
    if !view.is_movable {
        return vec![view];
    }
    let SegmentView { blocks, .. } = &view;
    let part = |blocks: &[BlockView]| SegmentView {
        address: blocks.first().map_or(view.address, |block| block.address),
        nbytes: blocks.iter().map(|block| block.nbytes).sum(),
        blocks: blocks.to_vec(),
        ..view.clone()
    };
    blocks.chunk_by(|one, next| one.is_small == next.is_small).map(part).collect()
}

pub(super) fn segment_of(view: &SegmentView) -> Segment {
    Segment {
        size: size_of::<Segment>() as u64,
        device: view.location.number() as c_int,
        address: pointer(view.address),
        bytes: view.nbytes,
        stream: pointer(view.stream as u64),
        pool: view.pool,
        is_movable: view.is_movable.into(),
        is_small: view.blocks.iter().all(|block| block.is_small).into(),
        stack: number_of(view.stack),
    }
}

pub(super) fn block_of(segment: &Segment, view: &BlockView) -> Block {
    Block {
        size: size_of::<Block>() as u64,
        address: pointer(view.address),
        bytes: view.nbytes,
        requested: view.requested,
        is_live: (view.is_live && !view.is_waiting).into(),
        is_waiting: view.is_waiting.into(),
        device: segment.device,
        stream: segment.stream,
        pool: segment.pool,
        segment: segment.address,
        segment_bytes: segment.bytes,
        stack: number_of(view.stack),
    }
}

pub(super) unsafe extern "C" fn snapshot(device: c_int, pool: *const PoolId, visitor: *const SnapshotVisitor) -> c_int {
    let take = || {
        // SAFETY: the caller passes an id, or null.
        let pool = unsafe { pool.as_ref() };
        let mut taken = report::take_snapshot(one_or_all(device)?)?;
        taken.segments.retain(|segment| pool.is_none_or(|pool| *pool == segment.pool));
        Ok(taken)
    };
    // Pinned memory is of no device.
    // SAFETY: the caller passes a visitor of its version, whose functions take its context, or null.
    unsafe { visit(visitor, take, |location| location.device().is_some()) }
}

pub(super) unsafe extern "C" fn pinned_snapshot(visitor: *const SnapshotVisitor) -> c_int {
    // SAFETY: the caller passes a visitor of its version, whose functions take its context, or null.
    unsafe { visit(visitor, || report::take_snapshot(None), |location| location.device().is_none()) }
}

/// Calls a visitor for the segments, blocks and events of a snapshot that are of wanted locations.
///
/// # Safety
/// The visitor is null, or of the caller's version, which begins with its size. Its functions take its context.
unsafe fn visit(
    visitor: *const SnapshotVisitor,
    take: impl FnOnce() -> Result<MemorySnapshot>,
    is_wanted: impl Fn(MemoryLocation) -> bool,
) -> c_int {
    run(|| {
        // SAFETY: as the caller promises.
        let visitor = unsafe { read(visitor) }?;
        let MemorySnapshot { mut segments, events } = take()?;
        segments.retain(|segment| is_wanted(segment.location));
        segments.sort_by_key(|segment| (segment.location, segment.address));
        for view in segments.into_iter().flat_map(by_kind) {
            let segment = segment_of(&view);
            // SAFETY: the caller's functions take the visitor's context.
            unsafe { visitor.call(visitor.segment, &segment) };
            for block in &view.blocks {
                // SAFETY: the caller's functions take the visitor's context.
                unsafe { visitor.call(visitor.block, &block_of(&segment, block)) };
            }
        }
        for event in events.iter().filter(|event| is_wanted(event.location)) {
            // SAFETY: the caller's functions take the visitor's context.
            unsafe { visitor.call(visitor.event, &event.into()) };
        }
        Ok(())
    })
}
