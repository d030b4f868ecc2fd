//! Memory of gpupool for programs that use [`cuda_core`], and by it `cuda-async` and cuTile Rust: it is in cuda-core's own
//! types, so all that takes a [`DeviceBuffer`] or a [`RawDeviceBuffer`] takes it, and cuTile's `Tensor::from_buffer` makes
//! a tensor of it without a copy.
//!
//! cuda-core keeps the owner of foreign memory until the work that it submitted with it is done. Then the memory returns to
//! its pool, in the order of the stream that it was allocated on.
//!
//! ```no_run
//! use cuda_core::Context;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stream = Context::new(0)?.new_stream()?;
//! let squares = gpupool_cuda_core::from_host(&stream, &[1.0_f32, 4.0, 9.0])?;
//! assert_eq!(squares.to_host_vec(&stream)?, [1.0, 4.0, 9.0]);
//! # Ok(())
//! # }
//! ```

mod error;
mod pooled_allocation;

use std::sync::Arc;

use cuda_core::bytemuck::AnyBitPattern;
use cuda_core::{DeviceBuffer, DeviceCopy, RawDeviceBuffer, Stream, memory};

pub use error::{Error, Result};
pub use pooled_allocation::PooledAllocation;

/// Allocates so many elements from the pool whose scope the calling thread is in, sets them to zero, and waits for the
/// stream, as cuda-core's [`DeviceBuffer::zeroed`] does.
///
/// # Errors
/// As [`PooledAllocation::new`]; [`Error::Driver`] if the driver refuses to set or to wait.
pub fn zeros<T: DeviceCopy + AnyBitPattern>(stream: &Arc<Stream>, length: usize) -> Result<DeviceBuffer<T>> {
    let storage = storage::<T>(stream, length)?;
    if !storage.is_empty() {
        stream.context().bind_to_thread()?;
        // SAFETY: the memory is that long, was allocated on this stream, and no other code has it.
        let set =
            unsafe { memory::memset_d8_async(storage.cu_deviceptr(), 0, storage.len_bytes(), stream.cu_stream()) };
        settle(&storage, stream, set)?;
    }
    // SAFETY: all its bytes were set, any are a valid element, and nothing else is a view of it.
    Ok(unsafe { DeviceBuffer::from_storage_copy(storage, length) }?)
}

/// Allocates as many elements as the slice of the host has from the pool whose scope the calling thread is in, copies them
/// there, and waits for the stream, as cuda-core's [`DeviceBuffer::from_host`] does.
///
/// # Errors
/// As [`PooledAllocation::new`]; [`Error::Driver`] if the driver refuses to copy or to wait.
pub fn from_host<T: DeviceCopy + AnyBitPattern>(stream: &Arc<Stream>, elements: &[T]) -> Result<DeviceBuffer<T>> {
    let storage = storage::<T>(stream, elements.len())?;
    if !storage.is_empty() {
        stream.context().bind_to_thread()?;
        let (to, from, bytes) = (storage.cu_deviceptr(), elements.as_ptr(), storage.len_bytes());
        // SAFETY: both are that long; the memory was allocated on this stream, and no other code has it; the elements are
        // borrowed until the copy is done.
        let copied = unsafe { memory::memcpy_htod_async(to, from, bytes, stream.cu_stream()) };
        settle(&storage, stream, copied)?;
    }
    // SAFETY: all its elements were copied, and nothing else is a view of it.
    Ok(unsafe { DeviceBuffer::from_storage_copy(storage, elements.len()) }?)
}

/// Memory for so many elements.
fn storage<T>(stream: &Arc<Stream>, length: usize) -> Result<RawDeviceBuffer> {
    let bytes = length.checked_mul(size_of::<T>()).ok_or(Error::TooLarge { length, size: size_of::<T>() })?;
    Ok(PooledAllocation::new(stream, bytes)?.into_storage())
}

/// Waits for what was submitted, also where that failed in part. Memory that the driver may still write is not freed.
fn settle(storage: &RawDeviceBuffer, stream: &Stream, submitted: Result<(), cuda_core::DriverError>) -> Result<()> {
    let done = stream.synchronize();
    if done.is_err() {
        std::mem::forget(storage.clone());
    }
    Ok(submitted.and(done)?)
}
