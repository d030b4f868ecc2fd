//! The cost of a checkout, on every pool that is available on the runtime at hand, and what the windows add to a
//! thread's life. `GPUPOOL_RUNTIME=host cargo bench` measures gpupool alone, without a library's own call.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, criterion_group, criterion_main};
use gpupool::c_api::{C_API, HandleLease};
use gpupool::{
    Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, Device, HandlePool, Miopen, Pooled, Simulated, Stream,
};

fn available_pools() -> Vec<HandlePool> {
    let every = [
        Simulated::pool(),
        Cudnn::pool(),
        Cusparse::pool(),
        Cudss::pool(),
        Cublas::pool(),
        CublasLt::pool(),
        Cusolver::pool(),
    ];
    every.into_iter().filter(HandlePool::is_available).collect()
}

/// The pools in the order of `gpupool_library`.
const NUMBERED: [fn() -> HandlePool; 8] = [
    Cudnn::pool,
    Cusparse::pool,
    Cudss::pool,
    Cublas::pool,
    CublasLt::pool,
    Cusolver::pool,
    Miopen::pool,
    Simulated::pool,
];

/// Measures the same checkouts by the functions of `gpupool.h`.
fn in_c(group: &mut BenchmarkGroup<WallTime>, pool: HandlePool, stream: &Stream) {
    let number = NUMBERED.iter().position(|numbered| numbered().name() == pool.name()).expect("a number") as c_int;
    let (table, raw) = (black_box(&C_API), stream.raw().as_ptr());
    group.bench_function("handle(stream), C", |bench| {
        bench.iter(|| {
            let mut handle = ptr::null_mut();
            // SAFETY: the stream is alive and of device 0, and the place is one for a pointer.
            let status = unsafe { (table.handle)(number, 0, black_box(raw), &raw mut handle) };
            (status, handle)
        });
    });
    group.bench_function("lease(stream), C", |bench| {
        bench.iter(|| {
            let mut lease = HandleLease { handle: ptr::null_mut(), pooled: ptr::null_mut(), library: 0, device: 0 };
            // SAFETY: the stream is alive and of device 0, and the lease ends once.
            unsafe {
                (table.lease)(number, 0, black_box(raw), u64::MAX, &raw mut lease);
                (table.lease_release)(black_box(&raw mut lease))
            }
        });
    });
}

fn checkouts(criterion: &mut Criterion) {
    let device = Device::from_ordinal(0);
    let streams = [Stream::new(device).expect("a stream"), Stream::new(device).expect("a stream")];
    // A checkout that asked for captures would cost this much more.
    criterion.bench_function("capture status", |bench| bench.iter(|| black_box(&streams[0]).capture_status()));
    for pool in available_pools() {
        let mut group = criterion.benchmark_group(pool.name());
        group.bench_function("handle(stream)", |bench| bench.iter(|| pool.handle(black_box(&streams[0]))));
        group.bench_function("handle(current stream)", |bench| {
            bench.iter(|| Stream::current().and_then(|stream| pool.handle(&stream)));
        });
        let mut turn = 0;
        group.bench_function("handle(another stream)", |bench| {
            bench.iter(|| {
                turn ^= 1;
                pool.handle(black_box(&streams[turn]))
            });
        });
        group.bench_function("lease(stream)", |bench| bench.iter(|| pool.lease(black_box(&streams[0])).map(drop)));
        in_c(&mut group, pool, &streams[0]);
        group.finish();
    }
}

/// Returns the time of the slowest of several threads that all do this at once, each on a stream of its own.
fn at_once(threads: usize, count: u64, work: impl Fn(&Stream) + Sync) -> Duration {
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let spawn = |_| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                let stream = Stream::new(Device::from_ordinal(0)).expect("a stream");
                (0..100).for_each(|_| work(&stream));
                barrier.wait();
                let start = Instant::now();
                (0..count).for_each(|_| work(&stream));
                start.elapsed()
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).max().unwrap_or_default()
    })
}

/// Measures a lease and its return, and a thread's own handle, for one thread to sixteen.
fn many_threads(criterion: &mut Criterion) {
    for pool in available_pools() {
        let mut group = criterion.benchmark_group(format!("{} at once", pool.name()));
        group.sampling_mode(SamplingMode::Flat);
        for threads in [1, 4, 16] {
            group.bench_function(format!("lease, {threads} threads"), |bench| {
                let lease = |stream: &Stream| drop(black_box(pool.lease(stream)).expect("a handle"));
                bench.iter_custom(|iterations| at_once(threads, iterations, lease));
            });
            group.bench_function(format!("handle, {threads} threads"), |bench| {
                let handle = |stream: &Stream| _ = black_box(pool.handle(stream)).expect("a handle");
                bench.iter_custom(|iterations| at_once(threads, iterations, handle));
            });
        }
        group.finish();
    }
}

/// A library's function of a handle and one word: a stream, an address or a number.
type Call = unsafe extern "C" fn(*mut c_void, usize) -> c_int;

/// The calls behind a lease, and whether each writes a result to its second argument, which else is 0 for a stream or a mode.
/// Of those libraries whose leases cost many threads more, and of cuBLAS.
fn calls_of(library: &str) -> &'static [(&'static str, bool)] {
    match library {
        "cusparse" => &[("cusparseSetStream", false), ("cusparseGetStream", true), ("cusparseSetPointerMode", false)],
        "cudss" => &[("cudssSetStream", false)],
        "cublas" => &[("cublasSetStream_v2", false), ("cublasGetStream_v2", true), ("cublasSetPointerMode_v2", false)],
        _ => &[],
    }
}

/// Measures single calls of a library by one thread to sixteen, each on a handle of its own: what a call costs more there,
/// the library shares among threads.
fn calls_of_many_threads(criterion: &mut Criterion) {
    // On the simulated device the libraries are found, but have no handles.
    for pool in [Cusparse::pool(), Cudss::pool(), Cublas::pool()].into_iter().filter(HandlePool::is_available) {
        let Ok(Some(path)) = pool.path() else { continue };
        // SAFETY: the pool has loaded this library already.
        let library = unsafe { libloading::Library::new(path) }.expect("it is loaded");
        let mut group = criterion.benchmark_group(format!("{} calls at once", pool.name()));
        group.sampling_mode(SamplingMode::Flat);
        for &(name, has_result) in calls_of(pool.name()) {
            // SAFETY: each of the functions takes a handle, and a pointer or an int.
            let call = *unsafe { library.get::<Call>(name.as_bytes()) }.expect("a public function");
            for threads in [1, 4, 16] {
                group.bench_function(format!("{name}, {threads} threads"), |bench| {
                    bench.iter_custom(|iterations| {
                        at_once(threads, iterations.div_ceil(100), |stream| {
                            let lease = pool.lease(stream).expect("a handle");
                            let mut result = 0_usize;
                            let argument = if has_result { (&raw mut result).addr() } else { 0 };
                            for _ in 0..100 {
                                // SAFETY: the lease is this thread's alone, and the result has a place.
                                assert_eq!(unsafe { call(lease.as_ptr(), argument) }, 0);
                            }
                        })
                    });
                });
            }
        }
        group.finish();
    }
}

/// Returns two pools whose handles are cheap to make.
fn two_pools() -> [HandlePool; 2] {
    if Simulated::pool().is_available() {
        [Simulated::pool(), HandlePool::new(gpupool::library::simulated::SimulatedLibrary).expect("a pool")]
    } else {
        [Cusparse::pool(), Cublas::pool()]
    }
}

/// The nanoseconds that were timed inside threads so far.
static INSIDE: AtomicU64 = AtomicU64::new(0);

fn add_inside(taken: Duration) {
    INSIDE.fetch_add(taken.as_nanos() as u64, Ordering::Relaxed);
}

fn take_inside() -> Duration {
    Duration::from_nanos(INSIDE.swap(0, Ordering::Relaxed))
}

/// A timer of a thread's end: from when [`BEGIN`] is dropped, before all thread-locals that were first used earlier, until
/// this is dropped, after all that were first used later. The rest of a thread's end takes longer.
struct End(Cell<Option<Instant>>);
struct Begin;

thread_local! {
    static END: End = const { End(Cell::new(None)) };
    static BEGIN: Begin = const { Begin };
}

impl Drop for Begin {
    fn drop(&mut self) {
        let _ = END.try_with(|end| end.0.set(Some(Instant::now())));
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(start) = self.0.get() {
            add_inside(start.elapsed());
        }
    }
}

/// Runs a thread that calls `f` and ends. Both are also timed inside the thread, since starting and joining one varies by
/// more than handles cost.
fn live(f: impl FnOnce() -> bool + Send + 'static) {
    let thread = thread::spawn(move || {
        END.with(|_| ());
        let start = Instant::now();
        assert!(f());
        add_inside(start.elapsed());
        BEGIN.with(|_| ());
    });
    thread.join().expect("the thread does not panic");
}

/// Returns the time that `f` and the end of its thread take.
fn inside_a_thread(f: impl FnOnce() -> bool + Send + 'static) -> Duration {
    live(f);
    take_inside()
}

/// Measures what two handles add to a thread's life: taking them, and giving them back as it ends.
fn threads(criterion: &mut Criterion) {
    let device = Device::from_ordinal(0);
    let streams = [Stream::new(device).expect("a stream"), Stream::new(device).expect("a stream")];
    let pools = two_pools();
    let mut group = criterion.benchmark_group("thread");
    group.sampling_mode(SamplingMode::Flat);
    let mut bench_with = |name, streams: &[Stream]| {
        group.bench_function(name, |bench| {
            bench.iter_custom(|iterations| {
                let (mut with, mut without) = (Duration::ZERO, Duration::ZERO);
                for iteration in 0..iterations as usize {
                    let stream = streams[iteration % streams.len()].clone();
                    with += inside_a_thread(move || pools.iter().all(|pool| pool.handle(&stream).is_ok()));
                    without += inside_a_thread(|| true);
                }
                with.saturating_sub(without).max(Duration::from_nanos(1))
            });
        });
    };
    bench_with("two handles", &streams[..1]);
    bench_with("two handles on another stream", &streams);
    group.finish();
}

criterion_group! {
    name = benches;
    // A checkout takes nanoseconds: a second of them is plenty.
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = checkouts, threads, many_threads, calls_of_many_threads
}
criterion_main!(benches);
