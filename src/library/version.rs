//! How a library reports its version, if it does.

use std::ffi::{CStr, c_int};

use super::description::VersionCall;
use super::find::Loaded;
use super::{RawHandle, Version};
use crate::error::Result;

type PropertyFn = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type NumberFn = unsafe extern "C" fn() -> usize;
type ThreeFn = unsafe extern "C" fn(*mut usize, *mut usize, *mut usize) -> c_int;
type OfHandleFn = unsafe extern "C" fn(*mut std::ffi::c_void, *mut c_int) -> c_int;

/// A [`VersionCall`] of a loaded library.
#[derive(Debug)]
pub(super) enum VersionFunction {
    Property(PropertyFn),
    Number(NumberFn),
    Three(ThreeFn),
    OfHandle(OfHandleFn),
    None,
}

impl VersionCall {
    /// Returns the function's name.
    pub(super) const fn name(&self) -> Option<&'static CStr> {
        match *self {
            Self::Property(name) | Self::Number(name) | Self::Three(name) | Self::OfHandle(name) => Some(name),
            Self::None => None,
        }
    }
}

impl VersionFunction {
    pub(super) fn load(loaded: &Loaded, call: &VersionCall) -> Result<Self> {
        // SAFETY: each type is the C prototype of that symbol in the vendor's headers, and the library stays loaded.
        unsafe {
            Ok(match *call {
                VersionCall::Property(name) => Self::Property(loaded.function(name)?),
                VersionCall::Number(name) => Self::Number(loaded.function(name)?),
                VersionCall::Three(name) => Self::Three(loaded.function(name)?),
                VersionCall::OfHandle(name) => Self::OfHandle(loaded.function(name)?),
                VersionCall::None => Self::None,
            })
        }
    }

    /// Returns the version; none if no function reports it without a handle.
    ///
    /// # Errors
    /// The library's status.
    pub(super) fn read(&self) -> Result<Option<Version>, c_int> {
        let (mut version, status) = ([0; 3], |status| if status == 0 { Ok(()) } else { Err(status) });
        match *self {
            Self::Property(property) => {
                for (kind, place) in (0..).zip(&mut version) {
                    let mut number = 0;
                    // SAFETY: `number` is a valid place for an int, and 0, 1 and 2 are the three properties.
                    status(unsafe { property(kind, &mut number) })?;
                    *place = number as u32;
                }
            }
            Self::Number(number) => {
                // SAFETY: the function takes nothing and needs no handle.
                let number = unsafe { number() } as u32;
                version = [number / 10_000, number % 10_000 / 100, number % 100];
            }
            Self::Three(three) => {
                let (mut major, mut minor, mut patch) = (0, 0, 0);
                // SAFETY: all three are valid places for a size, and no handle is needed.
                status(unsafe { three(&mut major, &mut minor, &mut patch) })?;
                version = [major as u32, minor as u32, patch as u32];
            }
            Self::OfHandle(_) | Self::None => return Ok(None),
        }
        Ok(Some(version.into()))
    }

    /// Returns the version that a handle reports, which was just made; none if handles report none.
    pub(super) fn read_of(&self, new: &RawHandle) -> Option<Version> {
        let Self::OfHandle(of_handle) = self else { return None };
        let mut number = 0;
        // SAFETY: the handle is live, only the caller knows it, and `number` is a valid place for an int.
        let status = unsafe { of_handle(new.as_ptr(), &mut number) };
        let number = number.unsigned_abs();
        (status == 0).then_some((number / 100_000, number % 100_000 / 100, number % 100))
    }
}
