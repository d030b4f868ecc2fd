//! The devices, as a program in Rust asks for one before it does anything else.

use crate::error::Result;
use crate::ids::Device;
use crate::{memory, runtime};

/// Returns the device with this ordinal.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; otherwise as [`runtime::get`].
pub fn device(ordinal: i64) -> Result<Device> {
    memory::watch_neighbours();
    runtime::device(ordinal)
}
