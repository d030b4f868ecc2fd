//! Who holds device memory, for the errors that say so. Handles and memory know nothing of each other; both tell this.

use std::sync::{Mutex, PoisonError};

use crate::stream::Device;

/// What one of them holds on a device: name, handles or blocks, bytes.
pub(crate) type Holder = (String, usize, u64);
/// Tells the holders of one kind.
type Tell = fn(Device) -> Vec<Holder>;

static TELLERS: Mutex<Vec<Tell>> = Mutex::new(Vec::new());

/// Adds holders of a kind; once for each.
pub(crate) fn add(tell: Tell) {
    TELLERS.lock().unwrap_or_else(PoisonError::into_inner).push(tell);
}

/// Everything that gpupool holds on the device.
pub(crate) fn all(device: Device) -> Vec<Holder> {
    let tellers = TELLERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    tellers.iter().flat_map(|tell| tell(device)).collect()
}
