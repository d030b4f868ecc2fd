//! Looking for the CUDA driver: its library, every symbol of it that is called, and at least one device.

use std::ffi::CStr;
use std::path::Path;

use cudarc::driver::sys;

use super::device::CudaDevice;
use super::{Cuda, check};
use crate::error::{Error, Result};
use crate::shared_object;

/// Every symbol that gpupool calls, so that a driver without one is refused with its name.
const SYMBOLS: &[&CStr] = &[
    c"cuInit",
    c"cuDriverGetVersion",
    c"cuDeviceGetCount",
    c"cuDeviceGet",
    c"cuDeviceGetName",
    c"cuDeviceGetUuid_v2",
    c"cuDeviceGetPCIBusId",
    c"cuDevicePrimaryCtxGetState",
    c"cuDevicePrimaryCtxRetain",
    c"cuCtxGetCurrent",
    c"cuCtxSetCurrent",
    c"cuCtxGetDevice",
    c"cuCtxSynchronize",
    c"cuMemGetInfo_v2",
    c"cuThreadExchangeStreamCaptureMode",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamGetCtx",
    c"cuStreamQuery",
    c"cuStreamSynchronize",
    c"cuStreamWaitEvent",
    c"cuStreamIsCapturing",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventRecord",
    c"cuEventQuery",
    c"cuEventSynchronize",
    c"cuDeviceTotalMem_v2",
    c"cuDeviceCanAccessPeer",
    c"cuDeviceGetAttribute",
    c"cuMemGetAllocationGranularity",
    c"cuMemAddressReserve",
    c"cuMemAddressFree",
    c"cuMemCreate",
    c"cuMemRelease",
    c"cuMemMap",
    c"cuMemExportToShareableHandle",
    c"cuMemImportFromShareableHandle",
    c"cuIpcGetEventHandle",
    c"cuIpcOpenEventHandle",
    c"cuMemSetAccess",
    c"cuMemUnmap",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemHostAlloc",
    c"cuMemHostRegister_v2",
    c"cuMemHostUnregister",
    c"cuMemFreeHost",
    c"cuMemAlloc_v2",
    c"cuMemFree_v2",
    c"cuMemsetD8Async",
    c"cuMemAllocAsync",
    c"cuMemFreeAsync",
    c"cuDeviceGetMemPool",
    c"cuMemPoolGetAttribute",
    c"cuMemPoolSetAttribute",
    c"cuMemPoolTrimTo",
];

/// What tells of captures and keeps objects for graphs; the last came with CUDA 12.3.
const GRAPH_OBJECTS: &[&CStr] =
    &[c"cuUserObjectCreate", c"cuUserObjectRelease", c"cuGraphRetainUserObject", c"cuStreamGetCaptureInfo_v3"];

fn no_device() -> Error {
    Error::runtime_unavailable("cuda", "the NVIDIA driver sees no device; check CUDA_VISIBLE_DEVICES")
}

impl Cuda {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    /// `ErrorKind::RuntimeUnavailable` if there is no driver, no device, or the driver is too old.
    pub(in crate::runtime) fn probe() -> Result<Self> {
        let library = shared_object::open(Path::new("libcuda.so.1"), shared_object::NOW).map_err(|reason| {
            let reason = format!(
                "no NVIDIA driver was found ({reason}); install the driver, or run on a machine with an NVIDIA GPU"
            );
            Error::runtime_unavailable("cuda", reason)
        })?;
        if let Some(symbol) = shared_object::missing_symbol(&library, SYMBOLS) {
            let reason = format!(
                "libcuda.so.1 lacks the symbol {}: the driver is too old, or a profiler has put its own libcuda in \
                 front; CUDA 12 or later is needed",
                symbol.to_string_lossy()
            );
            return Err(Error::runtime_broken("cuda", reason));
        }
        let has = |symbols: &[&'static CStr]| shared_object::missing_symbol(&library, symbols).is_none();
        let has_context_events = has(&[c"cuCtxRecordEvent", c"cuCtxWaitEvent"]);
        let has_graph_objects = has(GRAPH_OBJECTS);
        let has_green_contexts = has(&[c"cuStreamGetCtx_v2"]);
        // The driver stays loaded for the life of the process.
        std::mem::forget(library);

        // SAFETY: `cuInit` may be called from any thread at any time; 0 is its only flag.
        let status = unsafe { sys::cuInit(0) };
        if status == sys::CUresult::CUDA_ERROR_NO_DEVICE {
            return Err(no_device());
        }
        check("cuInit", status).map_err(|e| {
            Error::runtime_broken("cuda", format!("the NVIDIA driver does not start ({e}); `nvidia-smi` says whether it works here, and a process forked after using CUDA cannot use it"))
        })?;
        let mut version = 0;
        // SAFETY: `version` is a valid place for an int.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
        let mut count = 0;
        // SAFETY: `count` is a valid place for an int.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        if count == 0 {
            return Err(no_device());
        }
        let mut devices = Vec::new();
        for ordinal in 0..count {
            let mut handle = 0;
            // SAFETY: `handle` is a valid place for a device.
            check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut handle, ordinal) })?;
            devices.push(CudaDevice::new(handle));
        }
        let version = version.unsigned_abs();
        let version = (version / 1000, version % 1000 / 10);
        Ok(Self { version, has_context_events, has_graph_objects, has_green_contexts, devices })
    }
}
