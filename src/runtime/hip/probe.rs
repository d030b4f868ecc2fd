//! Looking for HIP: its library, every symbol of it that is called, and at least one device. Each way in which one of
//! them can be missing has its own error, which is what a user sees first.

use std::ffi::c_int;
use std::path::Path;

use super::symbols::Symbols;
use super::virtual_memory::Mappings;
use super::{Hip, file};
use crate::error::{Error, Result};
use crate::runtime::symbols::{CallStatus, Status};
use crate::shared_object;

/// `hipErrorNoDevice`.
const NO_DEVICE: Status = 100;
/// `hipErrorInvalidDevice`: HIP also returns it without the kernel's driver of AMD's GPUs, where a distribution may
/// have installed the library for another package.
const INVALID_DEVICE: Status = 101;
/// Made by that driver, also visible in containers.
const KERNEL_DRIVER: &str = "/sys/class/kfd";
const OLDEST: (u32, u32) = (5, 6);
const NEEDED: &str = "ROCm 5.6 or later is needed";

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
    /// `ErrorKind::RuntimeUnavailable` if there is no HIP, no device, or the library does not work or is too old.
    pub(in crate::runtime) fn probe() -> Result<Self> {
        let (library, file) = file::open_first()?;
        let path = shared_object::file_of(&library, c"hipInit").unwrap_or(file);
        // SAFETY: the file has the name of HIP's library, which is kept loaded for the life of the process below.
        let symbols = unsafe { Symbols::of(&library) }.map_err(|symbol| {
            let symbol = symbol.to_string_lossy();
            let reason = format!("{} lacks the symbol {symbol}: it is too old; {NEEDED}", path.display());
            Error::runtime_broken("hip", reason)
        })?;
        std::mem::forget(library);
        let mut hip =
            Self { symbols, version: (0, 0), devices: 0, mappings: Mappings::default(), private: Default::default() };
        hip.start(&path)?;
        Ok(hip)
    }

    fn start(&mut self, path: &Path) -> Result<()> {
        let does_not_start = |error: Error| {
            let error = error.map_library(|refused| refused.path = Some(path.to_owned()));
            let reason = format!(
                "HIP does not start ({error}); `rocminfo` says whether it works here. See that the kernel's module amdgpu is \
                 loaded, that a container was started with --device=/dev/kfd --device=/dev/dri, and that no process was \
                 forked after it used HIP"
            );
            Error::runtime_broken("hip", reason)
        };
        let check = |hip: &Self, call: CallStatus| match call.status {
            NO_DEVICE => Err(hip.no_device()),
            INVALID_DEVICE if !Path::new(KERNEL_DRIVER).exists() => Err(hip.no_device()),
            _ => hip.check(call).map_err(does_not_start),
        };
        // SAFETY: `hipInit` may be called from any thread at any time; 0 is its only flag.
        check(self, unsafe { self.symbols.init.call(0) })?;
        let mut version: c_int = 0;
        // SAFETY: `version` is a valid place for an int.
        check(self, unsafe { self.symbols.runtime_version.call(&mut version) })?;
        let version = version.unsigned_abs();
        self.version = (version / 10_000_000, version / 100_000 % 100);
        if self.version < OLDEST {
            let (major, minor) = self.version;
            let reason = format!("{} is of HIP {major}.{minor}, which is too old; {NEEDED}", path.display());
            return Err(Error::runtime_broken("hip", reason));
        }
        let mut count: c_int = 0;
        // SAFETY: `count` is a valid place for an int.
        check(self, unsafe { self.symbols.device_count.call(&mut count) })?;
        self.devices = u32::try_from(count).unwrap_or(0);
        if self.devices == 0 { Err(self.no_device()) } else { Ok(()) }
    }
}
