//! cuBLAS on streams of cudarc, with pooled handles and pooled memory: `cargo run --example cudarc_stream`.
//!
//! cudarc makes the context and the streams and copies; gpupool lends the handles, and the memory that cudarc sees as a
//! `CudaSlice`. It needs an NVIDIA GPU and cuBLAS, and says so where they are missing.

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};
use gpupool::runtime::{self, Kind};
use gpupool::{Cublas, DeviceBuffer, Pooled, Stream};
use libloading::Library;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const THREADS: usize = 4;
const ROUNDS: usize = 100;
const LENGTH: usize = 1 << 20;

/// `cublasSaxpy_v2`: y = alpha x + y, the factor in CPU memory.
type Saxpy = unsafe extern "C" fn(*mut c_void, c_int, *const f32, *const f32, c_int, *mut f32, c_int) -> c_int;

/// cudarc's slice over gpupool's memory. A slice frees its memory with the driver, which never gave this, so it must not be
/// dropped as it is.
struct PooledSlice<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    /// The memory, which goes back to the pool in the order of the stream, once `drop` below has run.
    _memory: DeviceBuffer,
    /// The stream, which is dropped last: the memory's end needs it.
    _stream: Arc<CudaStream>,
}

impl<T: DeviceRepr> PooledSlice<T> {
    /// Returns memory for so many elements, with the bytes that happen to be in it.
    fn new(stream: &Arc<CudaStream>, length: usize) -> Result<Self> {
        // SAFETY: the stream lives as long as the memory, which keeps it.
        let view = unsafe { Stream::from_raw(stream.cu_stream().cast()) }?;
        let memory = gpupool::empty((length * size_of::<T>()) as u64, &view)?;
        // SAFETY: the memory is that long and lives as long as the slice; any bytes do for what has `DeviceRepr`.
        let slice = unsafe { stream.upgrade_device_ptr(memory.address(), length) };
        Ok(Self { slice: ManuallyDrop::new(slice), _memory: memory, _stream: Arc::clone(stream) })
    }
}

impl<T> Drop for PooledSlice<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken once, here. `leak` makes the stream wait for other streams that used the slice.
        unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
    }
}

impl<T> Deref for PooledSlice<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> DerefMut for PooledSlice<T> {
    fn deref_mut(&mut self) -> &mut CudaSlice<T> {
        &mut self.slice
    }
}

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
        let mut x = PooledSlice::<f32>::new(&stream, LENGTH)?;
        let mut y = PooledSlice::<f32>::new(&stream, LENGTH)?;
        stream.memcpy_htod(&ones, &mut *x)?;
        stream.memcpy_htod(&ones, &mut *y)?;
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
        let result = stream.clone_dtoh(&*y)?;
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
