//! Faults on demand: any call of the simulated platform, or of its library, fails when a test wants it to, and is a
//! place where another thread of a schedule may go on. Without the feature `fault-injection` none does.

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
pub use injection::{Fault, clear_faults, inject};

#[cfg(feature = "fault-injection")]
mod injection {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::Call;
    use crate::error::{Error, Result, StatusKind};
    use crate::runtime::host::hooks;
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

    static ARMED: AtomicBool = AtomicBool::new(false);
    static FAULTS: Mutex<Vec<Fault>> = Mutex::new(Vec::new());

    /// Makes a call fail, for every thread of the process.
    pub fn inject(fault: Fault) {
        let mut faults = lock(&FAULTS);
        faults.push(fault);
        ARMED.store(true, Ordering::Release);
    }

    /// Removes every fault that has not happened yet, and returns how many calls were still to fail.
    pub fn clear_faults() -> u32 {
        let mut faults = lock(&FAULTS);
        ARMED.store(false, Ordering::Release);
        faults.drain(..).fold(0, |left, fault| left.saturating_add(fault.times))
    }

    /// Runs what a test has put before this call, and fails if a fault is due.
    #[inline]
    pub(crate) fn check(call: Call) -> Result<()> {
        #[cfg(schedules)]
        crate::sync::schedule::point();
        hooks::run_before(call);
        if ARMED.load(Ordering::Acquire) { check_armed(call) } else { Ok(()) }
    }

    #[cold]
    fn check_armed(call: Call) -> Result<()> {
        let mut faults = lock(&FAULTS);
        let Some(fault) = faults.iter_mut().find(|fault| fault.call == call && fault.times > 0) else { return Ok(()) };
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        fault.times -= 1;
        let (status, code) = match fault.kind {
            StatusKind::OutOfMemory => ("HOST_ERROR_OUT_OF_MEMORY", 2),
            StatusKind::NotInitialized => ("HOST_ERROR_NOT_INITIALIZED", 3),
            StatusKind::NotSupported => ("HOST_ERROR_NOT_SUPPORTED", 801),
            StatusKind::Other => ("HOST_ERROR_INJECTED", 999),
        };
        let is_of_library = matches!(call, Call::HandleCreate | Call::HandleDestroy | Call::HandleSetStream);
        let refuser = if is_of_library { "simulated" } else { "host" };
        Err(Error::refused(refuser, &format!("{call:?}"), status, code, fault.kind))
    }
}
