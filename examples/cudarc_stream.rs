//! cuBLAS on streams of cudarc, with pooled handles and pooled memory: `cargo run --example cudarc_stream`.
//!
//! cudarc creates the context and the streams and copies; gpupool provides the handles, and the memory in place of a
//! `CudaSlice`'s. It needs an NVIDIA GPU and cuBLAS, and says so if they are missing.

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
use gpupool::runtime::{self, Kind};
use gpupool::{Cublas, Pooled, PooledSlice, Stream};
use libloading::Library;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const THREADS: usize = 4;
const ROUNDS: usize = 100;
const LENGTH: usize = 1 << 20;

/// `cublasSaxpy_v2`: y = alpha x + y, the factor in CPU memory.
type Saxpy = unsafe extern "C" fn(*mut c_void, c_int, *const f32, *const f32, c_int, *mut f32, c_int) -> c_int;

/// Computes on a stream of its own, and returns the largest error of the results.
fn work(context: &Arc<CudaContext>, saxpy: Saxpy, number: usize) -> Result<f32> {
    context.bind_to_thread()?;
    let stream = context.new_stream()?;
    // SAFETY: `stream` lives to the end of this function, and the handle is not used after it.
    let view = unsafe { Stream::from_raw(stream.cu_stream().cast()) }?;
    let ones = vec![1.0_f32; LENGTH];
    let alpha = number as f32;
    let mut worst = 0.0_f32;
    for _ in 0..ROUNDS {
        let x = PooledSlice::from_host(&stream, &ones)?;
        let mut y = PooledSlice::from_host(&stream, &ones)?;
        // Asking for the handle sets its stream.
        let handle = gpupool::handle::<Cublas>(&view)?;
        {
            let (x, _x_read) = x.device_ptr(&stream);
            let (y, _y_written) = y.device_ptr_mut(&stream);
            // SAFETY: both are LENGTH numbers on the handle's device, and `alpha` is in CPU memory, as cuBLAS takes it
            // unless it is told otherwise.
            let status =
                unsafe { saxpy(handle.as_ptr(), LENGTH as c_int, &alpha, x as *const f32, 1, y as *mut f32, 1) };
            if status != 0 {
                return Err(format!("cublasSaxpy_v2: status {status}").into());
            }
        }
        let result = stream.clone_dtoh(&y)?;
        stream.synchronize()?;
        worst = result.iter().fold(worst, |worst, value| worst.max((value - (alpha + 1.0)).abs()));
    }
    Ok(worst)
}

fn main() -> Result<()> {
    if runtime::get()?.kind() != Kind::Cuda {
        println!("no NVIDIA GPU here; cudarc needs one");
        return Ok(());
    }
    let Some(path) = Cublas::pool().path().ok().flatten() else {
        println!("no cuBLAS here; get it with: pip install nvidia-cublas");
        return Ok(());
    };
    // SAFETY: it is cuBLAS, which gpupool has loaded already.
    let cublas = unsafe { Library::new(path) }?;
    // SAFETY: the function has this type in every version of cuBLAS since 4.0.
    let saxpy = *unsafe { cublas.get::<Saxpy>(b"cublasSaxpy_v2\0") }?;

    let context = CudaContext::new(0)?;
    let worst = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let context = &context;
                scope.spawn(move || work(context, saxpy, number))
            })
            .collect();
        threads.into_iter().try_fold(0.0_f32, |worst, thread| -> Result<f32> {
            let error = thread.join().map_err(|_| "a thread panicked")??;
            Ok(worst.max(error))
        })
    })?;

    let handles = Cublas::pool().stats(None)?;
    let memory = gpupool::memory_stats(gpupool::device(0)?)?;
    println!("threads served    {THREADS}, {ROUNDS} products each on a stream of cudarc");
    println!("handles created   {} for {} requests", handles.created, handles.hits + handles.misses);
    println!(
        "memory reserved   {} MiB for {} allocations of {} MiB",
        memory.total.peak_reserved_bytes >> 20,
        memory.total.allocations,
        (LENGTH * size_of::<f32>()) >> 20,
    );
    println!("largest error     {worst:e}");
    if worst > 0.0 || memory.total.live_blocks > memory.total.waiting_blocks {
        return Err("the results are wrong, or memory was not freed".into());
    }
    Ok(())
}
