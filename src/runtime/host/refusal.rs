//! How the simulated platform refuses a call.

use crate::error::{Error, StatusKind};

/// The error of a stream or event that does not exist.
pub(super) const INVALID_HANDLE: (&str, i32) = ("HOST_ERROR_INVALID_HANDLE", 400);

pub(crate) fn refused(function: &str, (status, code): (&str, i32), kind: StatusKind) -> Error {
    Error::refused("host", function, status, code, kind)
}
