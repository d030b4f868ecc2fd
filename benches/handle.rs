//! What a checkout costs, on every pool that is available on the runtime at hand, and what the windows add to a
//! thread's life. `GPUPOOL_RUNTIME=host cargo bench` measures gpupool alone, without a library's own call.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use gpupool::{Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, Device, HandlePool, HostHandles, Pooled, Stream};

fn available_pools() -> Vec<HandlePool> {
    let every = [
        HostHandles::pool(),
        Cudnn::pool(),
        Cusparse::pool(),
        Cudss::pool(),
        Cublas::pool(),
        CublasLt::pool(),
        Cusolver::pool(),
    ];
    every.into_iter().filter(HandlePool::is_available).collect()
}

fn checkouts(criterion: &mut Criterion) {
    let device = Device::from_ordinal(0);
    let streams = [Stream::new(device).expect("a stream"), Stream::new(device).expect("a stream")];
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
        group.finish();
    }
}

/// Two pools whose handles are cheap to make.
fn two_pools() -> [HandlePool; 2] {
    if HostHandles::pool().is_available() {
        [HostHandles::pool(), HandlePool::new(&gpupool::library::host::HOST).expect("a pool")]
    } else {
        [Cusparse::pool(), Cublas::pool()]
    }
}

fn threads(criterion: &mut Criterion) {
    let device = Device::from_ordinal(0);
    let streams = [Stream::new(device).expect("a stream"), Stream::new(device).expect("a stream")];
    let pools = two_pools();
    let mut group = criterion.benchmark_group("thread");
    group.measurement_time(Duration::from_secs(3));
    group.bench_function("starts and ends", |bench| bench.iter(|| thread::spawn(|| black_box(())).join()));
    let mut bench_with = |name, streams: &[Stream]| {
        let mut turn = 0;
        group.bench_function(name, |bench| {
            bench.iter(|| {
                turn += 1;
                let stream = streams[turn % streams.len()].clone();
                thread::spawn(move || pools.map(|pool| pool.handle(&stream).is_ok())).join()
            });
        });
    };
    bench_with("starts, takes two handles and ends", &streams[..1]);
    bench_with("starts, takes two handles of another stream and ends", &streams);
    group.finish();
}

criterion_group! {
    name = benches;
    // A checkout takes nanoseconds: a second of them is plenty.
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = checkouts, threads
}
criterion_main!(benches);
