//! Environment variables of gpupool. An empty one counts as not set, and an error names the variable with a wrong
//! value.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};

fn wrong(variable: &str, value: impl std::fmt::Debug, remedy: impl std::fmt::Display) -> Error {
    Error::invalid_value(format!("{variable}={value:?} {remedy}"))
}

pub(crate) fn text(variable: &str) -> Result<Option<String>> {
    let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.into_string().map(Some).map_err(|bytes| wrong(variable, bytes, "is not UTF-8; set it to plain text"))
}

/// Returns a variable's number; `default` if it is not set.
pub(crate) fn number(variable: &str, valid: RangeInclusive<u64>, default: u64) -> Result<u64> {
    let Some(text) = text(variable)? else { return Ok(default) };
    text.parse().ok().filter(|number| valid.contains(number)).ok_or_else(|| {
        let (least, most) = valid.into_inner();
        wrong(variable, text, format_args!("is not a whole number from {least} to {most}; set it to one, or unset it"))
    })
}

/// As [`number`], for one that may be negative.
pub(crate) fn integer(variable: &str, default: i32) -> Result<i32> {
    let Some(text) = text(variable)? else { return Ok(default) };
    text.parse().map_err(|_| {
        let (least, most) = (i32::MIN, i32::MAX);
        wrong(variable, text, format_args!("is not a whole number from {least} to {most}; set it to one, or unset it"))
    })
}

/// Returns whether a variable switches something on (`1`) or off (`0`); `default` if it is not set.
pub(crate) fn switch(variable: &str, default: bool) -> Result<bool> {
    match text(variable)?.as_deref() {
        None => Ok(default),
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(wrong(variable, other, "is neither 1 (on) nor 0 (off); set it to one of them, or unset it")),
    }
}
