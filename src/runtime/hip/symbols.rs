//! The functions of `libamdhip64` that gpupool calls, looked up when the library is opened. Names and prototypes are
//! those of `hip/hip_runtime_api.h`, the same from HIP 5.6 to HIP 7. A library that lacks one is refused.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use crate::runtime::symbols::{Status, symbols};

/// `hipMemLocation` of a device: `hipMemLocationTypeDevice` and the ordinal.
#[repr(C)]
pub(super) struct HipMemLocation {
    kind: c_int,
    id: c_int,
}

impl HipMemLocation {
    pub(super) const fn device(ordinal: c_int) -> Self {
        Self { kind: 1, id: ordinal }
    }
}

/// `hipMemAllocationProp`.
#[repr(C)]
pub(super) struct AllocationProperties {
    /// `hipMemAllocationTypePinned` is 1.
    kind: c_int,
    /// `hipMemHandleTypeNone` is 0.
    pub(super) handle_kind: c_int,
    location: HipMemLocation,
    win32_meta_data: *mut c_void,
    /// Compression, RDMA, usage, and what CUDA's struct of the same size reserves.
    flags: [u8; 8],
}

impl AllocationProperties {
    /// Returns the properties of plain memory of the device, not shared with other processes.
    pub(super) const fn device(ordinal: c_int) -> Self {
        let location = HipMemLocation::device(ordinal);
        Self { kind: 1, handle_kind: 0, location, win32_meta_data: std::ptr::null_mut(), flags: [0; 8] }
    }
}

/// `hipIpcEventHandle_t`.
#[repr(C)]
pub(super) struct EventHandle(pub(super) [u8; 64]);

/// `hipMemAccessDesc`.
#[repr(C)]
pub(super) struct AccessDescription {
    location: HipMemLocation,
    /// `hipMemAccessFlagsProtReadWrite` is 3.
    flags: c_int,
}

impl AccessDescription {
    pub(super) const fn read_write(ordinal: c_int) -> Self {
        Self { location: HipMemLocation::device(ordinal), flags: 3 }
    }
}

symbols! {
    required {
        init c"hipInit" (c_uint) -> Status;
        runtime_version c"hipRuntimeGetVersion" (*mut c_int) -> Status;
        error_name c"hipGetErrorName" (Status) -> *const c_char;
        last_error c"hipGetLastError" () -> Status;
        device_count c"hipGetDeviceCount" (*mut c_int) -> Status;
        device_name c"hipDeviceGetName" (*mut c_char, c_int, c_int) -> Status;
        device_uuid c"hipDeviceGetUuid" (*mut [u8; 16], c_int) -> Status;
        device_pci_bus_id c"hipDeviceGetPCIBusId" (*mut c_char, c_int, c_int) -> Status;
        device_attribute c"hipDeviceGetAttribute" (*mut c_int, c_int, c_int) -> Status;
        device_total_memory c"hipDeviceTotalMem" (*mut usize, c_int) -> Status;
        device_can_access_peer c"hipDeviceCanAccessPeer" (*mut c_int, c_int, c_int) -> Status;
        device_synchronize c"hipDeviceSynchronize" () -> Status;
        get_device c"hipGetDevice" (*mut c_int) -> Status;
        set_device c"hipSetDevice" (c_int) -> Status;
        memory_info c"hipMemGetInfo" (*mut usize, *mut usize) -> Status;
        exchange_capture_mode c"hipThreadExchangeStreamCaptureMode" (*mut c_int) -> Status;
        stream_create c"hipStreamCreateWithFlags" (*mut *mut c_void, c_uint) -> Status;
        stream_destroy c"hipStreamDestroy" (*mut c_void) -> Status;
        stream_device c"hipStreamGetDevice" (*mut c_void, *mut c_int) -> Status;
        stream_query c"hipStreamQuery" (*mut c_void) -> Status;
        stream_synchronize c"hipStreamSynchronize" (*mut c_void) -> Status;
        stream_wait_event c"hipStreamWaitEvent" (*mut c_void, *mut c_void, c_uint) -> Status;
        stream_is_capturing c"hipStreamIsCapturing" (*mut c_void, *mut c_int) -> Status;
        event_create c"hipEventCreateWithFlags" (*mut *mut c_void, c_uint) -> Status;
        event_destroy c"hipEventDestroy" (*mut c_void) -> Status;
        event_record c"hipEventRecord" (*mut c_void, *mut c_void) -> Status;
        event_query c"hipEventQuery" (*mut c_void) -> Status;
        event_synchronize c"hipEventSynchronize" (*mut c_void) -> Status;
        granularity c"hipMemGetAllocationGranularity" (*mut usize, *const AllocationProperties, c_int) -> Status;
        address_reserve c"hipMemAddressReserve" (*mut *mut c_void, usize, usize, *mut c_void, c_ulonglong) -> Status;
        address_free c"hipMemAddressFree" (*mut c_void, usize) -> Status;
        extent_create c"hipMemCreate" (*mut *mut c_void, usize, *const AllocationProperties, c_ulonglong) -> Status;
        extent_release c"hipMemRelease" (*mut c_void) -> Status;
        memory_map c"hipMemMap" (*mut c_void, usize, usize, *mut c_void, c_ulonglong) -> Status;
        memory_set_access c"hipMemSetAccess" (*mut c_void, usize, *const AccessDescription, usize) -> Status;
        memory_unmap c"hipMemUnmap" (*mut c_void, usize) -> Status;
        extent_export c"hipMemExportToShareableHandle" (*mut c_void, *mut c_void, c_int, c_ulonglong) -> Status;
        extent_import c"hipMemImportFromShareableHandle" (*mut *mut c_void, *mut c_void, c_int) -> Status;
        event_export c"hipIpcGetEventHandle" (*mut [u8; 64], *mut c_void) -> Status;
        event_import c"hipIpcOpenEventHandle" (*mut *mut c_void, EventHandle) -> Status;
        copy_to_host c"hipMemcpyDtoHAsync" (*mut c_void, *mut c_void, usize, *mut c_void) -> Status;
        copy_to_device c"hipMemcpyHtoDAsync" (*mut c_void, *mut c_void, usize, *mut c_void) -> Status;
        host_allocate c"hipHostMalloc" (*mut *mut c_void, usize, c_uint) -> Status;
        host_free c"hipHostFree" (*mut c_void) -> Status;
        memory_allocate c"hipMalloc" (*mut *mut c_void, usize) -> Status;
        memory_free c"hipFree" (*mut c_void) -> Status;
        fill c"hipMemsetD8Async" (*mut c_void, c_uchar, usize, *mut c_void) -> Status;
        memory_allocate_async c"hipMallocAsync" (*mut *mut c_void, usize, *mut c_void) -> Status;
        memory_free_async c"hipFreeAsync" (*mut c_void, *mut c_void) -> Status;
    }
    optional {
        // Distinguishes streams of which one got the other's address.
        stream_id c"hipStreamGetId" (*mut c_void, *mut c_ulonglong) -> Status;
    }
}
