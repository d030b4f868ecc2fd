//! The owner by which cuda-core holds memory of gpupool.

use std::sync::Arc;

use cuda_core::{Context, DeviceAllocation, RawDeviceBuffer, Stream, sys};
use gpupool::runtime::{self, BoundDevice, Kind};

use crate::error::{Error, Result};

/// Uninitialised memory of gpupool, as the owner that cuda-core asks for: `RawDeviceBuffer::foreign` and cuTile's
/// `Tensor::from_foreign` take it.
///
/// When the last view of it is gone, and the work that cuda-core submitted with it is done, the memory returns to its pool
/// in the order of the stream that it was allocated on. That stream is kept until then.
#[derive(Debug)]
pub struct PooledAllocation {
    /// The memory, which goes back before the stream does.
    memory: gpupool::DeviceBuffer,
    stream: Arc<Stream>,
}

impl PooledAllocation {
    /// Allocates so many bytes on the stream, from the pool whose scope the calling thread is in. Work on another stream
    /// may use them after what the stream was doing.
    ///
    /// # Errors
    /// [`Error::Pool`] if there is not enough memory; [`Error::OtherRuntime`] if gpupool does not use CUDA in this process;
    /// [`Error::OtherContext`] if the stream's context is not the device's primary one; [`Error::Driver`] if the driver
    /// refuses.
    pub fn new(stream: &Arc<Stream>, bytes: usize) -> Result<Arc<Self>> {
        let runtime = runtime::get()?;
        if runtime.kind() != Kind::Cuda {
            return Err(Error::OtherRuntime(runtime.kind().name()));
        }
        let ordinal = stream.context().ordinal();
        let device = gpupool::device(ordinal as i64)?;
        {
            let _bound = BoundDevice::new(runtime, device)?;
            let mut primary = std::ptr::null_mut();
            // SAFETY: it writes the address of a context.
            match unsafe { sys::cuCtxGetCurrent(&mut primary) } {
                sys::cudaError_enum_CUDA_SUCCESS if primary == stream.context().cu_ctx() => {}
                sys::cudaError_enum_CUDA_SUCCESS => return Err(Error::OtherContext { ordinal }),
                refused => return Err(Error::Driver(cuda_core::DriverError(refused))),
            }
        }
        // SAFETY: the stream is of the device, and lives as long as the memory, which keeps it.
        let view = unsafe { gpupool::Stream::from_raw_on(stream.cu_stream().cast(), device) }?;
        let memory = gpupool::empty(bytes as u64, &view)?;
        Ok(Arc::new(Self { memory, stream: Arc::clone(stream) }))
    }

    /// Makes all of it the byte storage that cuda-core's buffers share.
    pub fn into_storage(self: Arc<Self>) -> RawDeviceBuffer {
        let bytes = self.len_bytes();
        RawDeviceBuffer::foreign(self, bytes)
    }
}

// SAFETY: the memory stays where it is, and is that long, until this is dropped, and the stream keeps the context.
unsafe impl DeviceAllocation for PooledAllocation {
    fn device_ptr(&self) -> sys::CUdeviceptr {
        self.memory.ptr()
    }

    fn len_bytes(&self) -> usize {
        self.memory.nbytes() as usize
    }

    fn context(&self) -> Arc<Context> {
        Arc::clone(self.stream.context())
    }
}
