//! PyTorch's pluggable allocators as suppliers of a pool: objects of a C++ class, whose functions are called by
//! address. The class hides the user's two functions and what it has handed out, so they are called through it:
//! `torch/csrc/cuda/CUDAPluggableAllocator.h` of PyTorch.

use std::ffi::c_void;
use std::mem::transmute_copy;
use std::ptr;

use crate::error::{Error, OWN_ALLOCATOR, Result};
use crate::memory::device::SegmentSource;
use crate::runtime::Stream;

/// `torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TorchAllocator {
    object: usize,
    /// `void *malloc(size_t size, c10::DeviceIndex device, cudaStream_t stream)`, a member.
    malloc: unsafe extern "C-unwind" fn(*mut c_void, usize, i8, *mut c_void) -> *mut c_void,
    /// `void raw_delete(void *pointer)`, a member.
    raw_delete: unsafe extern "C-unwind" fn(*mut c_void, *mut c_void),
}

/// # Safety
/// `F` is the type of a pointer to the function that is there.
unsafe fn function_at<F: Copy>(address: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    let address = ptr::with_exposed_provenance::<c_void>(address);
    // SAFETY: the caller promises the type, which is one of pointers.
    unsafe { transmute_copy(&address) }
}

impl TorchAllocator {
    /// Makes a source of the addresses of the object and of its class's functions.
    ///
    /// # Safety
    /// The object lives as long as this and is of the class, and the addresses are those of its functions, in a library
    /// that stays loaded.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if one is null.
    pub(crate) unsafe fn new([object, malloc, raw_delete]: [usize; 3]) -> Result<Self> {
        if [object, malloc, raw_delete].contains(&0) {
            return Err(Error::invalid_value("PyTorch's allocator, or a function of its class, has no address"));
        }
        // SAFETY: the caller promises that these are the functions' addresses, none is null, and C++ calls members as C
        // does functions whose first argument is the object.
        unsafe { Ok(Self { object, malloc: function_at(malloc), raw_delete: function_at(raw_delete) }) }
    }

    fn object(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.object)
    }
}

// SAFETY: `new` requires that the object is an allocator of PyTorch's.
unsafe impl SegmentSource for TorchAllocator {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let (size, device) = (usize::try_from(bytes), i8::try_from(stream.device().ordinal()));
        let (Ok(size), Ok(device)) = (size, device) else {
            let device = stream.device();
            return Err(Error::invalid_value(format!("PyTorch's allocators cannot give {bytes} bytes on {device}")));
        };
        // SAFETY: `new` requires that the object lives and the function is its class's.
        let address = unsafe { (self.malloc)(self.object(), size, device, stream.raw().as_ptr()) };
        if address.is_null() {
            return Err(Error::no_memory(OWN_ALLOCATOR, "malloc returned a null pointer"));
        }
        Ok(address.addr() as u64)
    }

    unsafe fn free(&self, address: u64, _bytes: u64, _stream: &Stream) -> Result<()> {
        let pointer = ptr::without_provenance_mut(address as usize);
        // SAFETY: as in `allocate`, and the object gave this address, whose size and stream it knows.
        unsafe { (self.raw_delete)(self.object(), pointer) };
        Ok(())
    }
}
