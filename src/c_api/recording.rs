//! Recording for C: which events to keep, with stacks that the program takes.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::header::c_struct;
use super::sized::{SizedStruct, read};
use crate::memory::plug::call::{null, run};
use crate::memory::report;
use crate::observe::recording::{self, Purpose, Settings, Stack, StackCallback};

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
