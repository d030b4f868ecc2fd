//! Recording: what the allocator and the handle pools do from now on, to be looked at in a snapshot.

use crate::error::{Error, Result};
use crate::handle::HandleEvent;
use crate::ids::Device;
use crate::memory::{MemoryAction, MemorySnapshot};
use crate::observe::recording::{self, Settings};
use crate::{handle, memory, process};

/// Of what call stacks are recorded, where the program has some that can be: Python's.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StackContext {
    /// Of nothing.
    None,
    /// Of the allocation of each live block.
    State,
    /// Also of every allocation among the events.
    Alloc,
    /// Also of every free.
    #[default]
    All,
}

/// What to record.
///
/// ```no_run
/// gpupool::Recording::new().max_entries(100_000).start()?;
/// // ... what is to be looked at ...
/// for event in gpupool::snapshot(None)?.memory.events {
///     println!("{} {} {:#x} {}", event.unix_micros(), event.action.name(), event.address, event.bytes);
/// }
/// gpupool::Recording::stop()?;
/// # Ok::<(), gpupool::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "start recording with start()"]
pub struct Recording {
    has_events: bool,
    context: StackContext,
    max_entries: usize,
    clears: bool,
    skipped: u16,
}

/// Events of a kind that are kept unless it is said otherwise: of memory 64 MB.
pub const MAX_ENTRIES: usize = 1_000_000;

impl Default for Recording {
    fn default() -> Self {
        Self { has_events: true, context: StackContext::All, max_entries: MAX_ENTRIES, clears: false, skipped: 0 }
    }
}

impl Recording {
    /// Events and call stacks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether to keep events, or only the call stacks of what is live.
    pub fn events(mut self, events: bool) -> Self {
        self.has_events = events;
        self
    }

    /// Of what to record call stacks.
    pub fn context(mut self, context: StackContext) -> Self {
        self.context = context;
        self
    }

    /// Sets how many of the newest events to keep of memory, and as many of handles.
    pub fn max_entries(mut self, max_entries: usize) -> Self {
        self.max_entries = max_entries;
        self
    }

    /// Sets whether to forget what an earlier recording wrote.
    pub fn clear_history(mut self, clear: bool) -> Self {
        self.clears = clear;
        self
    }

    /// Events of memory to leave out.
    pub fn skip(mut self, actions: impl IntoIterator<Item = MemoryAction>) -> Self {
        self.skipped = actions.into_iter().fold(0, |skipped, action| skipped | action.bit());
        self
    }

    /// Records from now on, with these settings if something is recorded already. Touches no device.
    ///
    /// `max_entries` of the newest events are kept, and for each thread at work at most 512 more: 64 bytes an event. Each live
    /// block takes some 50 bytes more.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for events without room for any; `ErrorKind::Forked` in a forked child.
    pub fn start(&self) -> Result<()> {
        process::refuse_forked()?;
        if self.has_events && self.max_entries == 0 {
            return Err(Error::invalid_value("max_entries must be at least 1: 0 events are no recording"));
        }
        let _changes = recording::lock_changes();
        if self.clears {
            recording::forget_events();
        }
        let settings = Settings {
            has_events: self.has_events,
            has_live_stacks: self.context >= StackContext::State,
            has_alloc_stacks: self.context >= StackContext::Alloc,
            has_free_stacks: self.context >= StackContext::All,
            has_plug_stacks: false,
            skipped: self.skipped,
        };
        memory::begin_recording(settings, self.max_entries);
        Ok(())
    }

    /// Records no more, and forgets what was recorded.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn stop() -> Result<()> {
        process::refuse_forked()?;
        let _changes = recording::lock_changes();
        memory::end_recording();
        Ok(())
    }
}

/// Memory at one moment, and what was recorded until then.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The memory, and its events.
    pub memory: MemorySnapshot,
    /// The events of handles, in order.
    pub handle_events: Vec<HandleEvent>,
}

/// Takes a snapshot of a device, or of all. Allocations wait meanwhile.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn snapshot(device: Option<Device>) -> Result<Snapshot> {
    let memory = memory::take_snapshot(device)?;
    let mut handle_events = handle::events();
    handle_events.retain(|event| device.is_none_or(|device| device == event.device));
    Ok(Snapshot { memory, handle_events })
}
