//! The functions of `libcuda.so.1` that gpupool calls, looked up when the driver is opened. Names and prototypes are
//! those of `cuda.h`, with ints in place of enums. A driver that lacks one is refused; those at the end are optional,
//! as they came after the oldest supported driver.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUdeviceptr, CUipcEventHandle, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
};

use crate::runtime::symbols::{Status, symbols};

/// `CUhostFn`: drops a value that a graph kept.
pub(super) type DropKept = unsafe extern "C" fn(*mut c_void);

symbols! {
    required {
        init c"cuInit" (c_uint) -> Status;
        error_name c"cuGetErrorName" (Status, *mut *const c_char) -> Status;
        driver_version c"cuDriverGetVersion" (*mut c_int) -> Status;
        device_count c"cuDeviceGetCount" (*mut c_int) -> Status;
        device c"cuDeviceGet" (*mut c_int, c_int) -> Status;
        device_name c"cuDeviceGetName" (*mut c_char, c_int, c_int) -> Status;
        device_uuid c"cuDeviceGetUuid_v2" (*mut [u8; 16], c_int) -> Status;
        device_pci_bus_id c"cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int) -> Status;
        device_attribute c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int) -> Status;
        device_total_memory c"cuDeviceTotalMem_v2" (*mut usize, c_int) -> Status;
        device_can_access_peer c"cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int) -> Status;
        primary_state c"cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int) -> Status;
        primary_retain c"cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int) -> Status;
        get_context c"cuCtxGetCurrent" (*mut *mut c_void) -> Status;
        set_context c"cuCtxSetCurrent" (*mut c_void) -> Status;
        device_of_context c"cuCtxGetDevice" (*mut c_int) -> Status;
        context_synchronize c"cuCtxSynchronize" () -> Status;
        memory_info c"cuMemGetInfo_v2" (*mut usize, *mut usize) -> Status;
        exchange_capture_mode c"cuThreadExchangeStreamCaptureMode" (*mut c_int) -> Status;
        stream_create c"cuStreamCreate" (*mut *mut c_void, c_uint) -> Status;
        stream_destroy c"cuStreamDestroy_v2" (*mut c_void) -> Status;
        stream_id c"cuStreamGetId" (*mut c_void, *mut c_ulonglong) -> Status;
        stream_context c"cuStreamGetCtx" (*mut c_void, *mut *mut c_void) -> Status;
        stream_query c"cuStreamQuery" (*mut c_void) -> Status;
        stream_synchronize c"cuStreamSynchronize" (*mut c_void) -> Status;
        stream_wait_event c"cuStreamWaitEvent" (*mut c_void, *mut c_void, c_uint) -> Status;
        stream_is_capturing c"cuStreamIsCapturing" (*mut c_void, *mut c_int) -> Status;
        event_create c"cuEventCreate" (*mut *mut c_void, c_uint) -> Status;
        event_destroy c"cuEventDestroy_v2" (*mut c_void) -> Status;
        event_record c"cuEventRecord" (*mut c_void, *mut c_void) -> Status;
        event_query c"cuEventQuery" (*mut c_void) -> Status;
        event_synchronize c"cuEventSynchronize" (*mut c_void) -> Status;
        event_export c"cuIpcGetEventHandle" (*mut [u8; 64], *mut c_void) -> Status;
        event_import c"cuIpcOpenEventHandle" (*mut *mut c_void, CUipcEventHandle) -> Status;
        granularity c"cuMemGetAllocationGranularity" (*mut usize, *const CUmemAllocationProp, c_int) -> Status;
        address_reserve c"cuMemAddressReserve" (*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong) -> Status;
        address_free c"cuMemAddressFree" (CUdeviceptr, usize) -> Status;
        extent_create c"cuMemCreate" (*mut c_ulonglong, usize, *const CUmemAllocationProp, c_ulonglong) -> Status;
        extent_release c"cuMemRelease" (c_ulonglong) -> Status;
        extent_export c"cuMemExportToShareableHandle" (*mut c_void, c_ulonglong, CUmemAllocationHandleType, c_ulonglong) -> Status;
        extent_import c"cuMemImportFromShareableHandle" (*mut c_ulonglong, *mut c_void, CUmemAllocationHandleType) -> Status;
        memory_map c"cuMemMap" (CUdeviceptr, usize, usize, c_ulonglong, c_ulonglong) -> Status;
        memory_set_access c"cuMemSetAccess" (CUdeviceptr, usize, *const CUmemAccessDesc, usize) -> Status;
        memory_unmap c"cuMemUnmap" (CUdeviceptr, usize) -> Status;
        copy_to_host c"cuMemcpyDtoHAsync_v2" (*mut c_void, CUdeviceptr, usize, *mut c_void) -> Status;
        copy_to_device c"cuMemcpyHtoDAsync_v2" (CUdeviceptr, *const c_void, usize, *mut c_void) -> Status;
        host_allocate c"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint) -> Status;
        host_free c"cuMemFreeHost" (*mut c_void) -> Status;
        host_register c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint) -> Status;
        host_unregister c"cuMemHostUnregister" (*mut c_void) -> Status;
        memory_allocate c"cuMemAlloc_v2" (*mut CUdeviceptr, usize) -> Status;
        memory_free c"cuMemFree_v2" (CUdeviceptr) -> Status;
        fill c"cuMemsetD8Async" (CUdeviceptr, c_uchar, usize, *mut c_void) -> Status;
        memory_allocate_async c"cuMemAllocAsync" (*mut CUdeviceptr, usize, *mut c_void) -> Status;
        memory_free_async c"cuMemFreeAsync" (CUdeviceptr, *mut c_void) -> Status;
        memory_pool c"cuDeviceGetMemPool" (*mut *mut c_void, c_int) -> Status;
        pool_get c"cuMemPoolGetAttribute" (*mut c_void, c_int, *mut c_void) -> Status;
        pool_set c"cuMemPoolSetAttribute" (*mut c_void, c_int, *mut c_void) -> Status;
        pool_trim c"cuMemPoolTrimTo" (*mut c_void, usize) -> Status;
    }
    optional {
        // Objects of graphs, and, with CUDA 12.3, queries of captures.
        user_object_create c"cuUserObjectCreate" (*mut *mut c_void, *mut c_void, DropKept, c_uint, c_uint) -> Status;
        user_object_release c"cuUserObjectRelease" (*mut c_void, c_uint) -> Status;
        graph_retain c"cuGraphRetainUserObject" (*mut c_void, *mut c_void, c_uint, c_uint) -> Status;
        capture_info c"cuStreamGetCaptureInfo_v3"
            (*mut c_void, *mut c_int, *mut c_ulonglong, *mut *mut c_void, *mut *mut *mut c_void, *mut *mut c_void, *mut usize)
            -> Status;
        // With CUDA 12.5: events of a whole context, and the context of a stream's green context.
        context_record_event c"cuCtxRecordEvent" (*mut c_void, *mut c_void) -> Status;
        context_wait_event c"cuCtxWaitEvent" (*mut c_void, *mut c_void) -> Status;
        stream_green_context c"cuStreamGetCtx_v2" (*mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
    }
}
