//! The trace of handles: who took and gave back which, while somebody records it.

use std::sync::LazyLock;

use super::record::Record;
use super::shared::Shared;
use crate::ids::Device;
use crate::library::RawHandle;
use crate::observe::recording::{self, Settings};
use crate::observe::{Own, Ring, Timed};
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
    /// A thread took it, for itself or by a lease. Its further requests, which give it the same handle, are not written down.
    Take,
    /// It went back to the pool.
    GiveBack,
    /// Its holder gave it up; nobody gets it again.
    Discard,
}

impl HandleAction {
    /// As snapshots name it.
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

static RING: LazyLock<Ring<HandleEvent>> = LazyLock::new(Ring::new);

thread_local! {
    static OWN: Own<HandleEvent> = Own::new(&RING);
}

/// Writes it down where somebody records: what ends a holder's hold before the handle can be had again, the rest after.
#[inline]
pub(super) fn note(pool: &Shared, device: Device, action: HandleAction, record: &Record) {
    note_handle(pool, device, action, &record.handle);
}

#[inline]
pub(super) fn note_handle(pool: &Shared, device: Device, action: HandleAction, handle: &RawHandle) {
    if process::state().is_recorded() {
        write(pool, device, action, handle);
    }
}

#[cold]
fn write(pool: &Shared, device: Device, action: HandleAction, handle: &RawHandle) {
    if !Settings::get().has_events {
        return;
    }
    let (time, thread, library) = (recording::now(), ThisThread::get().system_id(), pool.library.name());
    let event = HandleEvent { time, thread, action, library, device, handle: handle.as_ptr().addr() };
    RING.note(&OWN, event, recording::most());
}

/// The events, in order.
pub(crate) fn events() -> Vec<HandleEvent> {
    if process::state().is_recorded() && Settings::get().has_events {
        RING.newest(recording::most())
    } else {
        Vec::new()
    }
}

/// Forgets them.
pub(crate) fn clear() {
    RING.clear();
}
