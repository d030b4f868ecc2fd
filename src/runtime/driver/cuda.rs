//! NVIDIA GPUs, through the CUDA driver. cudarc provides constants, not the calls: it would open its own, perhaps another,
//! file, and its enums are undefined behaviour for a newer driver's numbers. Each device's primary context is retained
//! when first needed, and never released: the driver does that at process end.
//!
//! A stream's device is that of its context: a device's primary one, a green one, or one of other code's own
//! (`cuCtxCreate`). A green context has a part of its device's processors, and shares all else with the device's primary
//! context, whose memory, modules, events and handles work on its streams. So a stream of one is its device's, and
//! gpupool makes all for it in the primary context: see `cuCtxFromGreenCtx` in the driver's reference. An event of the
//! primary context includes the work of its green contexts (`cuCtxRecordEvent`). A context of other code's own shares
//! none of these.
//!
//! Pinned memory is mapped here and registered with the driver, if every device uses registered memory at the host's
//! address: so it is on the right node. Otherwise the driver allocates it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use log::info;

use super::symbols::{DriverLocation, OptionalSymbol, SUCCESS, Status, Symbol, SymbolTable, documented_name, symbols};
use super::{Driver, DriverDevice, DriverVendor, NOT_SUPPORTED, PORTABLE_AND_MAPPED, uuid_text};
use crate::error::{Error, Result, StatusKind};
use crate::ids::{CaptureStatus, Device, MemoryLocation, NumaNode, RawStream};
use crate::observe::target::RUNTIME;
use crate::runtime::host_memory::{PagePopulation, map, node_of_pci_device, unmap};
use crate::runtime::{
    Capture, Context, DeviceCalls, DeviceInfo, DeviceUuid, Extent, ExtentUse, GroupLimit, Kind, PoolReserved, RawEvent,
    RawGraph, Runtime,
};
use crate::shared_object::{NOW, open};

/// `CUhostFn`: drops a value that a graph kept.
type DropKept = unsafe extern "C" fn(*mut c_void);

// What CUDA's driver has of its own.
symbols! {
    Cuda
    required {
        error_name c"cuGetErrorName" (Status, *mut *const c_char) -> Status;
        device c"cuDeviceGet" (*mut c_int, c_int) -> Status;
        primary_state c"cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int) -> Status;
        primary_retain c"cuDevicePrimaryCtxRetain" (*mut usize, c_int) -> Status;
        get_context c"cuCtxGetCurrent" (*mut usize) -> Status;
        set_context c"cuCtxSetCurrent" (usize) -> Status;
        device_of_context c"cuCtxGetDevice" (*mut c_int) -> Status;
        stream_id c"cuStreamGetId" (usize, *mut c_ulonglong) -> Status;
        stream_context c"cuStreamGetCtx" (usize, *mut usize) -> Status;
        host_register c"cuMemHostRegister_v2" (u64, u64, c_uint) -> Status;
        host_unregister c"cuMemHostUnregister" (u64) -> Status;
        memory_pool c"cuDeviceGetMemPool" (*mut usize, c_int) -> Status;
        pool_get c"cuMemPoolGetAttribute" (usize, c_int, *mut u64) -> Status;
        pool_set c"cuMemPoolSetAttribute" (usize, c_int, *mut u64) -> Status;
        pool_trim c"cuMemPoolTrimTo" (usize, u64) -> Status;
    }
    // They came after the oldest supported driver.
    optional {
        // Objects of graphs, and, with CUDA 12.3, queries of captures.
        user_object_create c"cuUserObjectCreate" (*mut usize, *mut c_void, DropKept, c_uint, c_uint) -> Status;
        user_object_release c"cuUserObjectRelease" (usize, c_uint) -> Status;
        graph_retain c"cuGraphRetainUserObject" (usize, usize, c_uint, c_uint) -> Status;
        capture_info c"cuStreamGetCaptureInfo_v3"
            (usize, *mut c_int, *mut c_ulonglong, *mut usize, *mut *mut *mut c_void, *mut *mut c_void, *mut usize)
            -> Status;
        // With CUDA 12.5: events of a whole context, and the context of a stream's green context.
        context_record_event c"cuCtxRecordEvent" (usize, usize) -> Status;
        context_wait_event c"cuCtxWaitEvent" (usize, usize) -> Status;
        stream_green_context c"cuStreamGetCtx_v2" (usize, *mut usize, *mut usize) -> Status;
    }
}

const CONTEXT_IS_DESTROYED: Status = sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as Status;
/// `CUDA_ERROR_STREAM_DETACHED`, which cudarc's bindings for CUDA before 13.1 do not name. For a green context, drivers
/// before that have no status.
const STREAM_DETACHED: Status = 917;

impl DriverVendor for Cuda {
    const KIND: Kind = Kind::Cuda;
    const ALIGNMENT: u64 = 0;
    const MAPS_ONE_BY_ONE: bool = false;

    fn stream(stream: RawStream) -> usize {
        stream.address()
    }

    fn status_name(&self, status: Status) -> Option<&CStr> {
        let mut name = ptr::null();
        // SAFETY: the function takes any status, and `name` is a valid place for a string's address.
        let named = unsafe { (self.error_name.function)(status, &mut name) };
        // SAFETY: a name that is not null is a string that lives as long as the driver.
        (named == SUCCESS && !name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
    }

    fn advice_if_gone(status: Status) -> Option<&'static str> {
        matches!(status, CONTEXT_IS_DESTROYED | STREAM_DETACHED)
            .then_some("The stream's context, such as a green context, was destroyed: take a stream of one that lives")
    }

    fn location(driver: &Driver<Self>, location: MemoryLocation) -> Result<DriverLocation> {
        match location {
            MemoryLocation::Device(device) => driver.handle(device).map(DriverLocation::device),
            MemoryLocation::Host(node) => Ok(DriverLocation::host_node(node.number().cast_signed())),
        }
    }
}

/// Returns the error for a status of the driver, of a call that cudarc made.
#[cfg(feature = "cudarc")]
pub(crate) fn refused_by_driver(function: &'static str, status: sys::CUresult) -> Error {
    super::refusal::<Cuda>(function, format!("{status:?}"), status as Status)
}

/// Returns the uses of extents to try in turn, if the driver refuses the first.
fn lesser(wanted: ExtentUse) -> Vec<ExtentUse> {
    let mut tried = vec![wanted, ExtentUse { is_rdma: false, ..wanted }, ExtentUse::PRIVATE];
    tried.dedup();
    tried
}

/// Drops what [`Runtime::graph_retain`] kept, on a thread of the driver.
unsafe extern "C" fn drop_kept(kept: *mut c_void) {
    // SAFETY: `graph_retain` made this box for the driver, which calls this once.
    drop(unsafe { Box::from_raw(kept.cast::<Box<dyn Send>>()) });
}

impl Driver<Cuda> {
    /// Returns an optional function.
    ///
    /// # Errors
    /// `ErrorKind::Library` if this driver is too old for it.
    fn optional<F>(&self, symbol: OptionalSymbol<F>) -> Result<Symbol<F>> {
        symbol.map_err(|name| {
            let (major, minor) = self.version;
            self.refused(name, NOT_SUPPORTED).map_library(|refused| {
                refused.advice = Some(format!("This driver, which supports CUDA {major}.{minor}, is too old for it"));
            })
        })
    }

    /// Returns whether the device has an attribute. A driver that does not know an attribute lacks its feature.
    fn has(&self, attribute: Attribute, device: Device) -> bool {
        self.attribute(attribute as c_int, device).is_ok_and(|value| value != 0)
    }

    fn all_devices(&self) -> impl Iterator<Item = Device> + use<> {
        (0..self.devices.len() as u32).map(Device::from_ordinal)
    }

    /// Returns the address of the current context; 0 without one.
    #[inline]
    fn current_context(&self) -> Result<usize> {
        // SAFETY: `context` is a valid place for a context.
        self.written(&self.vendor.get_context, |call, context| unsafe { call(context) })
    }

    /// Makes the context at this address current; none for 0.
    ///
    /// # Safety
    /// It is alive, or the driver is to find out.
    unsafe fn set_context(&self, context: usize) -> Result<()> {
        // SAFETY: the caller vouches for the context.
        self.check(&self.vendor.set_context, |call| unsafe { call(context) })
    }

    #[inline]
    fn find(&self, is_meant: impl Fn(&DriverDevice) -> bool) -> Option<Device> {
        self.devices.iter().position(is_meant).map(|ordinal| Device::from_ordinal(ordinal as u32))
    }

    /// Returns whether any code of the process has made the device's primary context active.
    fn has_context(&self, slot: &DriverDevice) -> Result<bool> {
        if slot.primary.get().is_some() {
            return Ok(true);
        }
        let (_, active): (c_uint, c_int) = self.written(&self.vendor.primary_state, |call, (flags, active)| {
            // SAFETY: both are valid places for ints, and the handle came from `cuDeviceGet`.
            unsafe { call(slot.handle, flags, active) }
        })?;
        Ok(active != 0)
    }

    /// Returns the address of the device's primary context, retained at the first call. Two threads may both retain it,
    /// which does not matter, since it is never released.
    fn primary(&self, device: Device) -> Result<usize> {
        let slot = self.slot(device)?;
        if let Some(&context) = slot.primary.get() {
            return Ok(context);
        }
        // SAFETY: `context` is a valid place for a context, and the handle came from `cuDeviceGet`.
        let retained = self.written(&self.vendor.primary_retain, |call, context| unsafe { call(context, slot.handle) });
        let context = retained.map_err(|e| e.on(device))?;
        Ok(*slot.primary.get_or_init(|| context))
    }

    /// Returns the context for calls on the host's memory: none if the thread has any; else the first active one of a
    /// device, so that no context is made on a device that the program does not use.
    fn context_for_host(&self) -> Result<Option<usize>> {
        if self.current_context()? != 0 {
            return Ok(None);
        }
        let active = self.find(|slot| self.has_context(slot).unwrap_or(false));
        self.primary(active.unwrap_or(Device::from_ordinal(0))).map(Some)
    }

    /// Returns the device whose primary context this is, if it was retained here.
    #[inline]
    fn known_device_of(&self, context: usize) -> Option<Device> {
        self.find(|slot| slot.primary.get() == Some(&context))
    }

    /// Returns the device of a current context that is not a primary one, or not yet known.
    #[cold]
    fn current_device_by_handle(&self) -> Result<Device> {
        // SAFETY: `handle` is a valid place for a device.
        let handle = self.written(&self.vendor.device_of_context, |call, handle| unsafe { call(handle) })?;
        self.find(|slot| slot.handle == handle)
            .ok_or_else(|| Error::internal("the current context is of a device that the driver did not list"))
    }

    /// Returns the device whose primary context this is, if that is active.
    fn device_of(&self, context: usize) -> Result<Option<Device>> {
        for (device, slot) in self.all_devices().zip(&self.devices) {
            if self.has_context(slot)? && self.primary(device)? == context {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    /// Returns the device of a stream in this context, which is not a primary one retained here.
    ///
    /// # Safety
    /// The stream is alive.
    #[cold]
    unsafe fn device_of_stream(&self, stream: RawStream, context: usize) -> Result<Device> {
        if let Some(device) = self.device_of(context)? {
            return Ok(device);
        }
        // SAFETY: the caller promises that the stream is alive.
        let parent = unsafe { self.parent_of_green_context(stream) }?;
        if let Some(parent) = parent
            && let Some(device) = self.device_of(parent)?
        {
            return Ok(device);
        }
        let older = if self.vendor.stream_green_context.is_ok() {
            ""
        } else {
            ". If it is of a green context: this driver cannot say of which, one for CUDA 12.5 or later can"
        };
        Err(Error::invalid_value(format!(
            "stream {:#x} belongs to a context that is neither the primary context of a device nor a green one; handles are made in primary contexts, so take a stream made there (cuDevicePrimaryCtxRetain, cudaSetDevice){older}",
            stream.address()
        )))
    }

    /// Returns the primary context of the device of a stream's green context, if it has one and the driver knows.
    ///
    /// # Safety
    /// The stream is alive.
    unsafe fn parent_of_green_context(&self, stream: RawStream) -> Result<Option<usize>> {
        let Ok(green_context) = self.vendor.stream_green_context else { return Ok(None) };
        let (parent, green): (usize, usize) = self.written(&green_context, |call, (parent, green)| {
            // SAFETY: the caller promises that the stream is alive, and both are valid places for a context.
            unsafe { call(stream.address(), parent, green) }
        })?;
        Ok((green != 0).then_some(parent))
    }

    /// Returns whether every device uses registered memory at the host's address.
    fn registers_in_place(&self) -> bool {
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        self.all_devices().all(|device| self.has(attribute, device))
    }

    /// Makes an extent on a node of the host and maps it for the node and every device. Drivers since CUDA 12.2 can, on some
    /// machines, but the attribute for it came with CUDA 12.9.
    fn rehearse(&self, node: MemoryLocation) -> Result<()> {
        let bytes = self.page_bytes(node)?;
        let address = self.address_reserve(bytes)?;
        let outcome = self.extent_create(node, bytes).and_then(|extent| {
            // SAFETY: the addresses were just reserved, and the extent is as long as said and alive.
            let mapped = unsafe { self.memory_map(address, bytes, extent) };
            let places: Vec<_> = [node].into_iter().chain(self.all_devices().map(MemoryLocation::from)).collect();
            let outcome = mapped.and_then(|()| {
                // SAFETY: the range was just mapped.
                let opened = unsafe { self.memory_set_access(address, bytes, &places) };
                // SAFETY: nothing uses the mapping.
                opened.and(unsafe { self.memory_unmap(address, bytes) })
            });
            // SAFETY: this is the only owner of the extent.
            outcome.and(unsafe { self.extent_release(extent) })
        });
        // SAFETY: the reservation is whole; where something is still mapped in it the driver refuses, and it stays.
        outcome.and(unsafe { self.address_free(address, bytes) })
    }

    /// Returns the current device's pool for allocations in stream order.
    fn memory_pool(&self) -> Result<usize> {
        let handle = self.handle(self.current_device()?)?;
        // SAFETY: `pool` is a valid place for a pool.
        self.written(&self.vendor.memory_pool, |call, pool| unsafe { call(pool, handle) })
    }
}

impl Runtime for Driver<Cuda> {
    fn device_info(&self, device: Device) -> Result<DeviceInfo> {
        let name = self.text_of(&self.symbols.device_name, device)?;
        let place = self.pci_bus_id(device)?;
        // The driver's API shows it only in the name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
        let is_mig = name.contains(" MIG ");
        let uuid = uuid_text(self.device_uuid(device)?);
        let has_virtual_memory = self.supports_virtual_memory(device.into())?;
        let extents = if has_virtual_memory { self.extent_use(device.into())? } else { ExtentUse::PRIVATE };
        let ExtentUse { is_shareable, is_rdma } = extents;
        Ok(DeviceInfo {
            uuid: Some(format!("{}-{uuid}", if is_mig { "MIG" } else { "GPU" })),
            compute_capability: self.compute_capability(device)?,
            pci_bus_id: Some(place),
            is_mig,
            is_shareable,
            is_rdma,
            total_bytes: self.total_memory(device.into())?,
            free_bytes: match self.has_context(self.slot(device)?)? {
                true => Some(self.memory_of(device)?.free),
                false => None,
            },
            name,
        })
    }

    fn group_limit(&self, device: Device, group: &Path) -> Option<GroupLimit> {
        group_limit(self.device_uuid(device).ok()?, group)
    }

    fn compute_capability(&self, device: Device) -> Result<Option<(u32, u32)>> {
        let part = |attribute: Attribute| self.attribute(attribute as c_int, device).map(c_int::unsigned_abs);
        let major = part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        Ok(Some((major, part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)))
    }

    fn current_device(&self) -> Result<Device> {
        let context = self.current_context()?;
        // Without a context the CUDA runtime would take device 0. `cuCtxGetDevice` would refuse, which takes it 600 ns.
        if context == 0 {
            return Ok(Device::from_ordinal(0));
        }
        match self.known_device_of(context) {
            Some(device) => Ok(device),
            None => self.current_device_by_handle(),
        }
    }

    fn bind(&self, location: MemoryLocation) -> Result<Option<Context>> {
        let wanted = match location {
            MemoryLocation::Device(device) => self.primary(device)?,
            MemoryLocation::Host(_) => match self.context_for_host()? {
                Some(wanted) => wanted,
                None => return Ok(None),
            },
        };
        let previous = self.current_context()?;
        if previous == wanted {
            return Ok(None);
        }
        // SAFETY: the primary context was retained and is never released.
        unsafe { self.set_context(wanted) }?;
        Ok(Some(Context(previous)))
    }

    fn restore(&self, previous: Context) {
        // SAFETY: this context, or none, was current in this thread before; if it has died since, the driver refuses,
        // and there is nothing better to restore.
        let _ = unsafe { self.set_context(previous.0) };
    }

    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device> {
        if stream.is_default() {
            return self.current_device();
        }
        if self.devices.len() == 1 {
            return Ok(Device::from_ordinal(0));
        }
        // SAFETY: the caller promises that the stream is alive, and `context` is a valid place for one.
        let context =
            self.written(&self.vendor.stream_context, |call, context| unsafe { call(stream.address(), context) })?;
        match self.known_device_of(context) {
            Some(device) => Ok(device),
            // SAFETY: the caller promises that the stream is alive.
            None => unsafe { self.device_of_stream(stream, context) },
        }
    }

    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64> {
        // SAFETY: the caller promises that the stream is alive, and `id` is a valid place for a number.
        self.written(&self.vendor.stream_id, |call, id| unsafe { call(stream.address(), id) })
    }

    unsafe fn stream_is_gone(&self, stream: RawStream) -> bool {
        let mut status: c_int = 0;
        // SAFETY: the caller promises that the stream was not destroyed, and the driver finds out whether its context was.
        let asked = unsafe { (self.symbols.stream_is_capturing.function)(stream.address(), &mut status) };
        Cuda::advice_if_gone(asked).is_some()
    }

    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()> {
        let record = self.optional(self.vendor.context_record_event)?;
        let context = self.current_context()?;
        // SAFETY: the context is current, and the caller promises that the event is alive.
        self.check(&record, |call| unsafe { call(context, event.0) })
    }

    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()> {
        let wait = self.optional(self.vendor.context_wait_event)?;
        let context = self.current_context()?;
        // SAFETY: the context is current, and the caller promises that the event is alive.
        self.check(&wait, |call| unsafe { call(context, event.0) })
    }

    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Option<Capture>> {
        let capture_info = self.optional(self.vendor.capture_info)?;
        let mut status: c_int = 0;
        let (mut id, mut graph) = (0, 0);
        self.check(&capture_info, |call| {
            let (stream, none) = (stream.address(), ptr::null_mut());
            // SAFETY: the caller promises that the stream is alive, the first three are valid places, and the rest may be null.
            unsafe { call(stream, &mut status, &mut id, &mut graph, none, ptr::null_mut(), ptr::null_mut()) }
        })?;
        match CaptureStatus::known(status) {
            Some(CaptureStatus::Active) => Ok(Some(Capture { id, graph: RawGraph(graph) })),
            Some(_) => Ok(None),
            // There may be a capture, and what was written of it may be anything.
            None => Err(Error::unavailable(format!(
                "{} returned the capture status {status} of stream {:#x}, which this version of gpupool \
                 does not know: end the capture first",
                documented_name(capture_info.name),
                stream.address()
            ))),
        }
    }

    unsafe fn graph_retain(&self, graph: RawGraph, kept: Box<dyn Send>) -> Result<()> {
        let create = self.optional(self.vendor.user_object_create)?;
        let release = self.optional(self.vendor.user_object_release)?;
        let retain = self.optional(self.vendor.graph_retain)?;
        let kept: *mut Box<dyn Send> = Box::into_raw(Box::new(kept));
        let mut object = 0;
        let no_sync = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: `object` is a valid place, and `drop_kept` ends what `kept` points to.
        let created = self.check(&create, |call| unsafe { call(&mut object, kept.cast(), drop_kept, 1, no_sync) });
        if let Err(error) = created {
            // SAFETY: the driver refused it, so the box is still this function's.
            drop(unsafe { Box::from_raw(kept) });
            return Err(error);
        }
        let move_to_graph = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the object is alive, and the caller promises that the graph is.
        let retained = self.check(&retain, |call| unsafe { call(graph.0, object, 1, move_to_graph) });
        retained.inspect_err(|_| {
            // SAFETY: the graph did not take the only reference, which is this function's.
            let _ = unsafe { (release.function)(object, 1) };
        })
    }

    fn pool_reserved(&self) -> Result<Option<PoolReserved>> {
        let pool = self.memory_pool()?;
        let get = |attribute: sys::CUmemPool_attribute| -> Result<u64> {
            // SAFETY: the pool is the device's own, and both attributes are 64 bits wide.
            self.written(&self.vendor.pool_get, |call, bytes| unsafe { call(pool, attribute as c_int, bytes) })
        };
        let now = get(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let peak = get(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
        Ok(Some(PoolReserved { now, peak }))
    }

    fn trim_pool(&self) -> Result<()> {
        let pool = self.memory_pool()?;
        // SAFETY: the pool is the device's own.
        self.check(&self.vendor.pool_trim, |call| unsafe { call(pool, 0) })?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as c_int;
        // Only 0 may be set.
        let mut bytes = 0_u64;
        // SAFETY: the pool is the device's own, and the attribute is 64 bits wide.
        self.check(&self.vendor.pool_set, |call| unsafe { call(pool, attribute, &mut bytes) })
    }

    fn nearest_host_node(&self, device: Device) -> Result<NumaNode> {
        // Drivers before CUDA 12.2 do not know the attribute, and -1 means "unknown".
        let number = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID as c_int, device).unwrap_or(-1);
        match u32::try_from(number) {
            Ok(node) => Ok(NumaNode::from_number(node)),
            Err(_) => Ok(node_of_pci_device(&self.pci_bus_id(device)?)),
        }
    }

    /// A copy must be within one registration, so all of it is registered at once; several threads touch its pages
    /// before, which is what takes the time.
    fn host_allocate(&self, node: NumaNode, bytes: u64) -> Result<u64> {
        if !self.registers_in_place() {
            return self.allocate_pinned(bytes);
        }
        let address = map(node, bytes, PagePopulation::Now)?;
        self.check(&self.vendor.host_register, |call| {
            // SAFETY: the range was just mapped, and stays so until it is unregistered.
            unsafe { call(address, bytes, PORTABLE_AND_MAPPED) }
        })
        .inspect_err(|_| {
            // SAFETY: the range was just mapped, and nothing has it.
            unsafe { unmap(address, bytes) };
        })?;
        Ok(address)
    }

    unsafe fn host_free(&self, _node: NumaNode, address: u64, bytes: u64) -> Result<()> {
        if !self.registers_in_place() {
            // SAFETY: the caller owns the memory.
            return unsafe { self.free_pinned(address) };
        }
        // SAFETY: the caller owns the memory.
        self.check(&self.vendor.host_unregister, |call| unsafe { call(address) })?;
        // SAFETY: the driver knows the memory no more, and the caller gives it up.
        unsafe { unmap(address, bytes) };
        Ok(())
    }

    fn supports_virtual_memory(&self, location: MemoryLocation) -> Result<bool> {
        let MemoryLocation::Device(device) = location else { return Ok(self.rehearse(location).is_ok()) };
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as c_int;
        self.attribute(attribute, device).map(|value| value != 0)
    }

    /// A driver announces the uses of extents by attributes, and may still refuse them. So the first extent of a device
    /// tries them in turn, and its use is kept.
    fn extent_create(&self, location: MemoryLocation, bytes: u64) -> Result<Extent> {
        let wanted = self.extent_use(location)?;
        let mut outcome = self.create_for(location, bytes, wanted);
        let MemoryLocation::Device(device) = location else { return outcome };
        let known_use = &self.slot(device)?.extent_use;
        if known_use.get().is_some() {
            return outcome;
        }
        let mut made_for = wanted;
        for less in lesser(wanted).into_iter().skip(1) {
            if !outcome.as_ref().is_err_and(|error| !error.is_of(StatusKind::OutOfMemory)) {
                break;
            }
            outcome = self.create_for(location, bytes, less);
            made_for = less;
        }
        if outcome.is_ok() && known_use.set(made_for).is_ok() && made_for != wanted {
            let ExtentUse { is_shareable, is_rdma } = made_for;
            info!(
                target: RUNTIME,
                "{device}: the driver refused memory as its attributes announce it; made without: shareable with other \
                 processes {is_shareable}, for RDMA {is_rdma}"
            );
        }
        outcome
    }

    /// Returns the uses of extents there, as the driver announces or as found.
    fn extent_use(&self, location: MemoryLocation) -> Result<ExtentUse> {
        let MemoryLocation::Device(device) = location else { return Ok(ExtentUse::PRIVATE) };
        if let Some(&known) = self.slot(device)?.extent_use.get() {
            return Ok(known);
        }
        let shareable = Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        let rdma = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        Ok(ExtentUse { is_shareable: self.has(shareable, device), is_rdma: self.has(rdma, device) })
    }
}

// Limits of a device's memory that NVIDIA's driver has for a control group of Linux, which NVML tells without rights and
// without a context, from R615 on. NVML is part of the driver, and loaded when a limit is asked for. Where it or the function
// is not there, or answers anything but a limit, there is none: a process that is not limited must not fail for that.
//
// The struct is `nvmlGetMemoryLimits_v1_t` of NVIDIA's reference
// (<https://docs.nvidia.com/deploy/nvml-api/api/structnvmlGetMemoryLimits__v1__t.html>). Whose limit a group has that has none
// of its own is up to the driver (<https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html>).

/// The name of every driver's file of NVML.
const NVML_FILE: &str = "libnvidia-ml.so.1";
/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: no limit.
const NO_LIMIT: u64 = u64::MAX;

/// `nvmlGetMemoryLimits_v1_t`, with room behind it: it has no size in it by which a later driver would know.
#[repr(C)]
pub(super) struct MemoryLimits {
    /// The path of the group's directory.
    group: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
    room: [u64; 0x1c],
}

symbols! {
    NvmlSymbols
    required {
        init c"nvmlInit_v2"() -> Status;
        device_of_uuid c"nvmlDeviceGetHandleByUUID"(*const c_char, *mut *mut c_void) -> Status;
        memory_limits c"nvmlDeviceGetMemoryLimits_v1"(*mut c_void, *mut MemoryLimits) -> Status;
    }
    optional {}
}

/// Returns NVML's functions; none where it has not all of them, or does not work. Looked for once, by several threads at
/// the same time if these are the first, since no lock is held meanwhile.
fn nvml() -> Option<&'static NvmlSymbols> {
    static LOADED: OnceLock<Option<NvmlSymbols>> = OnceLock::new();
    match LOADED.get() {
        Some(loaded) => loaded.as_ref(),
        None => {
            let found = load_nvml();
            LOADED.get_or_init(|| found).as_ref()
        }
    }
}

fn load_nvml() -> Option<NvmlSymbols> {
    let library = open(Path::new(NVML_FILE), NOW).ok()?;
    // SAFETY: the file has the name of NVML, which is kept loaded for the life of the process below.
    let symbols = unsafe { NvmlSymbols::of(&library, 0) }.ok()?;
    std::mem::forget(library);
    // SAFETY: it may be called from any thread at any time, and more than once.
    let started = unsafe { (symbols.init.function)() };
    (started == SUCCESS).then_some(symbols)
}

/// Returns the limit of a device's memory in a control group, by the group's directory.
fn group_limit(device: DeviceUuid, group: &Path) -> Option<GroupLimit> {
    let nvml = nvml()?;
    let group = CString::new(group.as_os_str().as_encoded_bytes()).ok()?;
    // Instances of MIG have no such limits; no device has this UUID then.
    let uuid = CString::new(format!("GPU-{}", uuid_text(device))).ok()?;
    let mut device = ptr::null_mut();
    // SAFETY: NVML was initialised, the UUID is a string, and `device` is a valid place for a device.
    let found = unsafe { (nvml.device_of_uuid.function)(uuid.as_ptr(), &mut device) };
    let mut limits = MemoryLimits { group: group.as_ptr(), soft: 0, hard: NO_LIMIT, used: 0, room: [0; 0x1c] };
    // SAFETY: NVML returned the device, and `limits` is a valid place for the struct, whose group is a string.
    let told = found == SUCCESS && unsafe { (nvml.memory_limits.function)(device, &mut limits) } == SUCCESS;
    let MemoryLimits { hard, used, .. } = limits;
    // With none at all no context could be made: nothing was written.
    (told && hard != NO_LIMIT && hard != 0).then_some(GroupLimit { bytes: hard, used })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lesser_use_is_tried_once() {
        let all = ExtentUse { is_shareable: true, is_rdma: true };
        let shareable = ExtentUse { is_shareable: true, is_rdma: false };
        let rdma = ExtentUse { is_shareable: false, is_rdma: true };
        assert_eq!(lesser(all), [all, shareable, ExtentUse::PRIVATE]);
        assert_eq!(lesser(shareable), [shareable, ExtentUse::PRIVATE]);
        assert_eq!(lesser(rdma), [rdma, ExtentUse::PRIVATE]);
        assert_eq!(lesser(ExtentUse::PRIVATE), [ExtentUse::PRIVATE]);
    }
}
