//! Events of handles: which thread took and released which, during a recording.

use std::sync::LazyLock;

use crate::ids::Device;
use crate::library::{Library, RawHandle};
use crate::observe::recording::{self, Settings};
use crate::observe::{OwnBuffer, Ring, Timed};
use crate::process;
use crate::sync::ThisThread;

/// What happened to a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HandleAction {
    /// It was created.
    Create,
    /// It is being destroyed.
    Destroy,
    /// A thread took it, for itself or by a lease. Further requests, which give the thread the same handle, are not
    /// recorded.
    Take,
    /// It returned to the pool.
    GiveBack,
    /// Its holder discarded it; no request gets it again.
    Discard,
}

impl HandleAction {
    /// Returns its name in snapshots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Destroy => "destroy",
            Self::Take => "take",
            Self::GiveBack => "give_back",
            Self::Discard => "discard",
        }
    }
}

/// One thing that happened to a handle.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HandleEvent {
    time: u64,
    /// The thread, as the operating system numbers it.
    pub thread: u32,
    /// What happened.
    pub action: HandleAction,
    /// The pool's name.
    pub library: &'static str,
    /// The device.
    pub device: Device,
    /// The handle's address.
    pub handle: usize,
}

impl HandleEvent {
    /// Microseconds since 1970.
    pub fn unix_micros(&self) -> u64 {
        recording::unix_micros(self.time)
    }
}

impl Timed for HandleEvent {
    fn time(&self) -> u64 {
        self.time
    }
}

static RING: LazyLock<Ring<HandleEvent>> = LazyLock::new(|| {
    recording::add_kind(|| RING.clear());
    Ring::new()
});

thread_local! {
    static OWN: OwnBuffer<HandleEvent> = OwnBuffer::new(&RING);
}

/// Records an event, if there is a recording. The end of a hold is noted before another can have the handle, other
/// events afterwards.
#[inline]
pub(super) fn note(library: &'static dyn Library, device: Device, action: HandleAction, handle: &RawHandle) {
    if process::state().is_recorded() {
        write(library, device, action, handle);
    }
}

#[cold]
fn write(library: &'static dyn Library, device: Device, action: HandleAction, handle: &RawHandle) {
    if !Settings::get().has_events {
        return;
    }
    let (time, thread, library) = (recording::now(), ThisThread::get().system_id(), library.name());
    let event = HandleEvent { time, thread, action, library, device, handle: handle.as_ptr().addr() };
    RING.note(&OWN, event, recording::most());
}

pub(crate) fn events() -> Vec<HandleEvent> {
    if process::state().is_recorded() && Settings::get().has_events {
        RING.newest(recording::most())
    } else {
        Vec::new()
    }
}
