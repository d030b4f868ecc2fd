//! Memory of the pools for programs that use cudarc: it can be passed wherever a `CudaSlice` can, as an argument of a
//! kernel, in a copy, to cuBLAS. A dropped `CudaSlice` frees its memory with the driver, which did not allocate this
//! memory. So it is kept inside, is never dropped as a `CudaSlice`, and is borrowed only for reading: two that were
//! swapped would free each other's memory.

use std::mem::ManuallyDrop;
use std::ops::{Deref, RangeBounds};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, DriverError, LaunchArgs,
    PushKernelArg, SyncOnDrop, ValidAsZeroBits, sys,
};

use crate::error::{Error, Result};
use crate::memory::{DeviceBuffer, empty};
use crate::runtime::{self, Kind, Stream, device};

/// Elements in device memory, for programs that use cudarc: it can be passed wherever a [`CudaSlice`] can. Its memory
/// comes from the pool whose scope the calling thread is in, or belongs to a graph while its stream is captured into
/// one. When it is dropped, the memory is freed in the order of its stream, after the work that other streams of cudarc
/// did with it.
///
/// Requires the feature `cudarc`.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use gpupool::PooledSlice;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let mut squares = PooledSlice::<f32>::zeros(&stream, 1024)?;
/// stream.memcpy_htod(&[1.0, 4.0, 9.0], &mut squares.slice_mut(..3))?;
/// assert_eq!(stream.clone_dtoh(&squares)?[..4], [1.0, 4.0, 9.0, 0.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PooledSlice<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    /// The memory, which goes back once `drop` below has run.
    buffer: DeviceBuffer,
    /// The stream, for callers of [`PooledSlice::buffer`], who may keep it longer than this.
    kept: OnceLock<Stream>,
    /// The stream, which is dropped last: the memory's end needs it.
    stream: Arc<CudaStream>,
}

/// Types of which any bits are a valid value. Memory that was put to sleep without a backup
/// ([`Backup::None`](crate::Backup::None)) has arbitrary content when it wakes, and so have elements of a [`PooledSlice`]
/// there.
///
/// It is implemented for numbers, and with the feature `f16` for those of the crate `half`. Not for `bool`:
///
/// ```compile_fail,E0277
/// # fn flags(stream: &std::sync::Arc<cudarc::driver::CudaStream>) -> gpupool::Result<gpupool::PooledSlice<bool>> {
/// gpupool::PooledSlice::<bool>::zeros(stream, 10)
/// # }
/// ```
///
/// # Safety
/// Any bits are a valid value of the type.
pub unsafe trait ValidAsAnyBits {}

macro_rules! valid_as_any_bits {
    ($($number:ty),*) => {$(
        // SAFETY: any bits are one of these numbers.
        unsafe impl ValidAsAnyBits for $number {}
    )*};
}

valid_as_any_bits!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, f32, f64);
#[cfg(feature = "f16")]
valid_as_any_bits!(half::f16, half::bf16);

impl<T> PooledSlice<T> {
    /// Allocates so many uninitialised elements on the stream, as cudarc's [`CudaStream::alloc`] does.
    ///
    /// # Errors
    /// As [`empty`]; `ErrorKind::InvalidValue` if the process does not use CUDA, or if the size in bytes exceeds the
    /// address space.
    ///
    /// # Safety
    /// No element is read before it is written, and after its memory has slept without a backup before it is written again,
    /// unless any bits are a valid element.
    pub unsafe fn empty(stream: &Arc<CudaStream>, length: usize) -> Result<Self> {
        let kind = runtime::get()?.kind();
        if kind != Kind::Cuda {
            return Err(Error::invalid_value(format!(
                "streams of cudarc are CUDA's, and gpupool uses runtime {kind} here: unset GPUPOOL_RUNTIME, or set it to cuda"
            )));
        }
        let Some(bytes) = length.checked_mul(size_of::<T>()) else {
            return Err(Error::invalid_value(format!("{length} elements of {} bytes are too many", size_of::<T>())));
        };
        let device = device(stream.context().ordinal() as i64)?;
        // SAFETY: the stream is of the device, and lives as long as the memory, which keeps it.
        let view = unsafe { Stream::view_of(stream.cu_stream().cast(), device) };
        let buffer = empty(bytes as u64, &view)?;
        // It panics if the driver refuses to make the events by which it follows streams.
        let slice = panic::catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the memory is that long and lives as long as the slice, which is not read before it is written.
            unsafe { stream.upgrade_device_ptr(buffer.ptr(), length) }
        }));
        match slice {
            Ok(slice) => {
                let (slice, stream) = (ManuallyDrop::new(slice), Arc::clone(stream));
                Ok(Self { slice, buffer, kept: OnceLock::new(), stream })
            }
            Err(_) => Err(Error::unavailable(
                "the driver refused to make the events that cudarc has for a slice: bind the context and look at its errors \
                 (CudaContext::check_err), or turn them off (disable_event_tracking)",
            )),
        }
    }

    /// Allocates so many elements on the stream, and sets them to zero.
    ///
    /// # Errors
    /// As [`PooledSlice::empty`]; `ErrorKind::Library` if the driver refuses.
    pub fn zeros(stream: &Arc<CudaStream>, length: usize) -> Result<Self>
    where
        T: DeviceRepr + ValidAsZeroBits + ValidAsAnyBits,
    {
        // SAFETY: it is written here, before any other code has it.
        let mut slice = unsafe { Self::empty(stream, length) }?;
        if slice.num_bytes() > 0 {
            stream.memset_zeros(&mut slice).map_err(|error| refused("cuMemsetD8Async", error))?;
        }
        Ok(slice)
    }

    /// Allocates as many elements on the stream as the slice of the host has, and copies them there, as cudarc's
    /// [`CudaStream::clone_htod`] does.
    ///
    /// # Errors
    /// As [`PooledSlice::empty`]; `ErrorKind::Library` if the driver refuses.
    pub fn from_host(stream: &Arc<CudaStream>, elements: &[T]) -> Result<Self>
    where
        T: DeviceRepr + ValidAsAnyBits,
    {
        // SAFETY: it is written here, before any other code has it.
        let mut slice = unsafe { Self::empty(stream, elements.len()) }?;
        if slice.num_bytes() > 0 {
            stream.memcpy_htod(elements, &mut slice).map_err(|error| refused("cuMemcpyHtoDAsync", error))?;
        }
        Ok(slice)
    }

    /// Returns the memory, to record streams that cudarc does not follow, or to share it.
    pub fn buffer(&self) -> &DeviceBuffer {
        self.kept.get_or_init(|| Stream::of_cudarc(&self.stream, self.buffer.device()));
        &self.buffer
    }

    /// Borrows all elements for writing.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }

    /// Borrows some of the elements for writing.
    ///
    /// # Panics
    /// If the range exceeds the slice, as [`CudaSlice::slice_mut`] does.
    pub fn slice_mut(&mut self, bounds: impl RangeBounds<usize>) -> CudaViewMut<'_, T> {
        self.slice.slice_mut(bounds)
    }
}

#[cold]
fn refused(function: &'static str, error: DriverError) -> Error {
    runtime::refused_by_driver(function, error.0)
}

impl<T> Drop for PooledSlice<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken once, here. `leak` has the slice's stream wait for others that used it, and frees nothing.
        unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
        // Of a per-thread default stream it was this thread's that waits, which need not be the memory's own.
        // SAFETY: the stream is of the device, and lives as long as this.
        let waiting = unsafe { Stream::view_of(self.stream.cu_stream().cast(), self.buffer.device()) };
        // Refused in a forked child, where nothing is freed.
        let _ = self.buffer.record_stream(&waiting);
    }
}

impl<T> Deref for PooledSlice<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> DeviceSlice<T> for PooledSlice<T> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T> DevicePtr<T> for PooledSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for PooledSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr_mut(stream)
    }
}

// SAFETY: it passes on the address that the slice inside passes, which lives as long as the borrow.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b PooledSlice<T>> for LaunchArgs<'a> {
    fn arg(&mut self, arg: &'b PooledSlice<T>) -> &mut Self {
        self.arg(&*arg.slice)
    }
}

// SAFETY: it passes on the address that the slice inside passes, which lives as long as the borrow.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut PooledSlice<T>> for LaunchArgs<'a> {
    fn arg(&mut self, arg: &'b mut PooledSlice<T>) -> &mut Self {
        self.arg(&mut *arg.slice)
    }
}

const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<PooledSlice<f32>>();
};
