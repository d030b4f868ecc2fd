//! Looking for HIP: its library, every symbol of it that is called, and at least one device.
//!
//! Each way in which a machine can lack one of them has its own error, for it is what a user sees first.

use std::ffi::c_int;

use super::symbols::Symbols;
use super::virtual_memory::Mappings;
use super::{Hip, file};
use crate::error::{Error, Result};
use crate::runtime::symbols::Status;

/// `hipErrorNoDevice`.
const NO_DEVICE: Status = 100;

impl Hip {
    fn no_device(&self) -> Error {
        self.forget_last_error();
        Error::runtime_unavailable(
            "hip",
            "HIP sees no device; check HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, and that this user may open \
             /dev/kfd",
        )
    }

    /// Loads and initialises the library.
    ///
    /// # Errors
    /// `ErrorKind::RuntimeUnavailable` if there is no HIP, no device, or the library is too old.
    pub(in crate::runtime) fn probe() -> Result<Self> {
        let (library, file) = file::open_first().map_err(|tried| {
            let reason =
                format!("no HIP library was found ({tried}); install ROCm, or run on a machine with an AMD GPU");
            Error::runtime_unavailable("hip", reason)
        })?;
        // SAFETY: the file has the name of HIP's library, which is kept loaded for the life of the process below.
        let symbols = unsafe { Symbols::of(&library) }.map_err(|symbol| {
            let reason = format!(
                "{} lacks the symbol {}: it is too old; ROCm 5.6 or later is needed",
                file.display(),
                symbol.to_string_lossy()
            );
            Error::runtime_broken("hip", reason)
        })?;
        std::mem::forget(library);

        let mut hip =
            Self { symbols, version: (0, 0), devices: 0, mappings: Mappings::default(), private: Default::default() };
        let start = |e: Error| {
            let reason = format!(
                "HIP does not start ({e}); `rocminfo` says whether it works here, and a process forked after using HIP \
                 cannot use it"
            );
            Error::runtime_broken("hip", reason)
        };
        // SAFETY: `hipInit` may be called from any thread at any time; 0 is its only flag.
        match unsafe { (hip.symbols.init)(0) } {
            NO_DEVICE => return Err(hip.no_device()),
            status => hip.check("hipInit", status).map_err(start)?,
        }
        let mut count: c_int = 0;
        // SAFETY: `count` is a valid place for an int.
        match unsafe { (hip.symbols.device_count)(&mut count) } {
            NO_DEVICE => return Err(hip.no_device()),
            status => hip.check("hipGetDeviceCount", status).map_err(start)?,
        }
        hip.devices = count.unsigned_abs();
        if hip.devices == 0 {
            return Err(hip.no_device());
        }
        let mut version: c_int = 0;
        // SAFETY: `version` is a valid place for an int.
        hip.check("hipRuntimeGetVersion", unsafe { (hip.symbols.runtime_version)(&mut version) }).map_err(start)?;
        let version = version.unsigned_abs();
        hip.version = (version / 10_000_000, version / 100_000 % 100);
        Ok(hip)
    }
}
