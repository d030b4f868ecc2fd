//! Recording: the events of the allocator and the handle pools from now on, to be read in a snapshot.

use crate::error::{Error, MemoryHolder, Result};
use crate::handle::HandleEvent;
use crate::ids::Device;
use crate::memory::{MemoryAction, MemorySnapshot};
use crate::observe::recording::{self, Settings, StackCallback};
use crate::{handle, memory, process, runtime};

/// For which events call stacks are recorded, if the program has a language whose stacks can be recorded: Python.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StackContext {
    /// For none.
    None,
    /// For the allocation of each live block.
    State,
    /// Also for every recorded allocation.
    Alloc,
    /// Also for every recorded free.
    #[default]
    All,
}

/// What to record.
///
/// ```no_run
/// gpupool::Recording::new().max_entries(100_000).start()?;
/// // ... what is to be looked at ...
/// for event in gpupool::snapshot(None)?.memory.events {
///     println!("{} {} {:#x} {}", event.unix_micros(), event.action.name(), event.address, event.nbytes);
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

/// How many events of a kind are kept by default: 64 MB for memory.
pub const MAX_ENTRIES: usize = 1_000_000;

impl Default for Recording {
    fn default() -> Self {
        Self { has_events: true, context: StackContext::All, max_entries: MAX_ENTRIES, clears: false, skipped: 0 }
    }
}

impl Recording {
    /// Creates the default settings: events and call stacks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether to keep events, or only the call stacks of live blocks.
    pub fn events(mut self, events: bool) -> Self {
        self.has_events = events;
        self
    }

    /// Sets for which events to record call stacks.
    pub fn context(mut self, context: StackContext) -> Self {
        self.context = context;
        self
    }

    /// Sets how many of the newest events of memory to keep, and as many of handles.
    pub fn max_entries(mut self, max_entries: usize) -> Self {
        self.max_entries = max_entries;
        self
    }

    /// Sets whether to discard the events of an earlier recording.
    pub fn clear_history(mut self, clear: bool) -> Self {
        self.clears = clear;
        self
    }

    /// Sets which events of memory are not recorded.
    pub fn skip(mut self, actions: impl IntoIterator<Item = MemoryAction>) -> Self {
        self.skipped = actions.into_iter().fold(0, |skipped, action| skipped | action.bit());
        self
    }

    /// Returns whether events are kept, or only the call stacks of live blocks.
    pub const fn has_events(&self) -> bool {
        self.has_events
    }

    /// Returns for which events call stacks are recorded.
    pub const fn stacks(&self) -> StackContext {
        self.context
    }

    /// Returns how many of the newest events are kept of memory, and as many of handles.
    pub const fn most(&self) -> usize {
        self.max_entries
    }

    /// Returns which events of memory are not recorded.
    pub fn skipped(&self) -> impl Iterator<Item = MemoryAction> {
        MemoryAction::ALL.into_iter().filter(|action| self.skipped & action.bit() != 0)
    }

    /// Starts recording, or changes the settings if a recording is running. It calls no driver.
    ///
    /// The newest `max_entries` events are kept, and for each active thread at most 512 more: 64 bytes an event. Each
    /// live block uses some 50 bytes more.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if events are kept and `max_entries` is 0; `ErrorKind::Forked` in a forked child.
    pub fn start(&self) -> Result<()> {
        self.start_with_stacks(None)
    }

    /// As [`Recording::start`], with stacks that the program's language takes.
    pub(crate) fn start_with_stacks(&self, take_stack: Option<StackCallback>) -> Result<()> {
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
            skipped: self.skipped,
        };
        recording::set_stack_callback(take_stack);
        memory::begin_recording(settings, self.max_entries);
        Ok(())
    }

    /// Returns the settings of the recording that is running, whose `clear_history` is false; none if nothing is recorded.
    ///
    /// # Errors
    /// `ErrorKind::Forked` in a forked child.
    pub fn running() -> Result<Option<Self>> {
        process::refuse_forked()?;
        let _changes = recording::lock_changes();
        if !process::state().is_recorded() {
            return Ok(None);
        }
        let Settings { has_events, has_live_stacks, has_alloc_stacks, has_free_stacks, skipped } = Settings::get();
        let context = match (has_live_stacks, has_alloc_stacks, has_free_stacks) {
            (false, ..) => StackContext::None,
            (_, false, _) => StackContext::State,
            (_, _, false) => StackContext::Alloc,
            _ => StackContext::All,
        };
        Ok(Some(Self { has_events, context, max_entries: recording::most(), clears: false, skipped }))
    }

    /// Stops recording, and discards what was recorded.
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

/// Memory at one moment, and the events recorded before it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The memory, and its events.
    pub memory: MemorySnapshot,
    /// The events of handles, in order.
    pub handle_events: Vec<HandleEvent>,
    /// What other libraries of this process hold of each device; empty unless the process is watched.
    pub holders: Vec<(Device, MemoryHolder)>,
}

/// Takes a snapshot of a device, or of all. Allocations wait while it is taken.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child.
pub fn snapshot(device: Option<Device>) -> Result<Snapshot> {
    let device = device.map(runtime::existing).transpose()?;
    let memory = memory::take_snapshot(device)?;
    let is_asked = |on: Device| device.is_none_or(|device| device == on);
    let (mut handle_events, mut holders) = (handle::events(), memory::all_holders());
    handle_events.retain(|event| is_asked(event.device));
    holders.retain(|(device, _)| is_asked(*device));
    Ok(Snapshot { memory, handle_events, holders })
}
