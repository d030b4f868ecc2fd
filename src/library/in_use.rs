//! The device memory that the handles of each library use: counted where handles are made and destroyed, so that errors
//! about memory can name them.

use std::sync::Mutex;

use super::Library;
use crate::error::{MemoryUse, OneLine};
use crate::ids::Device;
use crate::sync::lock;

/// The handles of one library on one device.
#[derive(Clone, Copy)]
struct HandlesInUse {
    library: &'static dyn Library,
    device: Device,
    handles: usize,
    bytes: u64,
}

static COUNTED: Mutex<Vec<HandlesInUse>> = Mutex::new(Vec::new());

/// Counts a handle that was made, and its bytes.
pub(crate) fn count_made(library: &'static dyn Library, device: Device, bytes: u64) {
    change(library, device, |counted| {
        counted.handles += 1;
        counted.bytes += bytes;
    });
}

/// Counts handles that were destroyed, and their bytes.
pub(crate) fn count_destroyed(library: &'static dyn Library, device: Device, handles: usize, bytes: u64) {
    change(library, device, |counted| {
        counted.handles -= handles;
        counted.bytes -= bytes;
    });
}

fn change(library: &'static dyn Library, device: Device, change: impl FnOnce(&mut HandlesInUse)) {
    let name = library.name();
    let mut all = lock(&COUNTED);
    let place = all.iter().position(|counted| counted.device == device && counted.library.name() == name);
    let place = place.unwrap_or_else(|| {
        all.push(HandlesInUse { library, device, handles: 0, bytes: 0 });
        all.len() - 1
    });
    change(&mut all[place]);
}

/// Returns the device memory that the handles of each library use, with their workspaces.
pub(crate) fn handles_in_use(device: Device) -> Vec<MemoryUse> {
    // A copy, so that no lock is held while a library is asked.
    let all = lock(&COUNTED).clone();
    let of_device = all.into_iter().filter(|counted| counted.device == device);
    let used = of_device.map(|HandlesInUse { library, handles, bytes, .. }| MemoryUse {
        pool: OneLine(library.name()).to_string(),
        count: handles,
        bytes: bytes + library.workspace_bytes(device),
        live_bytes: None,
    });
    used.filter(|used| used.bytes > 0 || used.count > 0).collect()
}
