//! Looking for a driver: its library, every function of it that is called, and at least one device. Each way in which an
//! installed driver can fail has its own error, which is what a user sees first.

use std::ffi::{CStr, c_int};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use super::cuda::Cuda;
use super::hip::Hip;
use super::symbols::{SUCCESS, Status, Symbol, SymbolTable, Symbols, look_up};
use super::{Driver, DriverDevice, DriverVendor};
use crate::error::{Error, Result};
use crate::shared_object::{self, IF_LOADED, Library, NOW, file_of, is_absent};
use crate::site_packages;

/// The names of HIP's, which have its major version, newest first.
const SONAMES: [&str; 4] = ["libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];
/// Names the only file or folder to look at for HIP.
const HIP_VARIABLE: &str = "GPUPOOL_AMDHIP64_PATH";
/// `CUDA_ERROR_NO_DEVICE` and `hipErrorNoDevice`.
const NO_DEVICE: Status = 100;
/// `hipErrorInvalidDevice`: HIP also returns it without the kernel's driver of AMD's GPUs, where a distribution may
/// have installed the library for another package.
const INVALID_DEVICE: Status = 101;
/// Made by that driver, also visible in containers.
const KERNEL_DRIVER: &str = "/sys/class/kfd";

/// `cuDeviceGet`.
type DeviceOf = unsafe extern "C" fn(*mut c_int, c_int) -> Status;

/// How a vendor's driver is looked for, and what a user is told of one that does not work.
pub(super) trait Probed: DriverVendor + SymbolTable {
    /// Those by which the library's own file is found.
    const FIRST_SYMBOLS: &'static [&'static CStr];
    const OLDEST: (u32, u32);
    /// A version's number is as many of the first as its major part, and as many of the second as its minor one.
    const VERSION_UNITS: (u32, u32);
    const NAME: &'static str;
    const NO_DEVICE: &'static str;
    const NOT_FOUND: (&'static str, &'static str);
    const NOT_LOADED: &'static str;
    const TOO_OLD: (&'static str, &'static str);
    const SYMBOL_LACKS: &'static str;

    /// Opens the library, and returns it with the name of its file.
    fn open() -> Result<(Library, PathBuf)>;

    /// Returns what a library that lacks a symbol says of itself.
    fn described(_library: &Library) -> String {
        String::new()
    }

    /// Returns the function by which the driver has a handle for an ordinal, if that is not the ordinal itself.
    fn device(&self) -> Option<Symbol<DeviceOf>> {
        None
    }

    /// Returns whether a driver that starts with this status has no device.
    fn sees_no_device(status: Status) -> bool;

    /// Returns the remedy for a driver that starts with this status.
    fn remedy(status: Status) -> &'static str;
}

impl<V: Probed> Driver<V> {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    /// `ErrorKind::RuntimeUnavailable` if there is no driver, no device, or the driver does not work or is too old.
    pub(super) fn probe() -> Result<Self> {
        let (library, name) = V::open()?;
        let path = V::FIRST_SYMBOLS.iter().find_map(|symbol| file_of(&library, symbol)).unwrap_or(name);
        // SAFETY: the file has the name of the vendor's driver, which is kept loaded for the life of the process below.
        let found = unsafe {
            // Each function has its names in the order of the kinds.
            Symbols::of(&library, V::KIND as usize).and_then(|symbols| Ok((symbols, V::of(&library, 0)?)))
        };
        let (symbols, vendor) = found.map_err(|symbol| {
            let (path, symbol, why) = (path.display(), symbol.to_string_lossy(), V::SYMBOL_LACKS);
            Self::broken(format!("{path}{} lacks the symbol {symbol}: {why}", V::described(&library)))
        })?;
        mem::forget(library);
        let mappings = V::MAPS_ONE_BY_ONE.then(Mutex::default);
        let mut driver = Self { symbols, version: (0, 0), devices: Vec::new(), mappings, vendor };
        driver.start(&path)?;
        Ok(driver)
    }

    fn broken(reason: String) -> Error {
        Error::runtime_broken(V::KIND.name(), reason)
    }

    fn no_device(&self) -> Error {
        self.vendor.forget_last_error();
        Error::runtime_unavailable(V::KIND.name(), V::NO_DEVICE)
    }

    fn does_not_start(&self, function: &'static CStr, status: Status, path: &Path) -> Error {
        if V::sees_no_device(status) {
            return self.no_device();
        }
        let error = self.refused(function, status).map_library(|refused| refused.path = Some(path.to_owned()));
        Self::broken(format!("{} does not start ({error}); {}", V::NAME, V::remedy(status)))
    }

    fn begin<F: Copy>(&self, path: &Path, symbol: &Symbol<F>, call: impl FnOnce(F) -> Status) -> Result<()> {
        match call(symbol.function) {
            SUCCESS => Ok(()),
            status => Err(self.does_not_start(symbol.name, status, path)),
        }
    }

    fn start(&mut self, path: &Path) -> Result<()> {
        // SAFETY: the function may be called from any thread at any time; 0 is its only flag.
        self.begin(path, &self.symbols.init, |call| unsafe { call(0) })?;
        let mut version = 0;
        // SAFETY: `version` is a valid place for an int.
        self.begin(path, &self.symbols.driver_version, |call| unsafe { call(&mut version) })?;
        self.version = version_of::<V>(version);
        if self.version < V::OLDEST {
            let ((what, needed), (major, minor)) = (V::TOO_OLD, self.version);
            return Err(Self::broken(format!("{} is {what} {major}.{minor}{needed}", path.display())));
        }
        let mut count = 0;
        // SAFETY: `count` is a valid place for an int.
        self.begin(path, &self.symbols.device_count, |call| unsafe { call(&mut count) })?;
        for ordinal in 0..count {
            let mut handle = ordinal;
            if let Some(device) = self.vendor.device() {
                // SAFETY: `handle` is a valid place for a device.
                self.begin(path, &device, |call| unsafe { call(&mut handle, ordinal) })?;
            }
            self.devices.push(DriverDevice { handle, primary: OnceLock::new(), extent_use: OnceLock::new() });
        }
        if self.devices.is_empty() { Err(self.no_device()) } else { Ok(()) }
    }

    /// Returns the error of files of which none could be opened, by the reasons, and whether one of the files exists.
    fn unopened((tried, is_present): (String, bool)) -> Error {
        if is_present {
            return Self::broken(format!("{}'s library cannot be loaded ({tried}){}", V::NAME, V::NOT_LOADED));
        }
        let (what, remedy) = V::NOT_FOUND;
        Error::runtime_unavailable(V::KIND.name(), format!("no {what} was found ({tried}); {remedy}"))
    }
}

/// Opens the first of these files that can be; else returns what [`Driver::unopened`] is given.
fn first_of(files: impl IntoIterator<Item = PathBuf>) -> std::result::Result<(Library, PathBuf), (String, bool)> {
    let (mut tried, mut is_present) = (Vec::new(), false);
    for file in files {
        match shared_object::open(&file, NOW) {
            Ok(library) => return Ok((library, file)),
            Err(reason) => {
                is_present |= !is_absent(&file, &reason);
                tried.push(reason);
            }
        }
    }
    Err((tried.join("; "), is_present))
}

fn version_of<V: Probed>(number: c_int) -> (u32, u32) {
    let (number, (major, minor)) = (number.unsigned_abs(), V::VERSION_UNITS);
    (number / major, number % major / minor)
}

impl Probed for Cuda {
    const FIRST_SYMBOLS: &'static [&'static CStr] = &[c"cuInit", c"cuDriverGetVersion"];
    const OLDEST: (u32, u32) = (12, 0);
    const VERSION_UNITS: (u32, u32) = (1000, 10);
    const NAME: &'static str = "the NVIDIA driver";
    const NO_DEVICE: &'static str = "the NVIDIA driver sees no device; check CUDA_VISIBLE_DEVICES";
    const NOT_FOUND: (&'static str, &'static str) = (
        "NVIDIA driver",
        "install the driver, run on a machine with an NVIDIA GPU, or start the container with --gpus all",
    );
    const NOT_LOADED: &'static str = ": install the driver again, or take the folder of that file off LD_LIBRARY_PATH";
    const TOO_OLD: (&'static str, &'static str) =
        ("a driver that supports CUDA", " at most, and CUDA 12 or later is needed: update the driver");
    const SYMBOL_LACKS: &'static str =
        "the driver is too old, or a profiler has put its own libcuda in front; CUDA 12 or later is needed";

    fn open() -> Result<(Library, PathBuf)> {
        // `libcuda.so`, without the number, may be a toolkit's stub.
        first_of([PathBuf::from("libcuda.so.1")]).map_err(Driver::<Self>::unopened)
    }

    /// Returns the version of CUDA that the driver supports, if it reports one.
    fn described(library: &Library) -> String {
        // SAFETY: the type is the function's prototype in `cuda.h`.
        let function = unsafe { look_up::<unsafe extern "C" fn(*mut c_int) -> Status>(library, c"cuDriverGetVersion") };
        let Ok(function) = function else { return String::new() };
        let mut version = 0;
        // SAFETY: the function may be called before all others, and `version` is a valid place for an int.
        let told = unsafe { (function.function)(&mut version) };
        let (major, minor) = version_of::<Self>(version);
        if told == SUCCESS { format!(", a driver that supports CUDA {major}.{minor},") } else { String::new() }
    }

    fn device(&self) -> Option<Symbol<DeviceOf>> {
        Some(self.device)
    }

    fn sees_no_device(status: Status) -> bool {
        status == NO_DEVICE
    }

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
            804 => {
                "the library is of cuda-compat, which this GPU does not support: take its folder off LD_LIBRARY_PATH"
            }
            805..=809 => "MPS refuses this process: see its control daemon, nvidia-cuda-mps-control, and its log",
            _ => {
                "`nvidia-smi` says whether it works here. See that the kernel's modules nvidia and nvidia_uvm are loaded, that a \
                 container was started with --gpus all, and that no process was forked after it used CUDA"
            }
        }
    }
}

impl Probed for Hip {
    const FIRST_SYMBOLS: &'static [&'static CStr] = &[c"hipInit"];
    const OLDEST: (u32, u32) = (5, 6);
    const VERSION_UNITS: (u32, u32) = (10_000_000, 100_000);
    const NAME: &'static str = "HIP";
    const NO_DEVICE: &'static str = "HIP sees no device; check HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, and that this \
                                     user may open /dev/kfd";
    const NOT_FOUND: (&'static str, &'static str) =
        ("HIP library", "install ROCm, or run on a machine with an AMD GPU");
    const NOT_LOADED: &'static str = "; install ROCm again";
    const TOO_OLD: (&'static str, &'static str) = ("of HIP", ", which is too old; ROCm 5.6 or later is needed");
    const SYMBOL_LACKS: &'static str = "it is too old; ROCm 5.6 or later is needed";

    /// Opens a copy that the process has, those of wheels, conda, the toolkit, the system. A second copy is never loaded,
    /// since each has devices, streams and memory of its own.
    fn open() -> Result<(Library, PathBuf)> {
        if let Some(wanted) = std::env::var_os(HIP_VARIABLE).filter(|wanted| !wanted.is_empty()).map(PathBuf::from) {
            let files = if wanted.is_dir() { in_folder(&wanted) } else { vec![wanted] };
            return first_of(files).map_err(|(tried, _)| {
                let tried = format!("{tried}, from {HIP_VARIABLE}");
                Driver::<Self>::broken(format!("no HIP library was found ({tried}); name another file, or unset it"))
            });
        }
        for soname in SONAMES {
            if let Ok(library) = shared_object::open(Path::new(soname), IF_LOADED) {
                return Ok((library, soname.into()));
            }
        }
        // In the order of the search for libraries, since those of a wheel work with that wheel's HIP. PyTorch's has no
        // version in its name.
        let torch = site_packages::below("torch/lib").into_iter().map(|folder| folder.join("libamdhip64.so"));
        let wheels = site_packages::below("_rocm_sdk_core*/lib").into_iter().flat_map(|folder| in_folder(&folder));
        let conda = site_packages::variables(["CONDA_PREFIX"]).map(|root| root.join("lib"));
        let toolkit = site_packages::variables(["ROCM_PATH", "HIP_PATH"]).map(|root| root.join("lib"));
        let here = wheels.chain(torch).chain(conda.chain(toolkit).flat_map(|folder| in_folder(&folder)));
        let elsewhere = SONAMES.map(PathBuf::from).into_iter().chain(in_folder(Path::new("/opt/rocm/lib")));
        first_of(here.filter(|file| file.exists()).chain(elsewhere)).map_err(Driver::<Self>::unopened)
    }

    fn sees_no_device(status: Status) -> bool {
        status == NO_DEVICE || status == INVALID_DEVICE && !Path::new(KERNEL_DRIVER).exists()
    }

    fn remedy(_status: Status) -> &'static str {
        "`rocminfo` says whether it works here. See that the kernel's module amdgpu is loaded, that a container was started \
         with --device=/dev/kfd --device=/dev/dri, and that no process was forked after it used HIP"
    }
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    SONAMES.iter().map(|soname| folder.join(soname)).collect()
}
