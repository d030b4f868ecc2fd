//! Starting and ending the recording and observation of memory.

use std::collections::HashSet;

use super::frozen::{Frozen, FrozenCache};
use super::snapshot::caches;
use crate::memory::cache::{EventCallback, each_event, observe};
use crate::observe::recording::{self, Settings, Stack};
use crate::process;

/// Makes the present blocks known, at the moment of `begin`.
fn begin_with_blocks(begin: impl FnOnce()) {
    let mut frozen = Frozen::new(|| caches(None));
    begin();
    for FrozenCache { cache, recorded, heap } in &mut frozen.caches {
        recorded.begin(heap.views(&cache.memory.pages).into_iter().flatten());
    }
}

/// Starts to record, with room for `most` events. Under [`recording::lock_changes`].
pub(crate) fn begin_recording(settings: Settings, most: usize) {
    begin_with_blocks(|| recording::start(settings, most));
}

/// Ends recording, and forgets what was recorded, of handles too. Under [`recording::lock_changes`].
pub(crate) fn end_recording() {
    recording::stop();
    recording::forget_events();
    for cache in caches(None) {
        // The observer needs the blocks' events when they are freed, but not the stacks.
        if process::state().is_observed() {
            cache.recording.forget_stacks(|_| true);
        } else {
            cache.recording.clear();
        }
    }
}

/// Sets the observer, which is called with each event. Under [`recording::lock_changes`].
pub(crate) fn begin_observing(observer: EventCallback) {
    begin_with_blocks(|| {
        observe(Some(observer));
        process::set_observed(true);
    });
}

/// As [`end_recording`], but live blocks keep a plug's stacks until they are freed.
pub(crate) fn end_recording_with_stacks() {
    if process::state().is_observed() {
        recording::stop();
        caches(None).into_iter().for_each(|cache| cache.recording.forget_stacks(|stack| !stack.is_of_plug()));
    } else {
        end_but_for_stacks(recording::stop);
    }
    recording::forget_events();
}

/// Forgets all blocks from the moment of `end` on, but for the plugs' stacks of live ones.
fn end_but_for_stacks(end: impl FnOnce()) {
    let mut frozen = Frozen::new(|| caches(None));
    for FrozenCache { cache, recorded, .. } in &mut frozen.caches {
        cache.keep_stacks(recorded);
    }
    end();
}

/// Removes the observer. Under [`recording::lock_changes`].
pub(crate) fn end_observing() {
    observe(None);
    if process::state().is_only_observed() {
        end_but_for_stacks(|| process::set_observed(false));
    } else {
        process::set_observed(false);
    }
}

pub(crate) fn stacks_in_use() -> HashSet<Stack> {
    let mut stacks = HashSet::new();
    each_event(|event| _ = stacks.insert(event.stack));
    for cache in caches(None) {
        stacks.extend(cache.recording.lock().stacks());
    }
    stacks
}
