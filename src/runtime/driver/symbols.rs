//! The functions of drivers' libraries that gpupool calls: pointers, looked up once, when the library is opened. Names and
//! prototypes are those of `cuda.h` and of `hip/hip_runtime_api.h`, which is the same from HIP 5.6 to HIP 7. What a
//! function returns or writes is declared as a number, never as an enum: a newer driver's number in an enum is undefined
//! behaviour. Sizes, addresses of memory, extents, streams, events and contexts are numbers too: a C ABI of 64 bits passes and
//! writes pointers and `size_t` as it does numbers of their size.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::ptr;

use crate::runtime::ExtentUse;
use crate::shared_object::Library;

pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;

/// A function, with the name that it was looked up by.
#[derive(Clone, Copy)]
pub(super) struct Symbol<F> {
    pub(super) name: &'static CStr,
    pub(super) function: F,
}

/// A function that the library may lack; then its name.
pub(super) type OptionalSymbol<F> = Result<Symbol<F>, &'static CStr>;

/// Returns the name by which the vendor documents a function: the header defines it as a macro for a version's symbol.
pub(super) fn documented_name(symbol: &'static CStr) -> &'static str {
    let name = symbol.to_str().unwrap_or_default();
    name.strip_suffix("_v2").or_else(|| name.strip_suffix("_v3")).unwrap_or(name)
}

/// Functions of one library.
pub(super) trait SymbolTable: Sized {
    /// Looks every function up by its name in the library that has this place in the table; the first name of a required
    /// one that the library lacks is the error.
    ///
    /// # Safety
    /// The library is the driver's that the table is about, and stays loaded as long as the result is used.
    unsafe fn of(library: &Library, place: usize) -> Result<Self, &'static CStr>;
}

/// Defines a table with a field for each function, which has a name in each of the libraries that the table is for.
macro_rules! symbols {
    (
        $table:ident
        required {$($field:ident $($name:literal)+ ($($argument:ty),*) -> $result:ty;)*}
        optional {$($later:ident $later_name:literal ($($later_argument:ty),*) -> $later_result:ty;)*}
    ) => {
        /// The functions, by their names without the common prefix.
        pub(super) struct $table {
            $(pub(super) $field: $crate::runtime::driver::symbols::Symbol<
                unsafe extern "C" fn($($argument),*) -> $result
            >,)*
            $(pub(super) $later: $crate::runtime::driver::symbols::OptionalSymbol<
                unsafe extern "C" fn($($later_argument),*) -> $later_result
            >,)*
        }

        impl $crate::runtime::driver::symbols::SymbolTable for $table {
            unsafe fn of(
                library: &$crate::shared_object::Library,
                place: usize,
            ) -> Result<Self, &'static std::ffi::CStr> {
                use $crate::runtime::driver::symbols::look_up;
                Ok(Self {
                    // SAFETY: the type is the function's prototype in the vendor's header.
                    $($field: unsafe { look_up(library, [$($name),+][place]) }?,)*
                    // SAFETY: the type is the function's prototype in the vendor's header.
                    $($later: unsafe { look_up(library, $later_name) },)*
                })
            }
        }
    };
}

/// # Safety
/// `F` is the function's prototype, and the library stays loaded as long as the result is used.
pub(super) unsafe fn look_up<F: Copy>(library: &Library, name: &'static CStr) -> OptionalSymbol<F> {
    // SAFETY: the caller promises that this is the function's prototype.
    let symbol = unsafe { library.get::<F>(name) };
    symbol.map(|symbol| Symbol { name, function: *symbol }).map_err(|_| name)
}

pub(super) use symbols;

/// `CUmemLocation` and `hipMemLocation`: the kind of place, and its number.
#[repr(C)]
pub(super) struct DriverLocation {
    kind: c_int,
    id: c_int,
}

impl DriverLocation {
    pub(super) const fn device(handle: c_int) -> Self {
        Self { kind: 1, id: handle }
    }

    /// `CU_MEM_LOCATION_TYPE_HOST_NUMA`, which HIP has not.
    pub(super) const fn host_node(number: c_int) -> Self {
        Self { kind: 3, id: number }
    }
}

/// `CUmemAllocationHandleType` and `hipMemAllocationHandleType` of a POSIX file descriptor.
pub(super) const POSIX_FD: c_int = 1;

/// `CUmemAllocationProp` and `hipMemAllocationProp`.
#[repr(C)]
pub(super) struct AllocationProperties {
    kind: c_int,
    handle_kind: c_int,
    location: DriverLocation,
    win32_meta_data: *mut c_void,
    compression: u8,
    is_rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl AllocationProperties {
    /// Returns the properties of pinned memory there, for these uses.
    pub(super) const fn new(location: DriverLocation, extent_use: ExtentUse) -> Self {
        Self {
            kind: 1,
            handle_kind: if extent_use.is_shareable { POSIX_FD } else { 0 },
            location,
            win32_meta_data: ptr::null_mut(),
            compression: 0,
            is_rdma: extent_use.is_rdma as u8,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// `CUmemAccessDesc` and `hipMemAccessDesc`.
#[repr(C)]
pub(super) struct AccessDescription {
    location: DriverLocation,
    flags: c_int,
}

impl AccessDescription {
    pub(super) const fn read_write(location: DriverLocation) -> Self {
        Self { location, flags: 3 }
    }
}

/// `CUipcEventHandle` and `hipIpcEventHandle_t`.
#[repr(C)]
pub(super) struct EventHandle(pub(super) [u8; 64]);

// Those that CUDA and HIP have alike.
symbols! {
    Symbols
    required {
        init c"cuInit" c"hipInit" (c_uint) -> Status;
        driver_version c"cuDriverGetVersion" c"hipRuntimeGetVersion" (*mut c_int) -> Status;
        device_count c"cuDeviceGetCount" c"hipGetDeviceCount" (*mut c_int) -> Status;
        device_name c"cuDeviceGetName" c"hipDeviceGetName" (*mut c_char, c_int, c_int) -> Status;
        device_uuid c"cuDeviceGetUuid_v2" c"hipDeviceGetUuid" (*mut [u8; 16], c_int) -> Status;
        device_pci_bus_id c"cuDeviceGetPCIBusId" c"hipDeviceGetPCIBusId" (*mut c_char, c_int, c_int) -> Status;
        device_attribute c"cuDeviceGetAttribute" c"hipDeviceGetAttribute" (*mut c_int, c_int, c_int) -> Status;
        device_total_memory c"cuDeviceTotalMem_v2" c"hipDeviceTotalMem" (*mut u64, c_int) -> Status;
        device_can_access_peer c"cuDeviceCanAccessPeer" c"hipDeviceCanAccessPeer" (*mut c_int, c_int, c_int) -> Status;
        context_synchronize c"cuCtxSynchronize" c"hipDeviceSynchronize" () -> Status;
        memory_info c"cuMemGetInfo_v2" c"hipMemGetInfo" (*mut u64, *mut u64) -> Status;
        exchange_capture_mode c"cuThreadExchangeStreamCaptureMode" c"hipThreadExchangeStreamCaptureMode"
            (*mut c_int) -> Status;
        stream_create c"cuStreamCreate" c"hipStreamCreateWithFlags" (*mut usize, c_uint) -> Status;
        stream_destroy c"cuStreamDestroy_v2" c"hipStreamDestroy" (usize) -> Status;
        stream_query c"cuStreamQuery" c"hipStreamQuery" (usize) -> Status;
        stream_synchronize c"cuStreamSynchronize" c"hipStreamSynchronize" (usize) -> Status;
        stream_wait_event c"cuStreamWaitEvent" c"hipStreamWaitEvent" (usize, usize, c_uint) -> Status;
        stream_is_capturing c"cuStreamIsCapturing" c"hipStreamIsCapturing" (usize, *mut c_int) -> Status;
        event_create c"cuEventCreate" c"hipEventCreateWithFlags" (*mut usize, c_uint) -> Status;
        event_destroy c"cuEventDestroy_v2" c"hipEventDestroy" (usize) -> Status;
        event_record c"cuEventRecord" c"hipEventRecord" (usize, usize) -> Status;
        event_query c"cuEventQuery" c"hipEventQuery" (usize) -> Status;
        event_synchronize c"cuEventSynchronize" c"hipEventSynchronize" (usize) -> Status;
        event_export c"cuIpcGetEventHandle" c"hipIpcGetEventHandle" (*mut [u8; 64], usize) -> Status;
        event_import c"cuIpcOpenEventHandle" c"hipIpcOpenEventHandle" (*mut usize, EventHandle) -> Status;
        granularity c"cuMemGetAllocationGranularity" c"hipMemGetAllocationGranularity"
            (*mut u64, *const AllocationProperties, c_int) -> Status;
        address_reserve c"cuMemAddressReserve" c"hipMemAddressReserve"
            (*mut u64, u64, u64, u64, c_ulonglong) -> Status;
        address_free c"cuMemAddressFree" c"hipMemAddressFree" (u64, u64) -> Status;
        extent_create c"cuMemCreate" c"hipMemCreate"
            (*mut u64, u64, *const AllocationProperties, c_ulonglong) -> Status;
        extent_release c"cuMemRelease" c"hipMemRelease" (u64) -> Status;
        extent_export c"cuMemExportToShareableHandle" c"hipMemExportToShareableHandle"
            (*mut c_void, u64, c_int, c_ulonglong) -> Status;
        extent_import c"cuMemImportFromShareableHandle" c"hipMemImportFromShareableHandle"
            (*mut u64, *mut c_void, c_int) -> Status;
        memory_map c"cuMemMap" c"hipMemMap" (u64, u64, u64, u64, c_ulonglong) -> Status;
        memory_set_access c"cuMemSetAccess" c"hipMemSetAccess" (u64, u64, *const AccessDescription, usize) -> Status;
        memory_unmap c"cuMemUnmap" c"hipMemUnmap" (u64, u64) -> Status;
        copy_to_host c"cuMemcpyDtoHAsync_v2" c"hipMemcpyDtoHAsync" (u64, u64, u64, usize) -> Status;
        copy_to_device c"cuMemcpyHtoDAsync_v2" c"hipMemcpyHtoDAsync" (u64, u64, u64, usize) -> Status;
        host_allocate c"cuMemHostAlloc" c"hipHostMalloc" (*mut u64, u64, c_uint) -> Status;
        host_free c"cuMemFreeHost" c"hipHostFree" (u64) -> Status;
        memory_allocate c"cuMemAlloc_v2" c"hipMalloc" (*mut u64, u64) -> Status;
        memory_free c"cuMemFree_v2" c"hipFree" (u64) -> Status;
        fill c"cuMemsetD8Async" c"hipMemsetD8Async" (u64, c_uchar, u64, usize) -> Status;
        memory_allocate_async c"cuMemAllocAsync" c"hipMallocAsync" (*mut u64, u64, usize) -> Status;
        memory_free_async c"cuMemFreeAsync" c"hipFreeAsync" (u64, usize) -> Status;
    }
    optional {}
}
