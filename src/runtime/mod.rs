//! GPU platforms behind one trait, and the choice among them.
//!
//! `cuda` drives NVIDIA GPUs, `hip` AMD GPUs, and `host` simulates devices in plain memory for machines that have none.
//! The choice is made at the first call that needs a device, never on import: `GPUPOOL_RUNTIME` if that is set,
//! otherwise the first platform with a device, in that order. Devices are simulated only where there is none: a driver
//! that does not work is an error. Every pointer that reaches a driver passes through a type of this module.

mod device;
mod driver;
mod event;
mod guard;
mod host_memory;
mod known_captures;
mod platform;
mod simulator;
mod stream;

use std::sync::OnceLock;

use log::{info, warn};

use crate::environment;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{nvtx, target::RUNTIME};
use crate::process;
use simulator::Simulator;

pub(crate) use device::{
    KnownUuids, existing, host_node, memory_info, nearest_host_node, no_host_node, only_host_node,
};
pub use device::{device, device_info};
#[cfg(feature = "cudarc")]
pub(crate) use driver::refused_by_driver;
pub(crate) use event::ContextRecord;
pub use event::Event;
pub use guard::{BoundDevice, RelaxedCapture, StreamScope};
#[cfg(feature = "python")]
pub(crate) use guard::{EnteredStream, enter, leave, scoped_view};
pub(crate) use host_memory::locking_limits;
pub use known_captures::synchronize;
pub(crate) use known_captures::{
    KnownCapture, Point, WholeDevice, end_expecting_captures, expect_captures, is_known_stream_capturing, note_capture,
    synchronize_unless_captured, wait_for_work_before,
};
pub(crate) use platform::no_such_device;
pub use platform::{
    Capture, Context, DeviceCalls, DeviceInfo, DeviceUuid, ExportedEvent, ExportedExtent, Extent, ExtentUse,
    GroupLimit, Kind, MemoryInfo, PoolReserved, RawEvent, RawGraph, Runtime, StreamCalls,
};
pub use simulator::host;
pub use stream::Stream;
pub(crate) use stream::{StreamIdentity, WeakStream, is_still};

/// The environment variable that chooses the runtime: `cuda`, `hip` or `host`.
pub const RUNTIME_VARIABLE: &str = "GPUPOOL_RUNTIME";

static CHOSEN: OnceLock<Box<dyn Runtime>> = OnceLock::new();
static PASSED_OVER: OnceLock<Vec<PassedOver>> = OnceLock::new();

/// A platform before the one that was chosen without `GPUPOOL_RUNTIME`, and why it was not.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PassedOver {
    /// The platform.
    pub kind: Kind,
    /// Why, and what to do.
    pub reason: String,
    /// Whether it is installed but does not work, rather than not installed.
    pub is_present: bool,
}

/// Returns the platforms that were skipped when the runtime was chosen.
pub fn passed_over() -> &'static [PassedOver] {
    PASSED_OVER.get().map_or(&[], Vec::as_slice)
}

/// Returns the runtime of this process, chosen at the first call.
///
/// # Errors
/// `ErrorKind::Forked` in a forked child of a process that had used a GPU; `ErrorKind::RuntimeUnavailable` if the
/// runtime that `GPUPOOL_RUNTIME` names has no device, or, without it, if a driver is there that does not work;
/// `ErrorKind::InvalidValue` if it names no runtime.
#[inline]
pub fn get() -> Result<&'static dyn Runtime> {
    process::refuse_forked()?;
    match CHOSEN.get() {
        Some(runtime) => Ok(runtime.as_ref()),
        None => choose(),
    }
}

#[cfg(feature = "python")]
#[inline]
pub(crate) fn is_chosen() -> bool {
    CHOSEN.get().is_some()
}

/// Probes outside any lock, so two threads may both do it; the first result stays.
#[cold]
fn choose() -> Result<&'static dyn Runtime> {
    // Checked here, as later readers cannot fail.
    nvtx::check_switch()?;
    let wanted = environment::text(RUNTIME_VARIABLE)?;
    let runtime: Box<dyn Runtime> = match wanted.as_deref() {
        None => first_with_a_device()?,
        Some("cuda") => driver::cuda()?,
        Some("hip") => driver::hip()?,
        Some("host") => Box::new(Simulator::from_environment()?),
        Some(other) => {
            return Err(Error::invalid_value(format!(
                "GPUPOOL_RUNTIME={other:?} names no runtime; set it to cuda, hip or host, or unset it to take the first that has a device"
            )));
        }
    };
    install(runtime);
    get()
}

fn first_with_a_device() -> Result<Box<dyn Runtime>> {
    let mut passed_over = Vec::new();
    for (kind, probe) in [(Kind::Cuda, driver::cuda as fn() -> _), (Kind::Hip, driver::hip)] {
        match probe() {
            Ok(runtime) => {
                // A machine with AMD's GPUs needs no driver of NVIDIA's; an installed one should work.
                passed_over.retain(|passed: &PassedOver| passed.is_present);
                let _ = PASSED_OVER.set(passed_over);
                return Ok(runtime);
            }
            Err(error) => passed_over.push(PassedOver::new(kind, error)),
        }
    }
    // Host memory in place of a GPU's would go unnoticed until something is slow, or wrong.
    if let Some(broken) = passed_over.iter().find(|passed| passed.is_present) {
        let PassedOver { kind, reason, .. } = broken;
        let reason = format!("{reason}. To do without a GPU, on simulated devices, set {RUNTIME_VARIABLE}=host");
        return Err(Error::runtime_broken(kind.name(), reason));
    }
    let _ = PASSED_OVER.set(passed_over);
    Ok(Box::new(Simulator::from_environment()?))
}

impl PassedOver {
    fn new(kind: Kind, error: Error) -> Self {
        match error.into_kind() {
            ErrorKind::RuntimeUnavailable { reason, is_present, .. } => Self { kind, reason, is_present },
            other => Self { kind, reason: Error::from(other).to_string(), is_present: true },
        }
    }
}

/// Makes this the process's runtime, unless there is one already.
fn install(runtime: Box<dyn Runtime>) {
    process::watch_forks();
    let (kind, devices, driver) = (runtime.kind(), runtime.device_count(), runtime.driver_version());
    if CHOSEN.set(runtime).is_ok() {
        let driver = driver.map_or_else(String::new, |(major, minor)| format!(", driver {major}.{minor}"));
        info!(target: RUNTIME, "runtime {kind}: {devices} device(s){driver}");
        for PassedOver { kind, reason, .. } in passed_over() {
            info!(target: RUNTIME, "runtime {kind} was passed over: {reason}");
        }
        if kind == Kind::Host && !passed_over().is_empty() {
            warn!(target: RUNTIME, "no GPU was found: devices are simulated, which {RUNTIME_VARIABLE}=host asks for");
        }
    }
}

/// Returns the runtime, if it is the one that a library's handles need.
pub(crate) fn require(kind: Kind) -> Result<&'static dyn Runtime> {
    let runtime = get()?;
    if runtime.kind() == kind {
        return Ok(runtime);
    }
    let passed_over = passed_over().iter().find(|passed| passed.kind == kind);
    let reason = match (passed_over, std::env::var_os(RUNTIME_VARIABLE)) {
        (Some(PassedOver { reason, .. }), _) => {
            let instead = if runtime.kind() == Kind::Host {
                "gpupool simulates devices here"
            } else {
                "gpupool uses AMD's GPUs here"
            };
            format!("{reason}. {instead} (runtime {})", runtime.kind())
        }
        (None, Some(_)) => {
            format!("GPUPOOL_RUNTIME chose {}; set it to {kind} before the process starts", runtime.kind())
        }
        (None, None) => format!(
            "this process uses runtime {}, the first with a device; set GPUPOOL_RUNTIME={kind} before it starts",
            runtime.kind()
        ),
    };
    Err(Error::runtime_unavailable(kind.name(), reason))
}

#[cfg(test)]
mod forked_child {
    /// Runs the work, which may take no lock, in a forked child, and checks that it ends.
    #[track_caller]
    pub(super) fn assert_ends_in_forked_child(work: impl FnOnce()) {
        crate::process::watch_forks();
        // SAFETY: the child does only what is tried here, which may take no lock, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: what waits for ever is ended by the alarm.
            unsafe { libc::alarm(20) };
            work();
            // SAFETY: the child ends without what the parent's threads have.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: the child is this process's, and `status` a place for how it ended.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child waited for a lock");
    }
}
