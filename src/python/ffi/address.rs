//! Addresses that users of the Python API give: of streams, C functions and handles; and the allocators of their own pools.
//!
//! As with ctypes, the API's user vouches for them: that is its documented contract. A [`PythonAddress`] is made of a Python
//! value alone, so no other code can make one of a number.

use std::ffi::c_void;
use std::mem::transmute_copy;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use crate::error::{Error, OWN_ALLOCATOR, Result, StatusKind};
use crate::ids::Device;
use crate::library::RawHandle;
use crate::library::functions::{Create, Destroy, SetStream};
use crate::memory::{SegmentFunctions, SegmentSource, TorchAllocator};
use crate::python::arguments::{accepted, refuse_bool, wrong_argument};
use crate::python::error::call_asked;
use crate::python::kept::{Kept, KeptObjects};
use crate::runtime::{Kind, Stream, get};

/// An address that a Python value gave.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PythonAddress {
    number: usize,
}

impl<'py> FromPyObject<'_, 'py> for PythonAddress {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let address = number.extract()?;
        refuse_bool(&number, address as u64, || wrong_argument("address", &number, "a whole number"))?;
        Ok(Self { number: address })
    }
}

impl PythonAddress {
    /// Returns the address that a value gives; none if it gives none.
    pub(crate) fn given(number: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if number.is_exact_instance_of::<PyBool>() {
            return Ok(None);
        }
        Ok(accepted(number.py(), number.extract())?.map(|number| Self { number }))
    }

    /// The null pointer, which names the legacy default stream.
    pub(crate) const NULL: Self = Self { number: 0 };
    /// The name of the legacy default stream where 0 could be another.
    const LEGACY_STREAM: Self = Self { number: 1 };

    /// The handle that a framework's stream has.
    pub(crate) const fn from_stream(number: usize) -> Self {
        Self { number }
    }

    /// Whether this is the name of a default stream, not a pointer to a stream.
    pub(crate) const fn is_default_stream(self) -> bool {
        self.number <= 2
    }

    /// The stream at this address. A default stream is that of `device` if one is given; any other stream must belong to it.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for a stream of another device; what the driver refused.
    pub(crate) fn stream(self, device: Option<Device>) -> Result<Stream> {
        // SAFETY: the user of the Python API vouches that the stream is alive for as long as it is used.
        unsafe { Stream::foreign(self.number, device) }
    }

    /// Takes ownership of the handle that a user's `create` returned.
    ///
    /// # Errors
    /// `ErrorKind::Library` if it is null.
    pub(crate) fn created_handle(self, library: &str) -> Result<RawHandle> {
        let handle = NonNull::new(ptr::with_exposed_provenance_mut(self.number));
        let handle = handle.ok_or_else(|| Error::refused(library, "create", "a null handle", 0, StatusKind::Other))?;
        // SAFETY: the user's function just made it for this pool alone, which is what `HandlePool` asks of it.
        Ok(unsafe { RawHandle::from_ptr(handle) })
    }

    /// The function that the argument `name` gives.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for 0.
    ///
    /// # Safety
    /// A function of this type lies there, unless it is null.
    unsafe fn function<F: Copy>(self, name: &str) -> Result<F> {
        if self.number == 0 {
            return Err(Error::invalid_value(format!("{name}: 0 is not the address of a C function")));
        }
        let address = ptr::with_exposed_provenance::<c_void>(self.number);
        // SAFETY: the caller promises the type, which is as long as a pointer, and it is not null.
        Ok(unsafe { transmute_copy::<*const c_void, F>(&address) })
    }

    pub(crate) fn create(self) -> Result<Create> {
        // SAFETY: the user vouches that a function of this prototype lies there, which does what it says.
        Ok(unsafe { Create::new(self.function("create")?) })
    }

    pub(crate) fn destroy(self) -> Result<Destroy> {
        // SAFETY: the user vouches that a function of this prototype lies there, which does what it says.
        Ok(unsafe { Destroy::new(self.function("destroy")?) })
    }

    pub(crate) fn set_stream(self) -> Result<SetStream> {
        // SAFETY: the user vouches that a function of this prototype lies there, which does what it says.
        Ok(unsafe { SetStream::new(self.function("set_stream")?) })
    }
}

/// The stream on which a consumer will use a buffer, by the array API standard: none for -1, which asks for no order.
/// 0 is the default stream of ROCm, and refused for CUDA, where it could be either. The device is that of the buffer, if it
/// has one.
pub(crate) fn consumer(stream: Option<&Bound<'_, PyAny>>, device: Option<Device>) -> PyResult<Option<Stream>> {
    let Some(stream) = stream else { return Ok(Some(PythonAddress::LEGACY_STREAM.stream(device)?)) };
    let number = stream.extract::<i64>()?;
    refuse_bool(stream, number.cast_unsigned(), || wrong_argument("stream", stream, "-1, 1, 2 or an address"))?;
    match number {
        -1 => Ok(None),
        1.. => Ok(Some(stream.extract::<PythonAddress>()?.stream(device)?)),
        0 if get()?.kind() == Kind::Hip => Ok(Some(PythonAddress::NULL.stream(device)?)),
        _ => Err(Error::invalid_value(format!(
            "stream={number} is not a stream in DLPack: give -1, 1, 2 or an address; with CUDA 0 is ambiguous"
        ))
        .into()),
    }
}

/// The source of a pool's memory that an `allocator` argument names: two functions, Python callables or addresses of C functions,
/// or an allocator object of PyTorch's. The program promises that what they return is memory without another owner.
pub(crate) fn source(allocator: &Bound<'_, PyAny>, kept: &KeptObjects) -> PyResult<Arc<dyn SegmentSource>> {
    let wrong = || {
        Error::invalid_value(
            "allocator must be a pair (malloc, free): callables malloc(size, device, stream) -> address and \
             free(address, size, device, stream), or the addresses of C functions of these forms; or a \
             CUDAPluggableAllocator of PyTorch",
        )
    };
    if allocator.is_exact_instance_of::<PyInt>() || allocator.is_exact_instance_of::<PyFloat>() {
        return Err(Error::invalid_value(format!(
            "MemPool's first argument is its allocator, and {allocator} is a number: was limit={allocator} meant, the most \
             bytes of the pool, or reserve={allocator}?"
        ))
        .into());
    }
    let Ok((allocate, free)) = allocator.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() else {
        return Ok(Arc::new(torch_source(allocator, kept)?.ok_or_else(wrong)?));
    };
    if allocate.is_exact_instance_of::<PyInt>() && free.is_exact_instance_of::<PyInt>() {
        let address = |function: &Bound<'_, PyAny>| function.extract::<PythonAddress>().map_err(|_| wrong());
        let (allocate, free) = (address(&allocate)?, address(&free)?);
        // SAFETY: the user vouches that functions of these prototypes lie there, which do what they say.
        return Ok(Arc::new(unsafe {
            SegmentFunctions::new(allocate.function("allocator")?, free.function("allocator")?)
        }));
    }
    if allocate.is_callable() && free.is_callable() {
        let callables = Callables { allocate: kept.keep(&allocate), free: kept.keep(&free) };
        return Ok(Arc::new(callables));
    }
    Err(wrong().into())
}

/// Returns a source of an allocator of PyTorch's; none if the object is nothing of PyTorch's.
fn torch_source(object: &Bound<'_, PyAny>, kept: &KeptObjects) -> PyResult<Option<TorchSource>> {
    let py = object.py();
    let module = py.import(intern!(py, "gpupool._frameworks.torch_allocator"))?;
    let found: Option<[usize; 3]> = module.call_method1(intern!(py, "addresses"), (object,))?.extract()?;
    let Some(addresses) = found else { return Ok(None) };
    // SAFETY: the module got the object's address from PyTorch, for this very class, and looked the functions up by their
    // names in PyTorch's library, which stays loaded.
    let allocator = unsafe { TorchAllocator::new(addresses) }?;
    Ok(Some(TorchSource { allocator, _object: kept.keep(object) }))
}

/// An allocator of PyTorch's, whose object is kept.
#[derive(Debug)]
struct TorchSource {
    allocator: TorchAllocator,
    _object: Arc<Kept>,
}

// SAFETY: the allocator promises the same.
unsafe impl SegmentSource for TorchSource {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        self.allocator.allocate(bytes, stream)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.allocator.free(address, bytes, stream) }
    }
}

#[derive(Debug)]
struct Callables {
    allocate: Arc<Kept>,
    free: Arc<Kept>,
}

// SAFETY: the Python program that gives the callables promises what they return.
unsafe impl SegmentSource for Callables {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let arguments = (bytes, stream.device(), stream.raw().address());
        let refused = |status: &str, cause| {
            Error::refused(OWN_ALLOCATOR, "malloc", status, -1, StatusKind::OutOfMemory)
                .map_library(|refused| refused.cause = cause)
        };
        let address = call_asked(
            |py| self.allocate.bind(py)?.call1(arguments)?.extract(),
            |status, cause| refused(if cause.is_some() { "an exception" } else { status }, cause),
        )?;
        if address == 0 { Err(refused("a null pointer", None)) } else { Ok(address) }
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        let arguments = (address, bytes, stream.device(), stream.raw().address());
        // Nor is memory freed once the interpreter has ended.
        self.free.call_unasked(arguments, |_| ());
        Ok(())
    }
}
