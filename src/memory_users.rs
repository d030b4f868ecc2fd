//! What uses memory: pools of memory, and handles. Errors list them, and each gives back what it does not need.
//!
//! Memory and handles know nothing of each other; each registers here when it is first used.

use std::sync::Mutex;

use crate::error::MemoryUse;
use crate::ids::{Device, MemoryLocation};
use crate::sync::lock;

/// One kind of memory user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryUser {
    /// What it has of the memory there.
    pub(crate) used: fn(MemoryLocation) -> Vec<MemoryUse>,
    /// Gives back what it has and does not need, as far as that can be given back.
    pub(crate) release: fn(Device),
}

static USERS: Mutex<Vec<MemoryUser>> = Mutex::new(Vec::new());

/// Adds a kind; once for each.
pub(crate) fn add(user: MemoryUser) {
    lock(&USERS).push(user);
}

/// Returns a copy, so that no lock is held while one is asked.
fn users() -> Vec<MemoryUser> {
    lock(&USERS).clone()
}

/// Everything that gpupool has of the memory there.
pub(crate) fn all(location: MemoryLocation) -> Vec<MemoryUse> {
    users().iter().flat_map(|user| (user.used)(location)).collect()
}

/// Gives back everything that is not needed.
pub(crate) fn release(device: Device) {
    users().iter().for_each(|user| (user.release)(device));
}
