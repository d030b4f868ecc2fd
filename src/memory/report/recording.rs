//! Beginning and ending to record memory, or to have it observed.

use std::collections::HashSet;

use super::frozen::{Frozen, FrozenCache};
use super::snapshot::caches;
use crate::memory::cache::{EventCallback, observe, visit_events};
use crate::observe::recording::{self, Settings, Stack};
use crate::process;

/// Has the blocks known that there are at one moment, that of `begin`.
fn begin_with_blocks(begin: impl FnOnce()) {
    let mut frozen = Frozen::new(|| caches(None));
    begin();
    for FrozenCache { cache, recorded, heap } in &mut frozen.caches {
        recorded.begin(heap.views(&cache.memory.pages).into_iter().flatten());
    }
}

/// Records from now on, with room for `most` events. Under [`recording::lock_changes`].
pub(crate) fn begin_recording(settings: Settings, most: usize) {
    begin_with_blocks(|| recording::start(settings, most));
}

/// Records no more, and forgets what was recorded, of handles too. Under [`recording::lock_changes`].
pub(crate) fn end_recording() {
    recording::stop();
    recording::forget_events();
    for cache in caches(None) {
        // An observer is told of what these blocks are when they are freed.
        if process::state().is_observed() {
            cache.recording.forget_stacks(|_| true);
        } else {
            cache.recording.clear();
        }
    }
}

/// Has an observer called with each event from now on. Under [`recording::lock_changes`].
pub(crate) fn begin_observing(observer: EventCallback) {
    begin_with_blocks(|| {
        observe(Some(observer));
        process::set_observed(true);
    });
}

/// As [`end_recording`], but live blocks keep the stacks that a plug has taken until they are freed.
pub(crate) fn end_recording_with_stacks() {
    if process::state().is_observed() {
        recording::stop();
        caches(None).into_iter().for_each(|cache| cache.recording.forget_stacks(|stack| !stack.is_of_plug()));
    } else {
        end_but_for_stacks(recording::stop);
    }
    recording::forget_events();
}

/// Has nothing known of blocks any more, from the moment of `end` on, but for the stacks of plugs that live ones have.
fn end_but_for_stacks(end: impl FnOnce()) {
    let mut frozen = Frozen::new(|| caches(None));
    for FrozenCache { cache, recorded, .. } in &mut frozen.caches {
        cache.keep_stacks(recorded);
    }
    end();
}

/// Has no event told any more. Under [`recording::lock_changes`].
pub(crate) fn end_observing() {
    observe(None);
    if process::state().is_only_observed() {
        end_but_for_stacks(|| process::set_observed(false));
    } else {
        process::set_observed(false);
    }
}

/// Returns the stacks that events and live blocks name.
pub(crate) fn stacks_in_use() -> HashSet<Stack> {
    let mut stacks = HashSet::new();
    visit_events(|event| _ = stacks.insert(event.stack));
    for cache in caches(None) {
        stacks.extend(cache.recording.lock().stacks());
    }
    stacks
}
