//! Creating and destroying handles: the two slow operations, outside every lock. Both run with the device's primary
//! context current and the thread's capture mode relaxed, so that no capture, here or in another thread, is spoilt;
//! both leave the thread as they found it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, OneLine, OutOfMemory, Result, StatusKind, Wanted};
use crate::ids::Device;
use crate::library::{Library, RawHandle};
use crate::memory;
use crate::observe::Activity;
use crate::runtime::{self, BoundDevice, MemoryInfo, RelaxedCapture, Runtime, WholeDevice};
use crate::sync::{CallbackKind, InHand, in_callback};

/// A handle just created.
pub(super) struct Created {
    pub(super) handle: RawHandle,
    pub(super) time: Duration,
    /// Device memory it took; none if other creations ran meanwhile, which the difference would include.
    pub(super) bytes: Option<u64>,
}

/// Creations begun so far, and those under way: a creation's memory is measured only if it ran alone.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

struct CreationUnderWay;

impl CreationUnderWay {
    fn new() -> Self {
        BEGUN.fetch_add(1, Ordering::Relaxed);
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for CreationUnderWay {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread ready to create and destroy: the device's context current, the capture mode relaxed.
pub(super) struct Prepared {
    runtime: &'static dyn Runtime,
    device: Device,
    // Dropped in this order: the mode is the thread's, whatever its context.
    _relaxed: RelaxedCapture,
    _bound: BoundDevice,
}

impl Prepared {
    pub(super) fn new(runtime: &'static dyn Runtime, device: Device) -> Result<Self> {
        let _bound = BoundDevice::of(runtime, device)?;
        let _relaxed = RelaxedCapture::new(runtime).map_err(|e| e.on(device))?;
        Ok(Self { runtime, device, _relaxed, _bound })
    }

    pub(super) fn create(&self, library: &dyn Library) -> Result<Created> {
        let _activity = Activity::begin(format_args!("create {} handle", OneLine(library.name())));
        let _under_way = CreationUnderWay::new();
        let begun = BEGUN.load(Ordering::Relaxed);
        let was_alone = UNDER_WAY.load(Ordering::Relaxed) == 1;
        // Only statistics need it, so a driver that cannot report it does not stop the creation.
        let before = self.runtime.memory_info().ok();
        let start = Instant::now();
        let handle = library.create(self.device).map_err(|e| e.on(self.device))?;
        let time = start.elapsed();
        let after = self.runtime.memory_info().ok();
        let is_alone = was_alone && BEGUN.load(Ordering::Relaxed) == begun;
        let taken = before.zip(after).map(|(before, after)| before.free.saturating_sub(after.free));
        Ok(Created { handle, time, bytes: taken.filter(|_| is_alone) })
    }

    /// Destroys all of the handles, and returns the first refusal.
    pub(super) fn destroy(&self, library: &dyn Library, handles: Vec<RawHandle>) -> Result<()> {
        let mut result = Ok(());
        for handle in handles {
            let destroyed = in_callback(CallbackKind::Library, || library.destroy(handle));
            let destroyed = destroyed.map_err(|e| e.on(self.device));
            result = result.and(destroyed);
        }
        result
    }
}

pub(super) fn create(runtime: &'static dyn Runtime, library: &dyn Library, device: Device) -> Result<Created> {
    Prepared::new(runtime, device)?.create(library)
}

/// A time in which handles may be destroyed: no announced capture that this would spoil begins meanwhile.
pub(super) struct Destroying {
    /// A capture waits for it, and a program's own library is called meanwhile.
    _whole: Option<(WholeDevice, InHand)>,
}

impl Destroying {
    /// Begins it; none if a known capture would be spoilt by destroying this library's handles.
    pub(super) fn begin(runtime: &'static dyn Runtime, library: &dyn Library, device: Device) -> Result<Option<Self>> {
        if !library.synchronizes_on_destroy() {
            return Ok(Some(Self { _whole: None }));
        }
        Ok(WholeDevice::begin(runtime, device)?.map(|whole| Self { _whole: Some((whole, InHand::begin())) }))
    }
}

/// Returns whether a creation was probably refused for lack of memory: the library reports so, or "not initialized" while
/// less is free than a handle takes.
pub(super) fn is_for_want_of_memory(library: &dyn Library, device: Device, error: &Error) -> bool {
    let ErrorKind::Library(refused) = error.kind() else { return false };
    match refused.kind {
        StatusKind::OutOfMemory => true,
        StatusKind::NotInitialized => {
            runtime::memory_info(device).is_ok_and(|memory| memory.free < library.handle_bytes())
        }
        StatusKind::NotSupported | StatusKind::Other => false,
    }
}

/// Turns a refusal for lack of memory into an error with the bytes needed and the holders of the memory.
pub(super) fn explain(library: &dyn Library, device: Device, error: Error) -> Error {
    if !is_for_want_of_memory(library, device, &error) {
        return error;
    }
    let refused = match error.into_kind() {
        ErrorKind::Library(refused) => refused,
        other => return other.into(),
    };
    let MemoryInfo { free, total } = runtime::memory_info(device).unwrap_or_default();
    let location = device.into();
    let users = memory::users(location);
    let wanted = Wanted::Handle(library.handle_bytes());
    ErrorKind::OutOfMemory(OutOfMemory { refused, location, wanted, free, total, users, neighbours: None }).into()
}
