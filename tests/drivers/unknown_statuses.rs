//! What a driver returns may be a number that no header had when gpupool was built: it is an error that names the number, or
//! the safe choice, and nothing else.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "what each call is given was made just before, by the same runtime"
)]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::OnceLock;

use gpupool::runtime::{self, Runtime};
use gpupool::{CaptureMode, CaptureStatus, Device, Event, MemoryLocation, NumaNode, RawStream, Result, Stream};

use crate::double::{CUDA, HIP, Platform, fail, function, mend, on_double, refusal, set};

/// 925 is one that CUDA 13 has and older headers lack; 1000 and the rest are none.
const UNKNOWN: [i32; 5] = [925, 1000, -1, i32::MIN, i32::MAX];
const PAGE: u64 = 2 << 20;
const NODE: NumaNode = NumaNode::from_number(0);

type Act = fn(&'static dyn Runtime) -> Result<()>;

/// The functions of the two drivers behind a call of the runtime; none where a driver has no such function.
struct Call {
    cuda: &'static str,
    hip: &'static str,
    act: Act,
}

const fn call(cuda: &'static str, hip: &'static str, act: Act) -> Call {
    Call { cuda, hip, act }
}

fn device(ordinal: u32) -> Device {
    Device::from_ordinal(ordinal)
}

fn location(ordinal: u32) -> MemoryLocation {
    device(ordinal).into()
}

/// Returns a stream of device 0, which is bound already. It is never destroyed.
fn stream(runtime: &dyn Runtime) -> Result<RawStream> {
    runtime.stream_create()
}

fn reserved(runtime: &dyn Runtime) -> Result<u64> {
    runtime.address_reserve(PAGE)
}

/// Returns the address of a page that is mapped.
fn mapped(runtime: &dyn Runtime) -> Result<u64> {
    let (address, extent) = (reserved(runtime)?, runtime.extent_create(location(0), PAGE)?);
    // SAFETY: the addresses were just reserved, and the extent is as long as they are.
    unsafe { runtime.memory_map(address, PAGE, extent) }.map(|()| address)
}

/// The first calls of a process, by their names with each platform.
const FIRST: [(Platform, &[&str]); 2] = [
    (CUDA, &["cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet"]),
    (HIP, &["hipInit", "hipRuntimeGetVersion", "hipGetDeviceCount"]),
];

/// Calls of devices that have no context yet.
const WITHOUT_CONTEXT: &[Call] = &[
    call("cuDeviceGetName", "hipDeviceGetName", |r| r.device_info(device(1)).map(drop)),
    call("cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId", |r| r.device_info(device(1)).map(drop)),
    call("cuDeviceGetUuid_v2", "hipDeviceGetUuid", |r| r.device_uuid(device(0)).map(drop)),
    call("cuDevicePrimaryCtxGetState", "", |r| r.device_info(device(1)).map(drop)),
    call("cuDevicePrimaryCtxRetain", "", |r| r.bind(location(1)).map(drop)),
    call("cuCtxGetCurrent", "hipGetDevice", |r| r.current_device().map(drop)),
    call("cuCtxSetCurrent", "hipSetDevice", |r| r.bind(location(1)).map(drop)),
];

/// Calls with device 0 bound. What they make before the refusal stays.
const BOUND: &[Call] = &[
    call("cuCtxSynchronize", "hipDeviceSynchronize", |r| r.context_synchronize()),
    call("cuMemGetInfo_v2", "hipMemGetInfo", |r| r.memory_info().map(drop)),
    call("cuThreadExchangeStreamCaptureMode", "hipThreadExchangeStreamCaptureMode", |r| {
        r.exchange_capture_mode(CaptureMode::Relaxed).map(drop)
    }),
    call("cuDeviceGetAttribute", "hipDeviceGetAttribute", |r| r.supports_virtual_memory(location(0)).map(drop)),
    call("cuDeviceTotalMem_v2", "hipDeviceTotalMem", |r| r.total_memory(location(0)).map(drop)),
    call("cuDeviceCanAccessPeer", "hipDeviceCanAccessPeer", |r| r.can_access_peer(device(0), device(1)).map(drop)),
    // Streams.
    call("cuStreamCreate", "hipStreamCreateWithFlags", |r| r.stream_create().map(drop)),
    call("cuStreamDestroy_v2", "hipStreamDestroy", |r| unsafe { r.stream_destroy(stream(r)?) }),
    call("cuStreamGetCtx", "hipStreamGetDevice", |r| unsafe { r.stream_device(stream(r)?) }.map(drop)),
    call("cuStreamGetId", "hipStreamGetId", |r| unsafe { r.stream_id(stream(r)?) }.map(drop)),
    call("cuStreamQuery", "hipStreamQuery", |r| unsafe { r.stream_query(stream(r)?) }.map(drop)),
    call("cuStreamSynchronize", "hipStreamSynchronize", |r| unsafe { r.stream_synchronize(stream(r)?) }),
    call("cuStreamWaitEvent", "hipStreamWaitEvent", |r| unsafe { r.stream_wait_event(stream(r)?, r.event_create()?) }),
    call("cuStreamIsCapturing", "hipStreamIsCapturing", |r| unsafe { r.stream_capture_status(stream(r)?) }.map(drop)),
    call("cuStreamGetCaptureInfo_v3", "", |r| unsafe { r.stream_capture(stream(r)?) }.map(drop)),
    // Events.
    call("cuEventCreate", "hipEventCreateWithFlags", |r| r.event_create().map(drop)),
    call("cuEventCreate", "hipEventCreateWithFlags", |r| r.event_create_interprocess().map(drop)),
    call("cuEventDestroy_v2", "hipEventDestroy", |r| unsafe { r.event_destroy(r.event_create()?) }),
    call("cuEventRecord", "hipEventRecord", |r| unsafe { r.event_record(r.event_create()?, stream(r)?) }),
    call("cuCtxRecordEvent", "", |r| unsafe { r.event_record_context(r.event_create()?) }),
    call("cuCtxWaitEvent", "", |r| unsafe { r.context_wait_event(r.event_create()?) }),
    call("cuEventQuery", "hipEventQuery", |r| unsafe { r.event_query(r.event_create()?) }.map(drop)),
    call("cuEventSynchronize", "hipEventSynchronize", |r| unsafe { r.event_synchronize(r.event_create()?) }),
    call("cuIpcGetEventHandle", "hipIpcGetEventHandle", |r| {
        unsafe { r.event_export(r.event_create_interprocess()?) }.map(drop)
    }),
    call("cuIpcOpenEventHandle", "hipIpcOpenEventHandle", |r| {
        let exported = unsafe { r.event_export(r.event_create_interprocess()?) }?;
        r.event_import(exported).map(drop)
    }),
    // Memory.
    call("cuMemGetAllocationGranularity", "hipMemGetAllocationGranularity", |r| r.page_bytes(location(0)).map(drop)),
    call("cuMemAddressReserve", "hipMemAddressReserve", |r| reserved(r).map(drop)),
    call("cuMemAddressFree", "hipMemAddressFree", |r| unsafe { r.address_free(reserved(r)?, PAGE) }),
    call("cuMemCreate", "hipMemCreate", |r| r.extent_create(location(0), PAGE).map(drop)),
    call("cuMemRelease", "hipMemRelease", |r| unsafe { r.extent_release(r.extent_create(location(0), PAGE)?) }),
    call("cuMemMap", "hipMemMap", |r| mapped(r).map(drop)),
    call("cuMemSetAccess", "hipMemSetAccess", |r| unsafe { r.memory_set_access(mapped(r)?, PAGE, &[location(0)]) }),
    call("cuMemUnmap", "hipMemUnmap", |r| unsafe { r.memory_unmap(mapped(r)?, PAGE) }),
    call("cuMemExportToShareableHandle", "hipMemExportToShareableHandle", |r| {
        unsafe { r.extent_export(r.extent_create(location(0), PAGE)?) }.map(drop)
    }),
    call("cuMemImportFromShareableHandle", "hipMemImportFromShareableHandle", |r| {
        r.extent_import(std::io::stdin().as_fd()).map(drop)
    }),
    call("cuMemAlloc_v2", "hipMalloc", |r| r.memory_allocate(PAGE).map(drop)),
    call("cuMemFree_v2", "hipFree", |r| unsafe { r.memory_free(r.memory_allocate(PAGE)?) }),
    call("cuMemsetD8Async", "hipMemsetD8Async", |r| unsafe { r.fill(r.memory_allocate(PAGE)?, 7, PAGE, stream(r)?) }),
    call("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", |r| {
        let mut bytes = [0_u8; 64];
        unsafe { r.copy_to_host(bytes.as_mut_ptr().expose_provenance() as u64, r.memory_allocate(64)?, 64, stream(r)?) }
    }),
    call("cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync", |r| {
        let bytes = [0_u8; 64];
        unsafe { r.copy_to_device(r.memory_allocate(64)?, bytes.as_ptr().expose_provenance() as u64, 64, stream(r)?) }
    }),
    call("cuMemHostRegister_v2", "", |r| r.host_allocate(NODE, PAGE).map(drop)),
    call("cuMemHostUnregister", "", |r| unsafe { r.host_free(NODE, r.host_allocate(NODE, PAGE)?, PAGE) }),
    call("cuMemHostAlloc", "hipHostMalloc", |r| in_one_piece(|| r.host_allocate(NODE, PAGE).map(drop))),
    call("cuMemFreeHost", "hipHostFree", |r| {
        in_one_piece(|| unsafe { r.host_free(NODE, r.host_allocate(NODE, PAGE)?, PAGE) })
    }),
    call("cuMemAllocAsync", "hipMallocAsync", |r| unsafe { r.allocate_async(PAGE, stream(r)?) }.map(drop)),
    call("cuMemFreeAsync", "hipFreeAsync", |r| {
        let stream = stream(r)?;
        unsafe { r.free_async(r.allocate_async(PAGE, stream)?, stream) }
    }),
    call("cuDeviceGetMemPool", "", |r| r.pool_reserved().map(drop)),
    call("cuMemPoolGetAttribute", "", |r| r.pool_reserved().map(drop)),
    call("cuMemPoolTrimTo", "", |r| r.trim_pool()),
    call("cuMemPoolSetAttribute", "", |r| r.trim_pool()),
    // Graphs.
    call("cuUserObjectCreate", "", keep_for_a_graph),
    call("cuGraphRetainUserObject", "", keep_for_a_graph),
    // Contexts of other code.
    call("cuCtxGetDevice", "", |r| {
        let own: unsafe extern "C" fn(i32) -> *mut c_void = function(c"double_own_context");
        make_current(unsafe { own(0) });
        let outcome = r.current_device().map(drop);
        make_current(ptr::null_mut());
        r.bind(location(0))?;
        outcome
    }),
    call("cuStreamGetCtx_v2", "", |r| {
        let green: unsafe extern "C" fn(i32) -> *mut c_void = function(c"double_green_context");
        let create: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u32, i32) -> i32 =
            function(c"cuGreenCtxStreamCreate");
        // One for all statuses: the double has no room for many.
        static GREEN: OnceLock<usize> = OnceLock::new();
        let green = *GREEN.get_or_init(|| unsafe { green(0) }.expose_provenance());
        let mut stream = ptr::null_mut();
        assert_eq!(unsafe { create(&mut stream, ptr::with_exposed_provenance_mut(green), 1, 0) }, 0);
        unsafe { r.stream_device(Stream::from_raw_on(stream, device(0))?.raw()) }.map(drop)
    }),
];

/// Functions whose statuses change nothing: what they undo stays, or the error that is under way is the one to return.
const IGNORED: &[&str] = &["cuUserObjectRelease"];
/// Functions that return no status to check: the names of statuses, and a thread's last error.
const WITHOUT_STATUS: &[&str] = &["cuGetErrorName", "hipGetErrorName", "hipGetLastError"];

fn in_one_piece(act: impl FnOnce() -> Result<()>) -> Result<()> {
    set("FAKE_IN_PLACE", "0");
    let outcome = act();
    set("FAKE_IN_PLACE", "1");
    outcome
}

fn make_current(context: *mut c_void) {
    let make_current: unsafe extern "C" fn(*mut c_void) -> i32 = function(c"cuCtxSetCurrent");
    assert_eq!(unsafe { make_current(context) }, 0);
}

fn keep_for_a_graph(runtime: &'static dyn Runtime) -> Result<()> {
    let set_capture: unsafe extern "C" fn(*mut c_void, i32) = function(c"double_set_capture");
    let stream = stream(runtime)?;
    unsafe { set_capture(stream.as_ptr(), 1) };
    let kept = unsafe { runtime.stream_capture(stream) }.and_then(|capture| {
        let graph = capture.expect("the stream is captured").graph;
        unsafe { runtime.graph_retain(graph, Box::new(())) }
    });
    unsafe { set_capture(stream.as_ptr(), 0) };
    kept
}

/// Returns the functions of a platform that calls are about.
fn named(calls: &'static [Call], platform: Platform) -> impl Iterator<Item = (&'static str, Act)> {
    let name = move |call: &Call| if platform.name == "cuda" { call.cuda } else { call.hip };
    calls.iter().map(move |call| (name(call), call.act)).filter(|(name, _)| !name.is_empty())
}

/// Checks that an error names the function, whose version is no part of most names, and the number.
#[track_caller]
fn assert_told(error: &str, function: &str, status: i32) {
    let plain = function.trim_end_matches("_v2").trim_end_matches("_v3");
    let is_told =
        [function, plain].iter().any(|name| error.contains(&format!("{name} failed with unknown status {status}")));
    assert!(is_told, "{function} returned {status}: {error}");
}

/// Checks what each status of the function makes of a call.
fn assert_each_is_told(function: &str, mut act: impl FnMut() -> Result<()>) {
    for status in UNKNOWN {
        fail(function, status);
        let outcome = act();
        mend();
        assert_told(&refusal(outcome, function), function, status);
    }
}

fn every_status_is_an_error(platform: Platform) {
    let first = FIRST.into_iter().find(|(of, _)| of.name == platform.name).expect("a platform").1;
    for function in first {
        assert_each_is_told(function, || runtime::get().map(drop));
    }
    let runtime = runtime::get().expect("the double");
    let begun: Vec<_> = named(WITHOUT_CONTEXT, platform).collect();
    for (function, act) in begun {
        assert_each_is_told(function, || act(runtime));
    }
    runtime.bind(location(0)).expect("device 0");
    for (function, act) in named(BOUND, platform) {
        assert_each_is_told(function, || act(runtime));
    }
}

#[test]
fn every_status_of_every_function_of_cudas_driver_is_an_error() {
    on_double!(CUDA);
    every_status_is_an_error(CUDA);
}

#[test]
fn every_status_of_every_function_of_hip_is_an_error() {
    on_double!(HIP);
    every_status_is_an_error(HIP);
}

/// A call of users, on a stream of device 1.
type Use = fn(&Stream) -> Result<()>;

/// Refuses what users call, by a function that it relies on.
fn errors_name_the_device(platform: Platform) {
    let cuda = platform.name == "cuda";
    let calls: &[(&str, &str, Use)] = &[
        ("cuStreamCreate", "hipStreamCreateWithFlags", |_| Stream::new(device(1)).map(drop)),
        ("cuStreamQuery", "hipStreamQuery", |stream| stream.query().map(drop)),
        ("cuStreamSynchronize", "hipStreamSynchronize", Stream::synchronize),
        ("cuStreamIsCapturing", "hipStreamIsCapturing", |stream| stream.capture_status().map(drop)),
        ("cuStreamWaitEvent", "hipStreamWaitEvent", |stream| stream.wait(&Event::new(device(1))?)),
        ("cuEventCreate", "hipEventCreateWithFlags", |_| Event::new(device(1)).map(drop)),
        ("cuEventRecord", "hipEventRecord", |stream| Event::new(device(1))?.record(stream)),
        ("cuEventQuery", "hipEventQuery", |_| Event::new(device(1))?.query().map(drop)),
        ("cuEventSynchronize", "hipEventSynchronize", |_| Event::new(device(1))?.synchronize()),
        ("cuCtxSynchronize", "hipDeviceSynchronize", |_| gpupool::synchronize(device(1))),
        ("cuDeviceGetName", "hipDeviceGetName", |_| gpupool::device_info(device(1)).map(drop)),
        ("cuMemMap", "hipMemMap", |stream| gpupool::empty(8 * PAGE, stream).map(drop)),
        ("cuMemSetAccess", "hipMemSetAccess", |stream| gpupool::empty(8 * PAGE, stream).map(drop)),
        ("cuMemCreate", "hipMemCreate", |stream| gpupool::empty(8 * PAGE, stream).map(drop)),
    ];
    let stream = Stream::new(device(1)).expect("a stream");
    // Once, so that what is found out at first is known.
    drop(gpupool::empty(64, &stream).expect("memory"));
    for &(of_cuda, of_hip, act) in calls {
        let function = if cuda { of_cuda } else { of_hip };
        for status in UNKNOWN {
            fail(function, status);
            let outcome = act(&stream);
            mend();
            let error = refusal(outcome, function);
            assert_told(&error, function, status);
            assert!(error.contains("on device 1"), "{function} returned {status}: {error}");
        }
    }
}

#[test]
fn errors_of_cudas_driver_name_the_device() {
    on_double!(CUDA);
    errors_name_the_device(CUDA);
}

#[test]
fn errors_of_hip_name_the_device() {
    on_double!(HIP);
    errors_name_the_device(HIP);
}

/// A stream whose status is unknown may be captured, and a thread's mode that is unknown may be the strictest.
fn what_a_driver_writes_is_a_number(platform: Platform) {
    let runtime = runtime::get().expect("the double");
    let stream = Stream::new(device(0)).expect("a stream");
    for written in ["3", "7", "-1"] {
        set("FAKE_CAPTURE_STATUS", written);
        assert_eq!(stream.capture_status().expect("a status"), CaptureStatus::Active, "{written}");
        if platform.name == "cuda" {
            runtime.bind(location(0)).expect("device 0");
            let error = refusal(unsafe { runtime.stream_capture(stream.raw()) }, "the capture");
            assert!(
                error.contains(&format!("cuStreamGetCaptureInfo returned the capture status {written}")),
                "{error}"
            );
        }
    }
    set("FAKE_CAPTURE_STATUS", "");
    assert_eq!(stream.capture_status().expect("a status"), CaptureStatus::None);
    set("FAKE_CAPTURE_MODE", "9");
    assert_eq!(runtime.exchange_capture_mode(CaptureMode::Relaxed).expect("a mode"), CaptureMode::Global);
}

#[test]
fn what_cudas_driver_writes_is_a_number() {
    on_double!(CUDA);
    what_a_driver_writes_is_a_number(CUDA);
}

#[test]
fn what_hip_writes_is_a_number() {
    on_double!(HIP);
    what_a_driver_writes_is_a_number(HIP);
}

/// The tables of the sources, with each platform's names.
const SOURCES: [&str; 3] = [
    include_str!("../../src/runtime/driver/symbols.rs"),
    include_str!("../../src/runtime/driver/cuda.rs"),
    include_str!("../../src/runtime/driver/hip.rs"),
];

/// Returns the names of a platform's functions that tables of the sources have.
fn in_sources(platform: Platform) -> BTreeSet<&'static str> {
    let tables =
        SOURCES.iter().flat_map(|text| text.split("symbols! {").skip(1)).filter_map(|rest| rest.split("\n}").next());
    let names = tables.flat_map(|table| table.split(" c\"").skip(1)).filter_map(|rest| rest.split('"').next());
    let prefix = if platform.name == "cuda" { "cu" } else { platform.name };
    names.filter(|name| name.starts_with(prefix)).collect()
}

#[test]
fn no_function_is_forgotten() {
    for platform in [CUDA, HIP] {
        let first = FIRST.into_iter().filter(|(of, _)| of.name == platform.name).flat_map(|(_, names)| names);
        let tested: BTreeSet<_> = named(WITHOUT_CONTEXT, platform)
            .chain(named(BOUND, platform))
            .map(|(name, _)| name)
            .chain(first.chain(IGNORED).chain(WITHOUT_STATUS).copied())
            .collect();
        let called = in_sources(platform);
        assert!(called.len() > 40, "{}: {} functions alone", platform.name, called.len());
        let forgotten: Vec<_> = called.into_iter().filter(|name| !tested.contains(name)).collect();
        assert!(forgotten.is_empty(), "{}: {forgotten:?}", platform.name);
    }
}
