//! `libgpupool_watch.so`, if the process was started with it (`crates/watch`): it counts what others in the process hold, and
//! asks here for memory before a call of theirs fails for want of it. The two find each other by one table.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use log::{info, warn};

use crate::error::{Bytes, MemoryHolder};
use crate::ids::Device;
use crate::memory::limits::reserved_on;
use crate::memory::peer::give_way;
use crate::memory::serve::{Help, Helper};
use crate::observe::target::MEMORY;
use crate::process;
use crate::shared_object;

type GiveWay = unsafe extern "C" fn(c_int, u64) -> u64;
type Reserved = unsafe extern "C" fn(c_int) -> u64;
type Tell = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, u64, u64, u64);

/// As in `crates/watch/src/members.rs`.
#[derive(Debug)]
#[repr(C)]
struct WatchTable {
    size: usize,
    join: unsafe extern "C" fn(GiveWay, Reserved) -> c_int,
    holders: unsafe extern "C" fn(c_int, Tell, *mut c_void),
    process_bytes: unsafe extern "C" fn(c_int) -> u64,
}

/// The table, once it was looked for.
static TABLE: OnceLock<Option<&'static WatchTable>> = OnceLock::new();

/// Joins those that give way, if there is something to join. Before the driver is loaded, so that its calls from here are
/// passed by.
pub(in crate::memory) fn join() {
    TABLE.get_or_init(|| {
        let address = shared_object::symbol_of_process(c"gpupool_watch")?.cast::<WatchTable>();
        // SAFETY: the name is that of the table, which lives as long as the process.
        let table = unsafe { address.as_ref() }.filter(|table| table.size >= size_of::<WatchTable>())?;
        // SAFETY: the table's function, which keeps the address of one that is never unloaded.
        if unsafe { (table.join)(asked_to_give_way, reserved) } == 0 {
            warn!(target: MEMORY, "too many gpupools in this process: this one does not give way to others");
        }
        Help::Others.is_from(&Watch);
        Some(table)
    });
}

fn table() -> Option<&'static WatchTable> {
    TABLE.get().copied().flatten().filter(|_| !process::is_forked())
}

/// Called on any thread, in the middle of a call of the driver that found no memory, with no lock of gpupool's.
unsafe extern "C" fn asked_to_give_way(device: c_int, bytes: u64) -> u64 {
    let Some(device) = device_of(device) else { return 0 };
    let given = catch_unwind(|| give_way(device, bytes)).unwrap_or(0);
    if given > 0 {
        let (given, bytes) = (Bytes(given), Bytes(bytes));
        info!(target: MEMORY, "{device}: the driver had no memory for another caller, who lacked {bytes}: {given} were given back");
    }
    given
}

unsafe extern "C" fn reserved(device: c_int) -> u64 {
    device_of(device).map_or(0, reserved_on)
}

fn device_of(number: c_int) -> Option<Device> {
    u32::try_from(number).ok().filter(|_| !process::is_forked()).map(Device::from_ordinal)
}

/// Returns whether the process is watched.
#[cfg(feature = "python")]
pub(crate) fn is_watched() -> bool {
    table().is_some()
}

/// Returns what NVML counts for this process on a device; none if it does not say, or nothing is watched.
pub(crate) fn process_bytes(device: Device) -> Option<u64> {
    // SAFETY: the table's function takes any number.
    let bytes = unsafe { (table()?.process_bytes)(device.ordinal() as c_int) };
    (bytes > 0).then_some(bytes)
}

#[derive(Debug)]
struct Watch;

impl Helper for Watch {
    fn give(&self, _device: Device, _bytes: u64) -> Option<u64> {
        None
    }

    fn holders(&self, device: Device) -> Vec<MemoryHolder> {
        unsafe extern "C" fn tell(
            found: *mut c_void,
            name: *const c_char,
            path: *const c_char,
            bytes: u64,
            peak_bytes: u64,
            count: u64,
        ) {
            // SAFETY: these are the list below and two strings.
            let (found, name, path) =
                unsafe { (&mut *found.cast::<Vec<MemoryHolder>>(), CStr::from_ptr(name), CStr::from_ptr(path)) };
            let [name, path] = [name, path].map(|text| text.to_string_lossy().into_owned());
            found.push(MemoryHolder { name, path, bytes, peak_bytes, count });
        }
        let mut found = Vec::<MemoryHolder>::new();
        if let Some(table) = table() {
            // SAFETY: `tell` is called before this returns, with the list.
            unsafe { (table.holders)(device.ordinal() as c_int, tell, (&raw mut found).cast()) };
        }
        found
    }
}
