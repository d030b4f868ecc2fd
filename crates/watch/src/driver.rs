//! What this library itself asks of the driver, by the driver's own functions.

use std::ffi::{CStr, c_char, c_int};
use std::mem;

use crate::elf::Known;
use crate::linker::unasked_of_driver;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_NOT_FOUND`: for a program that is linked with a function which the driver lacks.
pub(crate) const NOT_FOUND: c_int = 500;

/// A function of the driver, looked up at its first call.
struct Asked {
    symbol: &'static CStr,
    address: Known,
}

/// Stands for an address where an older driver lacks the function, which is looked for once.
const MISSING: usize = usize::MAX;

impl Asked {
    const fn new(symbol: &'static CStr) -> Self {
        Self { symbol, address: Known::new() }
    }

    fn address(&self) -> Option<usize> {
        let found = || unasked_of_driver(self.symbol).map(|address| address.unwrap_or(MISSING));
        self.address.get_or(found).filter(|&address| address != MISSING)
    }
}

static DEVICE: Asked = Asked::new(c"cuCtxGetDevice");
static VERSION: Asked = Asked::new(c"cuDriverGetVersion");
static STREAM: Asked = Asked::new(c"cuStreamGetDevice");
static POINTER: Asked = Asked::new(c"cuPointerGetAttribute");
static CAPTURING: Asked = Asked::new(c"cuStreamIsCapturing");
static CONTEXT: Asked = Asked::new(c"cuCtxGetCurrent");
static INFO: Asked = Asked::new(c"cuMemGetInfo_v2");
static TOTAL: Asked = Asked::new(c"cuDeviceTotalMem_v2");
static STATE: Asked = Asked::new(c"cuDevicePrimaryCtxGetState");
static UUID: Asked = Asked::new(c"cuDeviceGetUuid_v2");

/// Returns the device of the calling thread's context.
pub(crate) fn current_device() -> Option<c_int> {
    let mut device = 0;
    // SAFETY: the address is that of this function, which writes to the place.
    let call: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { mem::transmute(DEVICE.address()?) };
    // SAFETY: as above.
    (unsafe { call(&mut device) } == SUCCESS).then_some(device)
}

/// Returns the version of CUDA that the driver came with.
pub(crate) fn version() -> Option<c_int> {
    let mut version = 0;
    // SAFETY: the address is that of this function, which writes to the place.
    let call: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { mem::transmute(VERSION.address()?) };
    // SAFETY: as above.
    (unsafe { call(&mut version) } == SUCCESS).then_some(version)
}

/// Returns the device of a stream: that of the thread's context for the null stream, and where the driver cannot say it,
/// which it can from CUDA 12.8 on.
pub(crate) fn device_of_stream(stream: usize) -> Option<c_int> {
    let Some(address) = STREAM.address().filter(|_| stream != 0) else { return current_device() };
    let mut device = 0;
    // SAFETY: the address is that of this function, which writes to the place.
    let call: unsafe extern "C" fn(usize, *mut c_int) -> c_int = unsafe { mem::transmute(address) };
    // SAFETY: as above, and the program uses the stream.
    if unsafe { call(stream, &mut device) } == SUCCESS { Some(device) } else { current_device() }
}

/// Returns the device of the memory at an address.
pub(crate) fn device_of(address: usize) -> Option<c_int> {
    const DEVICE_ORDINAL: c_int = 9;
    attribute_of(address, DEVICE_ORDINAL)
}

/// Returns whether the memory at an address is the host's.
pub(crate) fn is_of_host(address: usize) -> bool {
    const MEMORY_TYPE: c_int = 2;
    const HOST: c_int = 1;
    attribute_of(address, MEMORY_TYPE) == Some(HOST)
}

/// Returns an attribute of an address that is an int.
fn attribute_of(address: usize, attribute: c_int) -> Option<c_int> {
    let mut found = 0;
    // SAFETY: the address is that of this function, which writes an int for these attributes to the place.
    let call: unsafe extern "C" fn(*mut c_int, c_int, usize) -> c_int = unsafe { mem::transmute(POINTER.address()?) };
    // SAFETY: as above.
    (unsafe { call(&mut found, attribute, address) } == SUCCESS).then_some(found)
}

/// Returns whether a stream is captured, which the null stream cannot be.
pub(crate) fn is_captured(stream: usize) -> bool {
    const NONE: c_int = 0;
    let mut capture = NONE;
    let Some(address) = CAPTURING.address().filter(|_| stream != 0) else { return false };
    // SAFETY: the address is that of this function, which writes to the place.
    let call: unsafe extern "C" fn(usize, *mut c_int) -> c_int = unsafe { mem::transmute(address) };
    // SAFETY: as above, and the program has just used the stream.
    unsafe { call(stream, &mut capture) == SUCCESS && capture != NONE }
}

/// Returns the calling thread's context; 0 without one.
pub(crate) fn current_context() -> usize {
    let mut context = 0;
    let Some(address) = CONTEXT.address() else { return 0 };
    // SAFETY: the address is that of this function, which writes to the place.
    let call: unsafe extern "C" fn(*mut usize) -> c_int = unsafe { mem::transmute(address) };
    // SAFETY: as above.
    if unsafe { call(&mut context) } == SUCCESS { context } else { 0 }
}

/// Returns the free and all bytes of the device of the calling thread's context.
pub(crate) fn memory() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: the address is that of this function, which writes to the two places.
    let call: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int = unsafe { mem::transmute(INFO.address()?) };
    // SAFETY: as above.
    (unsafe { call(&mut free, &mut total) } == SUCCESS).then_some((free as u64, total as u64))
}

/// Returns all bytes of a device.
pub(crate) fn total(device: c_int) -> Option<u64> {
    let mut total = 0_usize;
    // SAFETY: the address is that of this function, which writes to the place.
    let call: unsafe extern "C" fn(*mut usize, c_int) -> c_int = unsafe { mem::transmute(TOTAL.address()?) };
    // SAFETY: as above.
    (unsafe { call(&mut total, device) } == SUCCESS).then_some(total as u64)
}

/// Returns whether the device's primary context is there.
pub(crate) fn has_primary_context(device: c_int) -> bool {
    let (mut flags, mut is_active) = (0, 0);
    let Some(address) = STATE.address() else { return true };
    // SAFETY: the address is that of this function, which writes to the two places.
    let call: unsafe extern "C" fn(c_int, *mut u32, *mut c_int) -> c_int = unsafe { mem::transmute(address) };
    // SAFETY: as above.
    unsafe { call(device, &mut flags, &mut is_active) != SUCCESS || is_active != 0 }
}

/// Returns the bytes of a device's memory that this process has, as NVML counts them, with its contexts and its code. NVML's
/// number of a device is not the driver's, so it is asked by the device's UUID.
pub(crate) fn process_bytes(device: c_int) -> Option<u64> {
    type Count = unsafe extern "C" fn(usize, *mut u32, *mut Process) -> c_int;
    /// `nvmlProcessInfo_v2_t`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Process {
        process: u32,
        bytes: u64,
        instances: [u32; 2],
    }
    /// More processes than one device has.
    const MOST: usize = 256;

    let mut uuid = [0_u8; 16];
    // SAFETY: the address is that of this function, which writes 16 bytes to the place.
    let call: unsafe extern "C" fn(*mut u8, c_int) -> c_int = unsafe { mem::transmute(UUID.address()?) };
    // SAFETY: as above.
    if unsafe { call(uuid.as_mut_ptr(), device) } != SUCCESS {
        return None;
    }
    // The child of a fork may ask, which has no memory of the host from here.
    let mut text = *b"GPU-........-....-....-....-............\0";
    let digits = uuid.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| b"0123456789abcdef"[digit as usize]);
    text.iter_mut().filter(|place| **place == b'.').zip(digits).for_each(|(place, digit)| *place = digit);
    // SAFETY: the library is NVIDIA's, and stays open.
    let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the handle is the library's, and the name is a string.
    let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) as usize };
    let [begin, find, count] =
        [c"nvmlInit_v2", c"nvmlDeviceGetHandleByUUID", c"nvmlDeviceGetComputeRunningProcesses_v3"].map(symbol);
    if [begin, find, count].contains(&0) {
        return None;
    }
    let (mut handle, mut found) = (0_usize, MOST as u32);
    let mut processes = [Process { process: 0, bytes: 0, instances: [0; 2] }; MOST];
    // SAFETY: these are NVML's functions of these types, which write to the places.
    unsafe {
        let begin: unsafe extern "C" fn() -> c_int = mem::transmute(begin);
        let find: unsafe extern "C" fn(*const c_char, *mut usize) -> c_int = mem::transmute(find);
        let count: Count = mem::transmute(count);
        if begin() != SUCCESS
            || find(text.as_ptr().cast(), &mut handle) != SUCCESS
            || count(handle, &mut found, processes.as_mut_ptr()) != SUCCESS
        {
            return None;
        }
    }
    let own = processes.iter().take(found as usize).find(|one| one.process == std::process::id())?;
    // All bits are set where it is not known.
    Some(own.bytes).filter(|&bytes| bytes != u64::MAX)
}
