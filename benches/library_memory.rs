//! What handles and memory of cuStateVec, cuTensorNet, cuTENSOR and cuSPARSELt cost from gpupool, beside the libraries' own
//! functions and the driver's allocator (`cuMemAllocAsync`). Needs a GPU; libraries that are not here are left out.
//!
//! - `<library>/create and destroy` is the library's own, and what nvmath-python does for each contraction;
//!   `<library>/handle(stream)` and `lease(stream)` are gpupool's.
//! - `handler/...` is a block of 1 MiB by the two functions that a library calls, as gpupool and as NVIDIA's samples have
//!   them, with a synchronisation after each hundred.
//! - `custatevec/gate ...` is a gate on ten qubits, whose workspace is drawn at each call or given to it; also in turns.

use std::ffi::{c_char, c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use gpupool::library::{CUSPARSELT, CUSTATEVEC, CUTENSOR, CUTENSORNET, DeviceMemHandler, Library, RawHandle, Vendor};
use gpupool::{
    CusparseLt, Custatevec, Cutensor, Cutensornet, Device, DeviceBuffer, HandlePool, MemPool, Pooled, Stream,
};
use libloading::Symbol;

type Driver = unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> c_int;
type DriverFree = unsafe extern "C" fn(u64, *mut c_void) -> c_int;

/// The driver, whose functions are called here as a program without gpupool calls them.
fn driver<T: Copy>(name: &str) -> T {
    static DRIVER: std::sync::OnceLock<libloading::Library> = std::sync::OnceLock::new();
    let library = DRIVER.get_or_init(|| {
        // SAFETY: it is the driver that gpupool uses.
        unsafe { libloading::Library::new("libcuda.so.1") }.expect("a driver")
    });
    // SAFETY: the type that the caller names is that of the function in cuda.h.
    *unsafe { library.get::<T>(name.as_bytes()) }.expect("a public function")
}

/// Makes the device's primary context current, as the runtime API does.
fn make_current() {
    let (mut context, device) = (ptr::null_mut::<c_void>(), 0);
    let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int = driver("cuDevicePrimaryCtxRetain");
    let set: unsafe extern "C" fn(*mut c_void) -> c_int = driver("cuCtxSetCurrent");
    // SAFETY: the place is one for a context, and the device exists, as gpupool has made a stream on it.
    assert_eq!(unsafe { retain(&mut context, device) }, 0);
    // SAFETY: the context was just retained, for as long as the process.
    assert_eq!(unsafe { set(context) }, 0);
}

/// Keeps what the driver's allocator has freed, as NVIDIA's samples do, so that it is not returned at each synchronisation.
fn keep_freed_memory() {
    const RELEASE_THRESHOLD: c_int = 4;
    let mut pool = ptr::null_mut::<c_void>();
    let get: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int = driver("cuDeviceGetDefaultMemPool");
    let set: unsafe extern "C" fn(*mut c_void, c_int, *const u64) -> c_int = driver("cuMemPoolSetAttribute");
    // SAFETY: the place is one for a pool.
    assert_eq!(unsafe { get(&mut pool, 0) }, 0);
    // SAFETY: the pool is the device's own, and the attribute is a number of 64 bits.
    assert_eq!(unsafe { set(pool, RELEASE_THRESHOLD, &u64::MAX) }, 0);
}

unsafe extern "C" fn driver_alloc(
    _context: *mut c_void,
    place: *mut *mut c_void,
    size: usize,
    stream: *mut c_void,
) -> c_int {
    static ALLOC: std::sync::OnceLock<Driver> = std::sync::OnceLock::new();
    let alloc = *ALLOC.get_or_init(|| driver("cuMemAllocAsync"));
    // SAFETY: the library passes a place for a pointer, and a stream that is alive.
    unsafe { alloc(place.cast(), size, stream) }
}

unsafe extern "C" fn driver_free(
    _context: *mut c_void,
    address: *mut c_void,
    _size: usize,
    stream: *mut c_void,
) -> c_int {
    static FREE: std::sync::OnceLock<DriverFree> = std::sync::OnceLock::new();
    let free = *FREE.get_or_init(|| driver("cuMemFreeAsync"));
    // SAFETY: the library passes what it got above, and a stream that is alive.
    unsafe { free(address.addr() as u64, stream) }
}

fn drivers_handler() -> DeviceMemHandler {
    let mut name = [0; 64];
    name.iter_mut().zip(b"cuMemAllocAsync").for_each(|(place, byte)| *place = *byte as c_char);
    DeviceMemHandler { context: ptr::null_mut(), device_alloc: driver_alloc, device_free: driver_free, name }
}

/// Returns the handler that gpupool set on a handle.
fn handler_of(library: &libloading::Library, handle: *mut c_void) -> DeviceMemHandler {
    let mut handler = drivers_handler();
    // SAFETY: the type is that of the function in custatevec.h.
    let get: Symbol<'_, unsafe extern "C" fn(*mut c_void, *mut DeviceMemHandler) -> c_int> =
        unsafe { library.get(b"custatevecGetDeviceMemHandler") }.expect("a public function");
    // SAFETY: the handle is this thread's, and the place is one for a handler.
    assert_eq!(unsafe { get(handle, &mut handler) }, 0, "gpupool set a handler");
    handler
}

/// The file that gpupool has loaded.
fn file(pool: HandlePool) -> libloading::Library {
    let path = pool.path().ok().flatten().expect("a library");
    // SAFETY: the pool has loaded this library already.
    unsafe { libloading::Library::new(path) }.expect("it is loaded")
}

fn handles(criterion: &mut Criterion) {
    let every: [(HandlePool, &'static Vendor); 4] = [
        (Custatevec::pool(), &CUSTATEVEC),
        (Cutensornet::pool(), &CUTENSORNET),
        (Cutensor::pool(), &CUTENSOR),
        (CusparseLt::pool(), &CUSPARSELT),
    ];
    let device = Device::from_ordinal(0);
    for (pool, library) in every.into_iter().filter(|(pool, _)| pool.is_available()) {
        let stream = Stream::new(device).expect("a stream");
        make_current();
        let mut group = criterion.benchmark_group(pool.name());
        group.sample_size(10);
        group.bench_function("create and destroy", |bench| {
            bench.iter(|| library.create(device).and_then(|handle| library.destroy(handle)).expect("a handle"));
        });
        group.bench_function("handle(stream)", |bench| bench.iter(|| pool.handle(black_box(&stream))));
        group.bench_function("lease(stream)", |bench| bench.iter(|| pool.lease(black_box(&stream)).map(drop)));
        group.finish();
    }
}

fn handlers(criterion: &mut Criterion) {
    let pool = Custatevec::pool();
    if !pool.is_available() {
        return;
    }
    let device = Device::from_ordinal(0);
    let stream = Stream::new(device).expect("a stream");
    make_current();
    keep_freed_memory();
    let (library, mine) = (file(pool), MemPool::builder().build().expect("a pool"));
    pool.set_mem_pool(device, Some(&mine.token())).expect("cuStateVec takes it");
    let ours = handler_of(&library, pool.handle(&stream).expect("a handle").as_ptr());
    let mut group = criterion.benchmark_group("handler");
    for (name, handler) in [("gpupool", ours), ("cuMemAllocAsync", drivers_handler())] {
        let raw = stream.raw().as_ptr();
        group.bench_function(format!("1 MiB, {name}"), |bench| {
            let mut count = 0_u32;
            bench.iter(|| {
                let mut address = ptr::null_mut();
                // SAFETY: the functions are a handler's, the stream is alive, and what was allocated is freed once.
                unsafe {
                    assert_eq!((handler.device_alloc)(handler.context, &mut address, 1 << 20, raw), 0);
                    assert_eq!((handler.device_free)(handler.context, address, 1 << 20, raw), 0);
                }
                count += 1;
                if count.is_multiple_of(100) {
                    stream.synchronize().expect("it works");
                }
            });
        });
    }
    group.finish();
    gates(criterion, &library, &stream, ours);
    pool.set_mem_pool(device, None).expect("cuStateVec takes it");
}

const QUBITS: u32 = 16;
const TARGETS: u32 = 10;
/// How often the gates take turns, and how many each applies in a turn.
const TURNS: usize = 301;
const OF_A_TURN: u32 = 8;
/// `CUDA_C_64F`, `CUSTATEVEC_MATRIX_LAYOUT_ROW`.
const COMPLEX: c_int = 5;
const BY_ROWS: c_int = 1;

type ApplyMatrix = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    u32,
    *const c_void,
    c_int,
    c_int,
    i32,
    *const i32,
    u32,
    *const i32,
    *const i32,
    u32,
    c_int,
    *mut c_void,
    usize,
) -> c_int;
type SizeOfMatrix = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    u32,
    *const c_void,
    c_int,
    c_int,
    i32,
    u32,
    u32,
    c_int,
    *mut usize,
) -> c_int;
type SetHandler = unsafe extern "C" fn(*mut c_void, *const DeviceMemHandler) -> c_int;

/// A gate, and what cuStateVec has for it.
struct Gate<'a> {
    name: &'static str,
    apply: &'a Symbol<'a, ApplyMatrix>,
    handle: RawHandle,
    stream: &'a Stream,
    state: &'a DeviceBuffer,
    matrix: *const c_void,
    targets: &'a [i32],
    /// Given to each call; none is drawn then.
    workspace: Option<DeviceBuffer>,
}

impl Gate<'_> {
    /// Applies it and waits for it.
    fn apply(&self) {
        let (address, given) = match &self.workspace {
            Some(workspace) => (ptr::without_provenance_mut(workspace.ptr() as usize), workspace.nbytes() as usize),
            None => (ptr::null_mut(), 0),
        };
        let raw = self.handle.as_ptr();
        let state = ptr::without_provenance_mut(self.state.ptr() as usize);
        let (targets, count) = (self.targets.as_ptr(), self.targets.len() as u32);
        // SAFETY: the state and the workspace are as large as cuStateVec asks for, and used on this stream alone.
        let status = unsafe {
            (self.apply)(
                raw,
                state,
                COMPLEX,
                QUBITS,
                self.matrix,
                COMPLEX,
                BY_ROWS,
                0,
                targets,
                count,
                ptr::null(),
                ptr::null(),
                0,
                0,
                address,
                given,
            )
        };
        assert_eq!(status, 0);
        self.stream.synchronize().expect("it works");
    }
}

/// Measures a gate with each handler, on handles of the bench's own, and with a workspace that is there.
fn gates(criterion: &mut Criterion, library: &libloading::Library, stream: &Stream, ours: DeviceMemHandler) {
    // SAFETY: the types are those of the functions in custatevec.h.
    let (apply, size_of, set_handler, set_stream) = unsafe {
        (
            library.get::<ApplyMatrix>(b"custatevecApplyMatrix").expect("a public function"),
            library.get::<SizeOfMatrix>(b"custatevecApplyMatrixGetWorkspaceSize").expect("a public function"),
            library.get::<SetHandler>(b"custatevecSetDeviceMemHandler").expect("a public function"),
            library
                .get::<unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int>(b"custatevecSetStream")
                .expect("a public function"),
        )
    };
    let state = gpupool::empty(16 << QUBITS, stream).expect("memory");
    let side = 1_usize << TARGETS;
    // The identity, so that the state stays what it is, whatever it is.
    let mut matrix = vec![0.0_f64; 2 * side * side];
    (0..side).for_each(|row| matrix[2 * (row * side + row)] = 1.0);
    let targets: Vec<i32> = (0..TARGETS as i32).collect();
    let matrix = matrix.as_ptr().cast::<c_void>();
    let handlers =
        [("gpupool", Some(ours)), ("cuMemAllocAsync", Some(drivers_handler())), ("a workspace that is there", None)];
    let gates: Vec<_> = handlers
        .into_iter()
        .map(|(name, handler)| {
            let handle = CUSTATEVEC.create(Device::from_ordinal(0)).expect("a handle");
            let raw = handle.as_ptr();
            let mut bytes = 0;
            // SAFETY: the handle is the bench's own, the stream and the handler outlive it, and the places are of their types.
            unsafe {
                assert_eq!(set_stream(raw, stream.raw().as_ptr()), 0);
                if let Some(handler) = &handler {
                    assert_eq!(set_handler(raw, handler), 0);
                }
                let how = (COMPLEX, BY_ROWS, 0, TARGETS, 0, 0);
                let outcome =
                    size_of(raw, COMPLEX, QUBITS, matrix, how.0, how.1, how.2, how.3, how.4, how.5, &mut bytes);
                assert_eq!(outcome, 0);
            }
            println!("custatevec gate: a workspace of {bytes} bytes beside the handle's");
            let workspace = handler.is_none().then(|| gpupool::empty(bytes as u64, stream).expect("memory"));
            let (apply, state, targets) = (&apply, &state, &targets[..]);
            Gate { name, apply, handle, stream, state, matrix, targets, workspace }
        })
        .collect();
    let mut group = criterion.benchmark_group("custatevec gate");
    for gate in &gates {
        group.bench_function(gate.name, |bench| bench.iter(|| gate.apply()));
    }
    group.finish();
    take_turns(&gates);
    for gate in gates {
        CUSTATEVEC.destroy(gate.handle).expect("it is destroyed");
    }
}

/// Prints the median of a gate with each handler, another one first in each turn, and of its ratio to the driver's
/// allocator in the same turn: what a single run of each measures differs by more than the handlers do.
fn take_turns(gates: &[Gate<'_>]) {
    let mut times = vec![Vec::new(); gates.len()];
    for turn in 0..TURNS {
        for number in (0..gates.len()).map(|number| (number + turn) % gates.len()) {
            let begun = Instant::now();
            (0..OF_A_TURN).for_each(|_| gates[number].apply());
            times[number].push(begun.elapsed().as_secs_f64() * 1e6 / f64::from(OF_A_TURN));
        }
    }
    let median = |mut figures: Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    let drivers = times[1].clone();
    for (gate, figures) in gates.iter().zip(times) {
        let ratios: Vec<_> = figures.iter().zip(&drivers).map(|(one, other)| one / other).collect();
        let shorter = ratios.iter().filter(|&&ratio| ratio < 1.0).count();
        println!(
            "custatevec gate in {TURNS} turns, {}: {:.1} us, {:.4} of cuMemAllocAsync's, shorter in {shorter}",
            gate.name,
            median(figures),
            median(ratios)
        );
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = handles, handlers
}
criterion_main!(benches);
