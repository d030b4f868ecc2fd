//! A small network trained on cudarc, with its own slices and with gpupool's: `cargo run --release --example cudarc_training`.
//!
//! The programs differ only in how a slice is allocated. Batches differ in size, as in training on texts or graphs, so
//! every step requests different sizes. It prints the time of a step and the peak memory of the device. It needs an
//! NVIDIA GPU, cuBLAS and NVRTC, and says so if they are missing.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, sys::cublasOperation_t};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::compile_ptx;
use gpupool::PooledSlice;
use gpupool::runtime::{self, Kind};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const INPUTS: usize = 512;
const HIDDEN: usize = 2048;
const OUTPUTS: usize = 64;
const LARGEST_BATCH: usize = 8192;
const STEPS: usize = 400;
/// Steps that are not timed: libraries load in them.
const FIRST: usize = 50;

const KERNELS: &str = r#"
extern "C" __global__ void rectify(const float *from, float *to, float, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i] > 0 ? from[i] : 0;
}
extern "C" __global__ void pass_back(const float *from, float *to, float, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && from[i] <= 0) to[i] = 0;
}
extern "C" __global__ void add_scaled(const float *from, float *to, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] += factor * from[i];
}
"#;

/// What can be a slice of the network.
trait Slice: DevicePtrMut<f32> + DevicePtr<f32> + Sized {
    const NAME: &str;

    fn zeros(stream: &Arc<CudaStream>, length: usize) -> Result<Self>;
}

impl Slice for CudaSlice<f32> {
    const NAME: &str = "cudarc's own";

    fn zeros(stream: &Arc<CudaStream>, length: usize) -> Result<Self> {
        Ok(stream.alloc_zeros(length)?)
    }
}

impl Slice for PooledSlice<f32> {
    const NAME: &str = "gpupool's";

    fn zeros(stream: &Arc<CudaStream>, length: usize) -> Result<Self> {
        Ok(PooledSlice::zeros(stream, length)?)
    }
}

/// The kernels and libraries, and the stream that all of it runs on.
struct Machine {
    stream: Arc<CudaStream>,
    blas: CudaBlas,
    rectify: CudaFunction,
    pass_back: CudaFunction,
    add_scaled: CudaFunction,
}

impl Machine {
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let stream = context.new_stream()?;
        let module = context.load_module(compile_ptx(KERNELS)?)?;
        let kernel = |name| module.load_function(name);
        Ok(Self {
            blas: CudaBlas::new(Arc::clone(&stream))?,
            rectify: kernel("rectify")?,
            pass_back: kernel("pass_back")?,
            add_scaled: kernel("add_scaled")?,
            stream,
        })
    }

    /// Runs a kernel over as many elements as `to` has.
    fn run<S: Slice>(&self, kernel: &CudaFunction, from: &S, to: &mut S, factor: f32) -> Result<()> {
        let count = to.len() as i32;
        let (from, _read) = from.device_ptr(&self.stream);
        let (to, _written) = to.device_ptr_mut(&self.stream);
        let mut launch = self.stream.launch_builder(kernel);
        launch.arg(&from).arg(&to).arg(&factor).arg(&count);
        // SAFETY: these are the kernel's arguments, and both slices have so many elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }?;
        Ok(())
    }

    /// Computes `to = a b`, of matrices that are stored by columns: `rows` x `inner` and `inner` x `columns`, transposed first
    /// where that is said.
    fn multiply<S: Slice>(&self, a: (&S, bool), b: (&S, bool), to: &mut S, size: [usize; 3]) -> Result<()> {
        let [rows, columns, inner] = size.map(|side| side as i32);
        let how = |is_transposed| {
            if is_transposed { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N }
        };
        let config = GemmConfig {
            transa: how(a.1),
            transb: how(b.1),
            m: rows,
            n: columns,
            k: inner,
            alpha: 1.0,
            lda: if a.1 { inner } else { rows },
            ldb: if b.1 { columns } else { inner },
            beta: 0.0,
            ldc: rows,
        };
        // SAFETY: the slices have as many elements as the matrices.
        Ok(unsafe { self.blas.gemm(config, a.0, b.0, to) }?)
    }
}

/// Trains, and returns the microseconds of a step, the most bytes that the device gave, and the last loss.
fn train<S: Slice>(context: &Arc<CudaContext>) -> Result<(f64, usize, f32)> {
    let machine = Machine::new(context)?;
    let stream = &machine.stream;
    let (before, _) = context.mem_get_info()?;
    let (mut taken, mut begun, mut loss) = (0, Instant::now(), 0.0);
    let weights = |rows: usize, columns: usize| -> Result<S> {
        let mut weights = S::zeros(stream, rows * columns)?;
        let scale = 1.0 / (columns as f32).sqrt();
        let values: Vec<f32> = (0..rows * columns).map(|at| ((at * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
        let values: Vec<f32> = values.into_iter().map(|value| value * scale).collect();
        stream.memcpy_htod(&values, &mut weights)?;
        Ok(weights)
    };
    let (mut first, mut second) = (weights(HIDDEN, INPUTS)?, weights(OUTPUTS, HIDDEN)?);
    let samples: Vec<f32> = (0..INPUTS * LARGEST_BATCH).map(|at| ((at * 31) % 17) as f32 / 17.0).collect();
    for step in 0..STEPS {
        if step == FIRST {
            stream.synchronize()?;
            begun = Instant::now();
        }
        let batch = LARGEST_BATCH / 4 + (step * 2654435761) % (LARGEST_BATCH * 3 / 4);
        let mut inputs = S::zeros(stream, INPUTS * batch)?;
        stream.memcpy_htod(&samples[..INPUTS * batch], &mut inputs)?;
        let mut sums = S::zeros(stream, HIDDEN * batch)?;
        machine.multiply((&first, false), (&inputs, false), &mut sums, [HIDDEN, batch, INPUTS])?;
        let mut active = S::zeros(stream, HIDDEN * batch)?;
        machine.run(&machine.rectify, &sums, &mut active, 0.0)?;
        // The targets are zero, so the outputs are the errors.
        let mut errors = S::zeros(stream, OUTPUTS * batch)?;
        machine.multiply((&second, false), (&active, false), &mut errors, [OUTPUTS, batch, HIDDEN])?;
        let mut slope = S::zeros(stream, OUTPUTS * HIDDEN)?;
        machine.multiply((&errors, false), (&active, true), &mut slope, [OUTPUTS, HIDDEN, batch])?;
        let mut back = S::zeros(stream, HIDDEN * batch)?;
        machine.multiply((&second, true), (&errors, false), &mut back, [HIDDEN, batch, OUTPUTS])?;
        machine.run(&machine.add_scaled, &slope, &mut second, -1e-3 / batch as f32)?;
        machine.run(&machine.pass_back, &sums, &mut back, 0.0)?;
        let mut slope = S::zeros(stream, HIDDEN * INPUTS)?;
        machine.multiply((&back, false), (&inputs, true), &mut slope, [HIDDEN, INPUTS, batch])?;
        machine.run(&machine.add_scaled, &slope, &mut first, -1e-3 / batch as f32)?;
        if step % 20 == 0 || step + 1 == STEPS {
            let errors = stream.clone_dtoh(&errors)?;
            loss = errors.iter().map(|error| error * error).sum::<f32>() / batch as f32;
            taken = taken.max(before.saturating_sub(context.mem_get_info()?.0));
        }
    }
    stream.synchronize()?;
    Ok((begun.elapsed().as_secs_f64() * 1e6 / (STEPS - FIRST) as f64, taken, loss))
}

fn report<S: Slice>(context: &Arc<CudaContext>) -> Result<f32> {
    let (step, taken, loss) = train::<S>(context)?;
    println!("{:<14} {step:>7.0} us a step, {:>5} MiB, loss {loss:.6}", S::NAME, taken >> 20);
    Ok(loss)
}

fn main() -> Result<()> {
    if runtime::get()?.kind() != Kind::Cuda {
        println!("no NVIDIA GPU here; cudarc needs one");
        return Ok(());
    }
    // SAFETY: it loads the libraries, whose initialisers run as in any program that uses them.
    let is_there = unsafe { cudarc::cublas::sys::is_culib_present() && cudarc::nvrtc::sys::is_culib_present() };
    if !is_there {
        println!("no cuBLAS or NVRTC here; get them with: pip install nvidia-cublas nvidia-cuda-nvrtc");
        return Ok(());
    }
    let context = CudaContext::new(0)?;
    let own = report::<CudaSlice<f32>>(&context)?;
    let pooled = report::<PooledSlice<f32>>(&context)?;
    if own != pooled {
        return Err(format!("the losses differ: {own} and {pooled}").into());
    }
    Ok(())
}
