//! Beginning and ending to record memory.

#[cfg(feature = "python")]
use std::collections::HashSet;

use super::frozen::{Frozen, FrozenCache};
#[cfg(feature = "python")]
use crate::memory::cache::visit_events;
use crate::memory::cache::{DeviceCaches, ThreadCache, clear_events};
#[cfg(feature = "python")]
use crate::observe::recording::Stack;
use crate::observe::recording::{self, Settings};

fn caches() -> Vec<&'static ThreadCache> {
    DeviceCaches::all().flat_map(DeviceCaches::serving).collect()
}

/// Records from now on, with room for `most` events.
pub(crate) fn begin_recording(settings: Settings, most: usize) {
    let mut frozen = Frozen::new(caches);
    recording::start(settings, most);
    for FrozenCache { cache, recorded, heap } in &mut frozen.caches {
        recorded.begin(heap.views(&cache.memory.pages).into_iter().flatten());
    }
}

/// Forgets what was recorded, once recording has stopped.
pub(crate) fn end_recording() {
    clear_events();
    caches().into_iter().for_each(|cache| cache.recording.clear());
}

/// Returns the stacks that events and live blocks name.
#[cfg(feature = "python")]
pub(crate) fn stacks_in_use() -> HashSet<Stack> {
    let mut stacks = HashSet::new();
    visit_events(|event| {
        stacks.insert(event.stack);
    });
    for cache in caches() {
        stacks.extend(cache.recording.lock().stacks());
    }
    stacks
}
