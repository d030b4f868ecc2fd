//! Looking for the CUDA driver: its library, every function of it that is called, and at least one device. Each way in
//! which an installed driver can fail has its own error, which is what a user sees first.

use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};

use cudarc::driver::sys::CUresult;

use super::device::CudaDevice;
use super::symbols::Symbols;
use super::{CallStatus, Cuda, SUCCESS, Status};
use crate::error::{Error, Result};
use crate::shared_object::{self, Library};

/// The name of every driver's file. `libcuda.so`, without the number, may be a toolkit's stub.
const FILE: &str = "libcuda.so.1";
/// The oldest version of CUDA whose drivers work.
const OLDEST: (u32, u32) = (12, 0);
const NO_DEVICE: Status = CUresult::CUDA_ERROR_NO_DEVICE as Status;

const NOT_FOUND: &str =
    "install the driver, run on a machine with an NVIDIA GPU, or start the container with --gpus all";

fn no_device() -> Error {
    Error::runtime_unavailable("cuda", "the NVIDIA driver sees no device; check CUDA_VISIBLE_DEVICES")
}

fn broken(reason: String) -> Error {
    Error::runtime_broken("cuda", reason)
}

/// Returns the remedy for a driver that starts with this status.
fn remedy(status: Status) -> &'static str {
    // The numbers of `CUresult` in `cuda.h`, some of which are missing in some bindings.
    match status {
        34 => {
            "CUDA_ERROR_STUB_LIBRARY: this is the toolkit's stub, to link with, and no driver: take its folder, which ends in \"stubs\", off \
             LD_LIBRARY_PATH, so that the driver's own library is found"
        }
        802 => {
            "the machine is not ready: wait for it, and see that nvidia-fabricmanager runs where GPUs are joined by NVSwitch"
        }
        803 => {
            "the library and the kernel's module are of different drivers: reboot after an update, and take the folder of \
             cuda-compat or of another driver off LD_LIBRARY_PATH"
        }
        804 => "the library is of cuda-compat, which this GPU does not support: take its folder off LD_LIBRARY_PATH",
        805..=809 => "MPS refuses this process: see its control daemon, nvidia-cuda-mps-control, and its log",
        _ => {
            "`nvidia-smi` says whether it works here. See that the kernel's modules nvidia and nvidia_uvm are loaded, that a \
             container was started with --gpus all, and that no process was forked after it used CUDA"
        }
    }
}

/// Returns the version of CUDA that a driver supports, if it reports one.
fn version_of(library: &Library) -> Option<(u32, u32)> {
    let mut version: c_int = 0;
    // SAFETY: the type is the function's prototype in `cuda.h`; it may be called before all others, and `version` is a valid
    // place for an int.
    let status = unsafe {
        let function = library.get::<unsafe extern "C" fn(*mut c_int) -> Status>(c"cuDriverGetVersion").ok()?;
        function(&mut version)
    };
    (status == SUCCESS).then(|| as_version(version))
}

fn as_version(number: c_int) -> (u32, u32) {
    let number = number.unsigned_abs();
    (number / 1000, number % 1000 / 10)
}

fn open() -> Result<(Library, PathBuf)> {
    let file = Path::new(FILE);
    let library = shared_object::open(file, shared_object::NOW).map_err(|reason| {
        if shared_object::is_absent(file, &reason) {
            return Error::runtime_unavailable("cuda", format!("no NVIDIA driver was found ({reason}); {NOT_FOUND}"));
        }
        broken(format!(
            "the NVIDIA driver's library cannot be loaded ({reason}): install the driver again, or take the folder of that file \
             off LD_LIBRARY_PATH"
        ))
    })?;
    let path = [c"cuInit", c"cuDriverGetVersion"].iter().find_map(|symbol| shared_object::file_of(&library, symbol));
    Ok((library, path.unwrap_or_else(|| file.to_owned())))
}

fn lacks(symbol: &CStr, library: &Library, path: &Path) -> Error {
    let supported = version_of(library)
        .map_or_else(String::new, |(major, minor)| format!(", a driver that supports CUDA {major}.{minor},"));
    broken(format!(
        "{}{supported} lacks the symbol {}: the driver is too old, or a profiler has put its own libcuda in front; CUDA 12 or \
         later is needed",
        path.display(),
        symbol.to_string_lossy()
    ))
}

impl Cuda {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    /// `ErrorKind::RuntimeUnavailable` if there is no driver, no device, or the driver does not work or is too old.
    pub(in crate::runtime) fn probe() -> Result<Self> {
        let (library, path) = open()?;
        // SAFETY: the file has the name of CUDA's driver, which is kept loaded for the life of the process below.
        let symbols = unsafe { Symbols::of(&library) }.map_err(|symbol| lacks(symbol, &library, &path))?;
        std::mem::forget(library);
        let mut cuda = Self { symbols, version: (0, 0), devices: Vec::new() };
        cuda.start(&path)?;
        Ok(cuda)
    }

    fn start(&mut self, path: &Path) -> Result<()> {
        let does_not_start = |error: Error, status: Status| {
            let error = error.map_library(|refused| refused.path = Some(path.to_owned()));
            broken(format!("the NVIDIA driver does not start ({error}); {}", remedy(status)))
        };
        let check = |cuda: &Self, call: CallStatus| match call.status {
            NO_DEVICE => Err(no_device()),
            status => cuda.check(call).map_err(|error| does_not_start(error, status)),
        };
        // SAFETY: `cuInit` may be called from any thread at any time; 0 is its only flag.
        check(self, unsafe { self.symbols.init.call(0) })?;
        let mut version = 0;
        // SAFETY: `version` is a valid place for an int.
        check(self, unsafe { self.symbols.driver_version.call(&mut version) })?;
        self.version = as_version(version);
        if self.version < OLDEST {
            let (major, minor) = self.version;
            let reason = format!(
                "{} is a driver that supports CUDA {major}.{minor} at most, and CUDA 12 or later is needed: update the driver",
                path.display()
            );
            return Err(broken(reason));
        }
        let mut count = 0;
        // SAFETY: `count` is a valid place for an int.
        check(self, unsafe { self.symbols.device_count.call(&mut count) })?;
        for ordinal in 0..count {
            let mut handle = 0;
            // SAFETY: `handle` is a valid place for a device.
            check(self, unsafe { self.symbols.device.call(&mut handle, ordinal) })?;
            self.devices.push(CudaDevice::new(handle));
        }
        if self.devices.is_empty() { Err(no_device()) } else { Ok(()) }
    }
}
