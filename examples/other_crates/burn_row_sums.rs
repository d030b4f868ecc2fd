//! The sums of a burn matrix's rows, by a pooled cuBLAS handle and scratch memory of gpupool.
//!
//! ```toml
//! [dependencies]
//! burn = { version = "0.22.1", default-features = false, features = ["std", "cuda", "extension"] }
//! cubecl-cuda = { version = "0.11.3", default-features = false, features = ["std"] }
//! cubecl-runtime = { version = "0.11.3", default-features = false, features = ["std"] }
//! cudarc = { version = "0.19.10", default-features = false, features = ["cublas"] }
//! gpupool = { path = "../gpupool", default-features = false, features = ["cuda-13000"] }
//! ```
//!
//! burn tells where a tensor is in device memory, but not its stream. So the host waits for burn before the handle is used,
//! and for the handle before burn goes on. burn's default features include kernel fusion, with which a tensor may not be in
//! memory yet, and this does not compile.
//!
//! In November 2026 it ran on an H200 with driver 580, from one and from four threads; the sums agree with the CPU's to 2e-6
//! (`benches/results/h200/candle_burn.txt`). It was built on x86-64 Linux with Rust 1.95, cudarc 0.19.10, CUDA
//! 13.0, and burn 0.22.1 with the feature `cpp` of cubecl-cuda 0.11.3, which compiles kernels with NVRTC and needs CUDA's
//! headers, with `crt` and `cccl` (`CUDA_PATH`). LLVM, which compiles them without that feature, was replaced by functions
//! that end the program, so it was not tried.

use std::error::Error;

use burn::backend::Cuda;
use burn::tensor::{DType, Tensor};
use cubecl_cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use cudarc::cublas::{result::sgemv, sys::cublasOperation_t::CUBLAS_OP_T};
use gpupool::{Cublas, Stream};

/// The sums of a matrix's rows: cuBLAS multiplies burn's matrix, where it is, by a vector of ones.
pub fn row_sums(matrix: &Tensor<2>, stream: &Stream) -> Result<Tensor<1>, Box<dyn Error + Send + Sync>> {
    let [rows, columns] = matrix.dims();
    let device = matrix.device();
    let sums = Tensor::<1>::zeros([rows], &device);

    // burn's memory, which stays where it is while `a` and `y` are held.
    let matrix = matrix.clone().try_into_primitive::<Cuda>().map_err(|error| format!("{error:?}"))?;
    let result = sums.clone().try_into_primitive::<Cuda>().map_err(|error| format!("{error:?}"))?;
    let (strides, float) = (matrix.meta.strides().to_vec(), matrix.dtype == DType::F32);
    if strides[1] != 1 || !float {
        return Err("the matrix must be of f32 with its rows one after another".into());
    }
    let a = matrix.client.get_resource::<<CudaRuntime as Runtime>::Server>(matrix.handle)?;
    let y = result.client.get_resource::<<CudaRuntime as Runtime>::Server>(result.handle)?;
    // This thread's stream of burn now waits for both. It is not to be had, so the host waits for it.
    device.sync()?;

    // Scratch memory and this thread's handle, of gpupool.
    let ones = gpupool::empty((columns * size_of::<f32>()) as u64, stream)?;
    ones.copy_from(&[1.0_f32.to_ne_bytes()].concat().repeat(columns), stream)?;
    let handle = gpupool::handle::<Cublas>(stream)?;
    let (m, n, lda, one, zero) = (columns as i32, rows as i32, strides[0] as i32, 1.0, 0.0);
    let (a, x, y) = (a.resource().ptr as *const f32, ones.ptr() as *const f32, y.resource().ptr as *mut f32);
    // SAFETY: rows of burn's matrix are columns of cuBLAS's, and all three are as long as cuBLAS is told.
    unsafe { sgemv(handle.as_ptr().cast(), CUBLAS_OP_T, m, n, &one, a, lda, x, 1, &zero, y, 1) }?;
    stream.synchronize()?; // before burn reads the sums, or reuses the matrix
    Ok(sums)
}
