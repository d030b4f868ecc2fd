//! How calls of the simulated platform fail: what it refuses, and what tests put before a call of it, or of its library: a
//! fault, so that it fails, or code, run with none of the platform's locks held, to get a rare order of two threads' calls
//! each time. Each call is also a place where another thread of a schedule may go on. Without the feature
//! `fault-injection` there is none of what tests put there.

use std::io;

use crate::error::{Error, StatusKind};

/// A status, whose number is CUDA's.
type SimulatedStatus = (&'static str, i32);

pub(super) const INVALID_VALUE: SimulatedStatus = ("HOST_ERROR_INVALID_VALUE", 1);
pub(super) const OUT_OF_MEMORY: SimulatedStatus = ("HOST_ERROR_OUT_OF_MEMORY", 2);
const OPERATING_SYSTEM: SimulatedStatus = ("HOST_ERROR_OPERATING_SYSTEM", 304);
/// Of a stream or event that does not exist.
pub(super) const INVALID_HANDLE: SimulatedStatus = ("HOST_ERROR_INVALID_HANDLE", 400);
/// Of a capture that is begun twice, or ended without being begun.
pub(super) const ILLEGAL_STATE: SimulatedStatus = ("HOST_ERROR_ILLEGAL_STATE", 401);
pub(super) const ILLEGAL_ADDRESS: SimulatedStatus = ("HOST_ERROR_ILLEGAL_ADDRESS", 700);
/// Of a call that a capture forbids.
pub(super) const CAPTURE_UNSUPPORTED: SimulatedStatus = ("HOST_ERROR_STREAM_CAPTURE_UNSUPPORTED", 900);
/// Of a capture that a forbidden call spoiled.
pub(super) const CAPTURE_INVALIDATED: SimulatedStatus = ("HOST_ERROR_STREAM_CAPTURE_INVALIDATED", 901);
/// Of a wait, in a capture, for an event that the capture has not recorded.
pub(super) const CAPTURE_ISOLATION: SimulatedStatus = ("HOST_ERROR_STREAM_CAPTURE_ISOLATION", 905);
/// Of a call on the legacy default stream while a blocking stream of its device is captured.
pub(super) const CAPTURE_IMPLICIT: SimulatedStatus = ("HOST_ERROR_STREAM_CAPTURE_IMPLICIT", 906);
pub(super) const CAPTURED_EVENT: SimulatedStatus = ("HOST_ERROR_CAPTURED_EVENT", 907);
pub(super) const UNKNOWN: SimulatedStatus = ("HOST_ERROR_UNKNOWN", 999);

pub(super) fn refused(function: &str, status: SimulatedStatus) -> Error {
    let kind = if status == OUT_OF_MEMORY { StatusKind::OutOfMemory } else { StatusKind::Other };
    Error::refused("host", function, status.0, status.1, kind)
}

/// As [`refused`], with what the status does not say.
pub(super) fn refused_because(function: &str, status: SimulatedStatus, why: impl Into<String>) -> Error {
    refused(function, status).map_library(|refused| refused.advice = Some(why.into()))
}

/// Returns the refusal of wrong arguments.
pub(super) fn invalid(function: &str, why: impl Into<String>) -> Error {
    refused_because(function, INVALID_VALUE, why)
}

pub(super) fn system_error(function: &str, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let status = if error.raw_os_error() == Some(libc::ENOMEM) { OUT_OF_MEMORY } else { OPERATING_SYSTEM };
    refused_because(function, status, error.to_string())
}

macro_rules! calls {
    ($($name:ident)*) => {
        /// A call that can be made to fail.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "each is named after the runtime's or the library's function")]
        #[cfg_attr(not(feature = "fault-injection"), expect(unreachable_pub, reason = "tests name calls"))]
        pub enum Call {
            $($name,)*
        }

        #[cfg(feature = "fault-injection")]
        impl Call {
            /// Every call, for tests that go through all of them.
            pub const ALL: [Call; [$(stringify!($name)),*].len()] = [$(Call::$name),*];
        }
    };
}

calls! {
    CurrentDevice
    Bind
    MemoryInfo
    Allocate
    ExchangeCaptureMode
    StreamCreate
    StreamDestroy
    StreamDevice
    StreamId
    StreamQuery
    StreamSynchronize
    StreamWaitEvent
    StreamCaptureStatus
    StreamCapture
    GraphRetain
    EventCreate
    EventDestroy
    EventRecord
    EventRecordContext
    ContextWaitEvent
    EventQuery
    EventSynchronize
    EventExport
    EventImport
    HandleCreate
    HandleDestroy
    HandleSetStream
    AddressReserve
    AddressFree
    ExtentCreate
    ExtentRelease
    ExtentExport
    ExtentImport
    MemoryMap
    MemorySetAccess
    MemoryUnmap
    MemoryAllocate
    MemoryFree
    PageBytes
    ContextSynchronize
    CopyToHost
    CopyToDevice
    NearestHostNode
    HostAllocate
    HostFree
    Fill
}

#[cfg(not(feature = "fault-injection"))]
#[inline]
pub(crate) fn check(_call: Call) -> crate::error::Result<()> {
    Ok(())
}

#[cfg(feature = "fault-injection")]
pub(crate) use injection::check;
#[cfg(feature = "fault-injection")]
pub use injection::{Fault, before_call, clear_before_call, clear_faults, inject};

#[cfg(feature = "fault-injection")]
mod injection {
    use std::mem;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::error::{Error, Result, StatusKind};
    use crate::runtime::simulator::fault::{Call, OUT_OF_MEMORY};
    use crate::sync::lock;

    /// A failure to come.
    #[derive(Clone, Copy, Debug)]
    pub struct Fault {
        /// The call that fails.
        pub call: Call,
        /// What kind of failure it is.
        pub kind: StatusKind,
        /// How many calls still succeed first.
        pub after: u32,
        /// How many calls then fail.
        pub times: u32,
    }

    /// Code to come.
    struct Hook {
        call: Call,
        /// How many calls come first.
        after: u32,
        run: Box<dyn FnOnce() + Send>,
    }

    struct Plans {
        faults: Vec<Fault>,
        hooks: Vec<Hook>,
    }

    static ARMED: AtomicBool = AtomicBool::new(false);
    static PLANS: Mutex<Plans> = Mutex::new(Plans { faults: Vec::new(), hooks: Vec::new() });

    fn change<T>(change: impl FnOnce(&mut Plans) -> T) -> T {
        let mut plans = lock(&PLANS);
        let changed = change(&mut plans);
        ARMED.store(!plans.faults.is_empty() || !plans.hooks.is_empty(), Ordering::Release);
        changed
    }

    /// Makes a call fail, for every thread of the process.
    pub fn inject(fault: Fault) {
        change(|plans| plans.faults.push(fault));
    }

    /// Removes every fault that has not happened yet, and returns how many calls were still to fail.
    pub fn clear_faults() -> u32 {
        let cleared = change(|plans| mem::take(&mut plans.faults));
        cleared.into_iter().fold(0, |left, fault| left.saturating_add(fault.times))
    }

    /// Runs code once, before a call by any thread of the process, after so many others of its kind. The code's own calls
    /// count, too.
    pub fn before_call(call: Call, after: u32, run: impl FnOnce() + Send + 'static) {
        change(|plans| plans.hooks.push(Hook { call, after, run: Box::new(run) }));
    }

    /// Forgets the code that has not run yet, and returns how many pieces there were.
    pub fn clear_before_call() -> usize {
        // Dropped outside the lock.
        let cleared = change(|plans| mem::take(&mut plans.hooks));
        cleared.len()
    }

    /// Runs what a test has put before this call, and fails if a fault is due.
    #[inline]
    pub(crate) fn check(call: Call) -> Result<()> {
        #[cfg(schedules)]
        crate::sync::schedule::point();
        if ARMED.load(Ordering::Acquire) { check_armed(call) } else { Ok(()) }
    }

    #[cold]
    fn check_armed(call: Call) -> Result<()> {
        let is_due = |hook: &mut Hook| {
            let is_meant = hook.call == call;
            let is_due = is_meant && hook.after == 0;
            hook.after -= u32::from(is_meant && !is_due);
            is_due
        };
        let due: Vec<_> = change(|plans| plans.hooks.extract_if(.., is_due).collect());
        due.into_iter().for_each(|hook| (hook.run)());
        let faults = &mut lock(&PLANS).faults;
        let Some(fault) = faults.iter_mut().find(|fault| fault.call == call && fault.times > 0) else { return Ok(()) };
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        fault.times -= 1;
        let (status, code) = match fault.kind {
            StatusKind::OutOfMemory => OUT_OF_MEMORY,
            StatusKind::NotInitialized => ("HOST_ERROR_NOT_INITIALIZED", 3),
            StatusKind::NotSupported => ("HOST_ERROR_NOT_SUPPORTED", 801),
            StatusKind::Other => ("HOST_ERROR_INJECTED", 999),
        };
        let is_of_library = matches!(call, Call::HandleCreate | Call::HandleDestroy | Call::HandleSetStream);
        let refuser = if is_of_library { "simulated" } else { "host" };
        Err(Error::refused(refuser, &format!("{call:?}"), status, code, fault.kind))
    }
}
