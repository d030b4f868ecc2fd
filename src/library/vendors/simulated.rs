//! A library for simulated devices: its handles take simulated memory, know their stream, and cost what a test says.
//! Destroying one waits for the device, as cuBLAS does.
//!
//! Without a GPU it shows what the pools do; in benches it shows what they cost by themselves.

#[cfg(feature = "fault-injection")]
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::NonNull;
#[cfg(feature = "fault-injection")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::error::Result;
use crate::ids::Device;
use crate::library::workspace::{HandleWorkspaces, Workspaces};
use crate::library::{Library, RawHandle, Version};
use crate::runtime::host::{self, Call, check};
use crate::runtime::{Kind, Stream};
#[cfg(feature = "fault-injection")]
use crate::sync::lock;

/// The simulated library. All pools of it share its settings.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedLibrary;

static CREATE_NANOSECONDS: AtomicU64 = AtomicU64::new(0);
static HANDLE_BYTES: AtomicU64 = AtomicU64::new(1 << 20);
static KEEPS_SCRATCH: AtomicBool = AtomicBool::new(false);
static WORKSPACE_BYTES: AtomicU64 = AtomicU64::new(0);

static WORKSPACES: Workspaces = Workspaces::new();

/// What a handle's address points to. Alone in its cache lines, as real handles mostly are.
#[derive(Debug)]
#[repr(align(128))]
struct SimulatedHandle {
    stream: AtomicUsize,
    /// The address of the workspace that it would compute with; 0 for the library's own.
    workspace: AtomicU64,
    resets: AtomicU64,
    device: Device,
    bytes: u64,
}

/// Sets how long creating a handle takes from now on.
pub fn set_create_cost(cost: Duration) {
    CREATE_NANOSECONDS.store(u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Sets how much simulated device memory a handle uses from now on, in bytes.
pub fn set_handle_bytes(bytes: u64) {
    HANDLE_BYTES.store(bytes, Ordering::Relaxed);
}

/// Sets whether its handles keep scratch memory, as cuSOLVER's do.
pub fn set_keeps_scratch(keeps_scratch: bool) {
    KEEPS_SCRATCH.store(keeps_scratch, Ordering::Relaxed);
}

/// Sets how large a workspace handles created from now on get for each stream and each graph, as cuBLAS's do; 0 for
/// none.
pub fn set_workspace_bytes(bytes: u64) {
    WORKSPACE_BYTES.store(bytes, Ordering::Relaxed);
}

/// Returns the address of the workspace that the handle uses; 0 for the library's own.
///
/// # Safety
/// The address is that of a live handle of this library.
pub unsafe fn workspace_of(handle: *mut c_void) -> u64 {
    // SAFETY: the caller vouches for the handle.
    unsafe { &*handle.cast::<SimulatedHandle>() }.workspace.load(Ordering::Relaxed)
}

/// Sets another workspace on the handle, as its owner might do without the pool's knowledge.
///
/// # Safety
/// The address is that of a live handle of this library.
pub unsafe fn set_workspace_of(handle: *mut c_void, address: u64) {
    // SAFETY: the caller vouches for the handle.
    unsafe { &*handle.cast::<SimulatedHandle>() }.workspace.store(address, Ordering::Relaxed);
}

/// Returns how many times a handle of this library was reset for its next owner.
///
/// # Safety
/// The address is that of a live handle of this library.
pub unsafe fn resets_of(handle: *mut c_void) -> u64 {
    // SAFETY: the caller vouches for the handle.
    unsafe { &*handle.cast::<SimulatedHandle>() }.resets.load(Ordering::Relaxed)
}

fn inner(handle: &RawHandle) -> &SimulatedHandle {
    // SAFETY: a `RawHandle` of this library owns a `SimulatedHandle` until `destroy` takes it.
    unsafe { &*handle.as_ptr().cast() }
}

/// Returns the stream that was last set on a handle of this library.
///
/// # Safety
/// The address is that of a live handle of this library.
pub unsafe fn stream_of(handle: *mut c_void) -> usize {
    // SAFETY: the caller vouches for the handle.
    unsafe { &*handle.cast::<SimulatedHandle>() }.stream.load(Ordering::Relaxed)
}

/// The addresses of the live handles, for callers that cannot guarantee that one is live.
#[cfg(feature = "fault-injection")]
static LIVE: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Returns the stream that was last set on the handle at this address; none if no handle of this library is there.
#[cfg(feature = "fault-injection")]
pub fn stream_at(address: usize) -> Option<usize> {
    let live = lock(&LIVE);
    // SAFETY: the handle is live, and under the lock it stays so.
    live.contains(&address).then(|| unsafe { stream_of(std::ptr::with_exposed_provenance_mut(address)) })
}

impl Library for SimulatedLibrary {
    fn name(&self) -> &str {
        "simulated"
    }

    fn runtime(&self) -> Option<Kind> {
        Some(Kind::Host)
    }

    fn create(&self, device: Device) -> Result<RawHandle> {
        check(Call::HandleCreate)?;
        let bytes = HANDLE_BYTES.load(Ordering::Relaxed);
        host::allocate(bytes)?;
        let cost = CREATE_NANOSECONDS.load(Ordering::Relaxed);
        if cost > 0 {
            thread::sleep(Duration::from_nanos(cost));
        }
        let handle = Box::new(SimulatedHandle {
            stream: AtomicUsize::new(0),
            workspace: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            device,
            bytes,
        });
        let handle = NonNull::from(Box::leak(handle));
        let _address = handle.as_ptr().expose_provenance();
        #[cfg(feature = "fault-injection")]
        lock(&LIVE).insert(_address);
        // SAFETY: the box was just leaked for this handle, and `destroy` takes it back.
        let handle = unsafe { RawHandle::from_ptr(handle.cast()) };
        Ok(match WORKSPACE_BYTES.load(Ordering::Relaxed) {
            0 => handle,
            bytes => handle.with_workspaces(HandleWorkspaces::new(&WORKSPACES, bytes)),
        })
    }

    fn destroy(&self, handle: RawHandle) -> Result<()> {
        check(Call::HandleDestroy)?;
        #[cfg(feature = "fault-injection")]
        lock(&LIVE).remove(&handle.as_ptr().addr());
        // SAFETY: the handle owns the box that `create` leaked.
        let inner = unsafe { Box::from_raw(handle.as_ptr().cast::<SimulatedHandle>()) };
        let freed = host::synchronize_and_free(inner.device, inner.bytes);
        freed.and(handle.workspaces.map_or(Ok(()), |workspaces| workspaces.free()))
    }

    #[inline]
    fn set_stream(&self, handle: &RawHandle, stream: &Stream) -> Result<()> {
        check(Call::HandleSetStream)?;
        let raw = inner(handle);
        // Only the holder writes to it.
        let former = raw.stream.load(Ordering::Relaxed);
        raw.stream.store(stream.raw().address(), Ordering::Relaxed);
        let Some(workspaces) = &handle.workspaces else { return Ok(()) };
        let is_other = former != stream.raw().address();
        if is_other {
            raw.workspace.store(0, Ordering::Relaxed);
        }
        workspaces.fit(stream, is_other, |workspace| {
            raw.workspace.store(workspace.map_or(0, |workspace| workspace.address), Ordering::Relaxed);
            Ok(())
        })
    }

    #[inline]
    fn reset(&self, handle: &RawHandle) -> Result<()> {
        inner(handle).resets.fetch_add(1, Ordering::Relaxed);
        if let Some(workspaces) = &handle.workspaces {
            workspaces.forget();
        }
        Ok(())
    }

    fn keeps_scratch(&self) -> bool {
        KEEPS_SCRATCH.load(Ordering::Relaxed)
    }

    fn version(&self) -> Result<Option<Version>> {
        Ok(Some((1, 0, 0)))
    }

    fn handle_bytes(&self) -> u64 {
        HANDLE_BYTES.load(Ordering::Relaxed)
    }

    fn workspace_bytes(&self, device: Device) -> u64 {
        WORKSPACES.bytes(device)
    }

    fn release_workspaces(&self, device: Device) -> Result<()> {
        WORKSPACES.release_spare(device)
    }
}
