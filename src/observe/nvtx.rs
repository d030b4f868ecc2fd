//! NVTX without its headers or the crates over them, which need a C compiler at every build: ranges and names that a
//! profiler such as Nsight Systems shows, in a domain of our own.
//!
//! Off unless the process was started with `GPUPOOL_NVTX=1`. NVTX is a protocol rather than a library: the profiler
//! names its library in `NVTX_INJECTION64_PATH`, which the program loads and gives a table of places for functions;
//! the program calls those that the profiler fills in. NVIDIA does this in C headers, and the crates need libclang
//! besides, so the few functions needed are called directly. The numbers and layouts are those of version 3:
//! `nvtx3/nvToolsExt.h`, `nvtxDetail/nvtxTypes.h` and `nvtxInit.h` of <https://github.com/NVIDIA/NVTX>.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use log::info;

use super::target::RUNTIME;
use crate::environment;
use crate::error::Result;
use crate::ids::RawStream;
use crate::shared_object::open;
use crate::sync::ThisThread;

/// The environment variable that switches it on: `1`.
const SWITCH: &str = "GPUPOOL_NVTX";
/// The variable by which a profiler names its library.
const INJECTION: &str = "NVTX_INJECTION64_PATH";

/// `NVTX_VERSION`.
const VERSION: u16 = 3;
/// `NVTX_PAYLOAD_TYPE_UNSIGNED_INT64`.
const PAYLOAD_U64: i32 = 1;
/// `NVTX_MESSAGE_TYPE_ASCII`. Profilers take it for UTF-8.
const MESSAGE_ASCII: i32 = 1;
/// `NVTX_ETID_CALLBACKS` and `NVTX_ETID_VERSIONINFO`.
const EXPORT_CALLBACKS: u32 = 1;
const EXPORT_VERSION: u32 = 3;

type DomainCreate = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type RangePush = unsafe extern "C" fn(*mut c_void, *const EventAttributes) -> c_int;
type RangePop = unsafe extern "C" fn(*mut c_void) -> c_int;
type NameThread = unsafe extern "C" fn(u32, *const c_char);
type NameStream = unsafe extern "C" fn(*mut c_void, *const c_char);
type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;

/// The place of a function, by `NvtxCallbackModule` and the callback id in it.
type FunctionIndex = (usize, usize);

const NAME_OS_THREAD: FunctionIndex = (1, 14);
const NAME_CU_STREAM: FunctionIndex = (2, 5);
const DOMAIN_RANGE_PUSH_EX: FunctionIndex = (5, 4);
const DOMAIN_RANGE_POP: FunctionIndex = (5, 5);
const DOMAIN_CREATE: FunctionIndex = (5, 12);

/// How many places each module has, the unused first one included. A profiler may ask for all modules, also for unused
/// ones.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MOST: usize = 16;

type FunctionSlot = AtomicPtr<c_void>;
/// The places that a profiler gets: one more than the most, always null, as in NVIDIA's headers.
type FunctionTable = [Option<&'static FunctionSlot>; MOST + 1];

static SLOTS: [[FunctionSlot; MOST]; SIZES.len()] =
    [const { [const { FunctionSlot::new(ptr::null_mut()) }; MOST] }; SIZES.len()];
static TABLES: [FunctionTable; SIZES.len()] = tables();

const fn tables() -> [FunctionTable; SIZES.len()] {
    let mut tables: [FunctionTable; SIZES.len()] = [[None; MOST + 1]; SIZES.len()];
    let mut module = 0;
    while module < SIZES.len() {
        let mut id = 1;
        while id < SIZES[module] {
            tables[module][id] = Some(&SLOTS[module][id]);
            id += 1;
        }
        module += 1;
    }
    tables
}

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct ExportTableCallbacks {
    bytes: usize,
    get_module_function_table:
        unsafe extern "C" fn(c_int, *mut *const Option<&'static FunctionSlot>, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

static CALLBACKS: ExportTableCallbacks =
    ExportTableCallbacks { bytes: size_of::<ExportTableCallbacks>(), get_module_function_table };
static VERSION_INFO: VersionInfo =
    VersionInfo { bytes: size_of::<VersionInfo>(), version: VERSION as u32, reserved: 0, set_injection_version };

extern "C" fn set_injection_version(_version: u32) {}

unsafe extern "C" fn get_module_function_table(
    module: c_int,
    table: *mut *const Option<&'static FunctionSlot>,
    size: *mut c_uint,
) -> c_int {
    let Some(module) = usize::try_from(module).ok().filter(|&module| module > 0 && module < SIZES.len()) else {
        return 0;
    };
    if !table.is_null() {
        // SAFETY: a profiler gives a place for the address of a table, or null.
        unsafe { *table = TABLES[module].as_ptr() };
    }
    if !size.is_null() {
        // SAFETY: a profiler gives a place for the size, or null.
        unsafe { *size = SIZES[module] as c_uint };
    }
    1
}

unsafe extern "C" fn get_export_table(id: u32) -> *const c_void {
    match id {
        EXPORT_CALLBACKS => (&raw const CALLBACKS).cast(),
        EXPORT_VERSION => (&raw const VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

/// `nvtxEventAttributes_v2`.
#[repr(C)]
struct EventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static DOMAIN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
/// One thread looks for the profiler. Meanwhile others do without, so that none waits.
const ATTACHING: u8 = 2;
const ON: u8 = 3;

/// Refuses a switch that is neither on nor off; elsewhere it counts as off.
pub(crate) fn check_switch() -> Result<()> {
    environment::switch(SWITCH, false).map(drop)
}

/// Returns whether a profiler listens.
#[inline]
fn is_on() -> bool {
    STATE.load(Ordering::Relaxed) != OFF && is_attached()
}

#[cold]
fn is_attached() -> bool {
    match STATE.compare_exchange(UNKNOWN, ATTACHING, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            let is_on = environment::switch(SWITCH, false).unwrap_or(false) && attach();
            STATE.store(if is_on { ON } else { OFF }, Ordering::Release);
            is_on
        }
        Err(state) => state == ON,
    }
}

/// Lets the profiler fill in its functions, if there is one.
fn attach() -> bool {
    let Some(path) = std::env::var_os(INJECTION).filter(|path| !path.is_empty()) else {
        info!(target: RUNTIME, "{SWITCH} is set, but no profiler is there: {INJECTION} is not set");
        return false;
    };
    match initialize(&path) {
        Ok(()) => info!(target: RUNTIME, "NVTX ranges go to the profiler of {}", path.display()),
        Err(reason) => {
            let path = path.display();
            info!(target: RUNTIME, "{SWITCH} is set, but the profiler's library cannot be used: {path}: {reason}");
            return false;
        }
    }
    // SAFETY: the type is that of nvtxDomainCreateA, and the name is a string.
    if let Some(create) = unsafe { function::<DomainCreate>(DOMAIN_CREATE) } {
        // SAFETY: the name is a string, which the profiler copies.
        DOMAIN.store(unsafe { create(c"gpupool".as_ptr()) }, Ordering::Relaxed);
    }
    true
}

fn initialize(path: &OsStr) -> Result<(), String> {
    // As NVIDIA's headers open it.
    let library = open(Path::new(path), libc::RTLD_LAZY)?;
    // SAFETY: the type is that of InitializeInjectionNvtx2, which is what the variable's library is there for.
    let initialize = unsafe { library.get::<Initialize>(c"InitializeInjectionNvtx2") }.map_err(|e| e.to_string())?;
    // SAFETY: the function takes what gives the tables, which live for ever.
    if unsafe { initialize(get_export_table) } == 0 {
        return Err("InitializeInjectionNvtx2 refused".to_owned());
    }
    // Its functions are called until the process ends.
    std::mem::forget(library);
    Ok(())
}

/// Returns a function of the profiler's, if it has set it.
///
/// # Safety
/// `F` is the prototype of the function at this place.
unsafe fn function<F: Copy>((module, id): FunctionIndex) -> Option<F> {
    let function = SLOTS[module][id].load(Ordering::Relaxed);
    // SAFETY: it is not null, and the caller vouches for the type, a pointer to a function.
    (!function.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&function) })
}

/// A range on the calling thread's timeline until it is dropped, inside earlier ones.
#[must_use = "the range ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct Range {
    is_pushed: bool,
    this_thread: PhantomData<*mut ()>,
}

impl Range {
    /// Begins a range; without a profiler, nothing. Profilers sum up ranges by name, so bytes are given apart.
    #[inline]
    pub(crate) fn new(name: fmt::Arguments<'_>, bytes: Option<u64>) -> Self {
        Self { is_pushed: is_on() && push(name, bytes), this_thread: PhantomData }
    }
}

impl Drop for Range {
    #[inline]
    fn drop(&mut self) {
        if self.is_pushed {
            pop();
        }
    }
}

#[cold]
fn push(name: fmt::Arguments<'_>, bytes: Option<u64>) -> bool {
    // SAFETY: the type is that of nvtxDomainRangePushEx.
    let Some(push) = (unsafe { function::<RangePush>(DOMAIN_RANGE_PUSH_EX) }) else { return false };
    let message = c_string(name);
    let attributes = EventAttributes {
        version: VERSION,
        size: size_of::<EventAttributes>() as u16,
        category: 0,
        color_type: 0,
        color: 0,
        payload_type: bytes.map_or(0, |_| PAYLOAD_U64),
        reserved: 0,
        payload: bytes.unwrap_or(0),
        message_type: MESSAGE_ASCII,
        message: message.as_ptr(),
    };
    // SAFETY: the domain is the profiler's own, and it copies what it keeps of the attributes.
    unsafe { push(DOMAIN.load(Ordering::Relaxed), &raw const attributes) };
    true
}

#[cold]
fn pop() {
    // SAFETY: the type is that of nvtxDomainRangePop.
    if let Some(pop) = unsafe { function::<RangePop>(DOMAIN_RANGE_POP) } {
        // SAFETY: the domain is the profiler's own.
        unsafe { pop(DOMAIN.load(Ordering::Relaxed)) };
    }
}

pub(crate) fn name_thread(name: &str) {
    if is_on() {
        // SAFETY: the type is that of nvtxNameOsThreadA, and the name is a string, which the profiler copies.
        if let Some(name_thread) = unsafe { function::<NameThread>(NAME_OS_THREAD) } {
            let name = c_string(format_args!("{name}"));
            // SAFETY: the name is a string that ends with a zero.
            unsafe { name_thread(ThisThread::get().system_id(), name.as_ptr()) };
        }
    }
}

pub(crate) fn name_stream(stream: RawStream, name: &CStr) {
    if is_on() {
        // SAFETY: the type is that of nvtxNameCuStreamA, and the name is a string, which the profiler copies.
        if let Some(name_stream) = unsafe { function::<NameStream>(NAME_CU_STREAM) } {
            // SAFETY: the stream is a CUstream, and the name is a string that ends with a zero.
            unsafe { name_stream(stream.as_ptr(), name.as_ptr()) };
        }
    }
}

/// Returns a C string, without null bytes that a user's name may have.
fn c_string(text: fmt::Arguments<'_>) -> CString {
    CString::new(text.to_string().replace('\0', "")).unwrap_or_default()
}
