//! Who holds device memory: what the errors say of it, and how each gives back what nobody uses. Handles and memory know
//! nothing of each other; both are told of here.

use std::sync::{Mutex, PoisonError};

use crate::stream::Device;

/// What one of them holds on a device: name, handles or blocks, bytes.
pub(crate) type Held = (String, usize, u64);

/// One kind of holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryHolder {
    /// What it holds.
    pub(crate) held: fn(Device) -> Vec<Held>,
    /// Gives back what nobody uses, as far as it can be given back.
    pub(crate) release: fn(Device),
}

static HOLDERS: Mutex<Vec<MemoryHolder>> = Mutex::new(Vec::new());

/// Adds a kind; once for each.
pub(crate) fn add(holder: MemoryHolder) {
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(holder);
}

fn holders() -> Vec<MemoryHolder> {
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Everything that gpupool holds on the device.
pub(crate) fn all(device: Device) -> Vec<Held> {
    holders().iter().flat_map(|holder| (holder.held)(device)).collect()
}

/// Gives back everything that nobody uses.
pub(crate) fn release(device: Device) {
    holders().iter().for_each(|holder| (holder.release)(device));
}
