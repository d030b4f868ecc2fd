//! Work that simulated streams do with bytes: copies between a device and the host, and fills.

use std::ptr;

/// A piece of work on a stream, which is done when its turn comes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Copies bytes from one address to another.
    Copy { to: u64, from: u64, bytes: u64 },
    /// Sets bytes.
    Fill { address: u64, byte: u8, bytes: u64 },
}

impl Work {
    /// # Safety
    /// The memory is as large as said and still there.
    pub(super) unsafe fn run(self) {
        let pointer = |address: u64| ptr::with_exposed_provenance_mut::<u8>(address as usize);
        match self {
            // SAFETY: the caller promises that both places are there; `copy` allows them to overlap.
            Self::Copy { to, from, bytes } => unsafe { ptr::copy(pointer(from), pointer(to), bytes as usize) },
            // SAFETY: the caller promises that the memory is there.
            Self::Fill { address, byte, bytes } => unsafe { pointer(address).write_bytes(byte, bytes as usize) },
        }
    }
}
