//! Limits of a device's memory that NVIDIA's driver has for a control group of Linux, which NVML tells without rights and
//! without a context, from R615 on. NVML is part of the driver, and loaded when a limit is asked for. Where it or the function
//! is not there, or answers anything but a limit, there is none: a process that is not limited must not fail for that.
//!
//! The struct is `nvmlGetMemoryLimits_v1_t` of NVIDIA's reference
//! (<https://docs.nvidia.com/deploy/nvml-api/api/structnvmlGetMemoryLimits__v1__t.html>). Whose limit a group has that has none
//! of its own is up to the driver (<https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html>).

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use super::symbols::{SUCCESS, Status, symbols};
use super::uuid_text;
use crate::runtime::{DeviceUuid, GroupLimit};
use crate::shared_object::{NOW, open};

/// The name of every driver's file.
const FILE: &str = "libnvidia-ml.so.1";
/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: no limit.
const NONE: u64 = u64::MAX;

/// `nvmlGetMemoryLimits_v1_t`, with room behind it: it has no size in it by which a later driver would know.
#[repr(C)]
#[derive(Debug)]
pub(super) struct MemoryLimits {
    /// The path of the group's directory.
    group: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
    room: [u64; 0x1c],
}

symbols! {
    NvmlSymbols
    required {
        init c"nvmlInit_v2"() -> Status;
        device_of_uuid c"nvmlDeviceGetHandleByUUID"(*const c_char, *mut *mut c_void) -> Status;
        memory_limits c"nvmlDeviceGetMemoryLimits_v1"(*mut c_void, *mut MemoryLimits) -> Status;
    }
    optional {}
}

/// Returns NVML's functions; none where it has not all of them, or does not work. Looked for once, by several threads at
/// the same time if these are the first, since no lock is held meanwhile.
fn loaded() -> Option<&'static NvmlSymbols> {
    static LOADED: OnceLock<Option<NvmlSymbols>> = OnceLock::new();
    match LOADED.get() {
        Some(loaded) => loaded.as_ref(),
        None => {
            let found = load();
            LOADED.get_or_init(|| found).as_ref()
        }
    }
}

fn load() -> Option<NvmlSymbols> {
    let library = open(Path::new(FILE), NOW).ok()?;
    // SAFETY: the file has the name of NVML, which is kept loaded for the life of the process below.
    let symbols = unsafe { NvmlSymbols::of(&library, 0) }.ok()?;
    std::mem::forget(library);
    // SAFETY: it may be called from any thread at any time, and more than once.
    let started = unsafe { symbols.init.call() };
    (started.status == SUCCESS).then_some(symbols)
}

/// Returns the limit of a device's memory in a control group, by the group's directory.
pub(super) fn group_limit(device: DeviceUuid, group: &Path) -> Option<GroupLimit> {
    let nvml = loaded()?;
    let group = CString::new(group.as_os_str().as_encoded_bytes()).ok()?;
    // Instances of MIG have no such limits; no device has this UUID then.
    let uuid = CString::new(format!("GPU-{}", uuid_text(device))).ok()?;
    limits_in(nvml, device_of(nvml, &uuid)?, &group)
}

fn device_of(nvml: &NvmlSymbols, uuid: &CStr) -> Option<*mut c_void> {
    let mut device = ptr::null_mut();
    // SAFETY: NVML was initialised, the UUID is a string, and `device` is a valid place for a device.
    let found = unsafe { nvml.device_of_uuid.call(uuid.as_ptr(), &mut device) };
    (found.status == SUCCESS).then_some(device)
}

fn limits_in(nvml: &NvmlSymbols, device: *mut c_void, group: &CStr) -> Option<GroupLimit> {
    let mut limits = MemoryLimits { group: group.as_ptr(), soft: 0, hard: NONE, used: 0, room: [0; 0x1c] };
    // SAFETY: NVML returned the device, and `limits` is a valid place for the struct, whose group is a string.
    let told = unsafe { nvml.memory_limits.call(device, &mut limits) };
    let MemoryLimits { hard, used, .. } = limits;
    // With none at all no context could be made: nothing was written.
    let is_limit = told.status == SUCCESS && hard != NONE && hard != 0;
    is_limit.then_some(GroupLimit { bytes: hard, used })
}
