//! A custom operation of candle with a pooled cuBLAS handle and scratch memory of gpupool, on candle's stream.
//!
//! ```toml
//! [dependencies]
//! candle-core = { version = "0.11.1", features = ["cuda"] }
//! gpupool = { path = "../gpupool", default-features = false, features = ["cudarc"] }
//! ```
//!
//! `matrix.apply_op1_no_bwd(&RowSums)?` are the sums of a matrix's rows. candle-core 0.11 and gpupool use the same cudarc.
//! gpupool needs no binding level here, since candle has cudarc take that of `nvcc`. candle also turns on cudarc's
//! `dynamic-linking`, so the driver, cuBLAS and cuRAND are linked: the linker must find them when the program is built
//! (`CUDA_HOME`), and again when it starts (`LD_LIBRARY_PATH`, if they are in no standard place). gpupool uses the cuBLAS
//! that is in the process.
//!
//! In November 2026 it ran on an H200 with driver 580, from one and from four threads, on candle's per-thread stream and on a
//! stream of its own; the sums agree with the CPU's to 2e-6 (`benches/results/h200/candle_burn.txt`). It was built
//! on x86-64 Linux with Rust 1.95, cudarc 0.19.10, CUDA 13.0 and candle-core 0.11.1 with its `nvcc`.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::cublas::{result::sgemv, sys::cublasOperation_t::CUBLAS_OP_T};
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Error, Layout, Shape, bail};
use gpupool::{Cublas, PooledSlice, Stream};

/// The sums of a matrix's rows: cuBLAS multiplies the matrix by a vector of ones.
pub struct RowSums;

impl CustomOp1 for RowSums {
    fn name(&self) -> &'static str {
        "row-sums"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        bail!("row-sums is for CUDA")
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        let (rows, columns) = layout.shape().dims2()?;
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("the matrix must be contiguous") };
        let matrix = storage.as_cuda_slice::<f32>()?.slice(start..end);
        let (candle, stream) = (storage.device(), storage.device().cuda_stream());

        // Scratch memory of gpupool, in the order of candle's stream; the result must be candle's.
        let ones = PooledSlice::from_host(&stream, &vec![1.0_f32; columns]).map_err(Error::wrap)?;
        // SAFETY: cuBLAS writes all of it.
        let mut sums = unsafe { candle.alloc::<f32>(rows) }?;

        // This thread's handle, on candle's stream.
        let device = gpupool::device(stream.context().ordinal() as i64).map_err(Error::wrap)?;
        // SAFETY: the stream is of this device, and is alive for as long as the handle is used.
        let view = unsafe { Stream::from_raw_on(stream.cu_stream().cast(), device) }.map_err(Error::wrap)?;
        let handle = gpupool::handle::<Cublas>(&view).map_err(Error::wrap)?;

        let (m, n, one, zero) = (columns as i32, rows as i32, 1.0, 0.0);
        {
            let (a, _read) = matrix.device_ptr(&stream);
            let (x, _used) = ones.device_ptr(&stream);
            let (y, _written) = sums.device_ptr_mut(&stream);
            let (cublas, a, x, y) = (handle.as_ptr().cast(), a as *const f32, x as *const f32, y as *mut f32);
            // SAFETY: rows of candle's matrix are columns of cuBLAS's, and all three are as long as cuBLAS is told.
            unsafe { sgemv(cublas, CUBLAS_OP_T, m, n, &one, a, m, x, 1, &zero, y, 1) }.map_err(Error::wrap)?;
        }
        Ok((CudaStorage::wrap_cuda_slice(sums, candle.clone()), Shape::from(rows)))
    }
}
