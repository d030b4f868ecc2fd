//! Addresses that users of the Python API give: of streams, C functions and handles.
//!
//! As with ctypes, the API's user vouches for them: that is its documented contract. A [`PythonAddress`] is made of a Python
//! value alone, so no other code can make one of a number.

use std::ffi::c_void;
use std::mem::transmute;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::error::{Error, Result, StatusKind};
use crate::ids::Device;
use crate::library::RawHandle;
use crate::library::functions::{Create, CreateFn, Destroy, DestroyFn, SetStream, SetStreamFn};
use crate::memory;
use crate::memory::{AllocateFunction, FreeFunction, SegmentFunctions, SegmentSource};
use crate::python::arguments::{accepted, refuse_bool, wrong_argument};
use crate::python::kept::Kept;
use crate::runtime::{Kind, Stream, get};

/// An address that a Python value gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    pub(crate) const LEGACY_STREAM: Self = Self { number: 1 };

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

    /// The address of the function that the argument `name` gives.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for 0.
    fn function(self, name: &str) -> Result<*const c_void> {
        if self.number == 0 {
            return Err(Error::invalid_value(format!("{name}: 0 is not the address of a C function")));
        }
        Ok(ptr::with_exposed_provenance(self.number))
    }

    pub(crate) fn create(self) -> Result<Create> {
        let function = self.function("create")?;
        // SAFETY: the user vouches that a function of this prototype lies there, which is not null, and does what it says.
        Ok(unsafe { Create::new(transmute::<*const c_void, CreateFn>(function)) })
    }

    pub(crate) fn destroy(self) -> Result<Destroy> {
        let function = self.function("destroy")?;
        // SAFETY: the user vouches that a function of this prototype lies there, which is not null, and does what it says.
        Ok(unsafe { Destroy::new(transmute::<*const c_void, DestroyFn>(function)) })
    }

    pub(crate) fn set_stream(self) -> Result<SetStream> {
        let function = self.function("set_stream")?;
        // SAFETY: the user vouches that a function of this prototype lies there, which is not null, and does what it says.
        Ok(unsafe { SetStream::new(transmute::<*const c_void, SetStreamFn>(function)) })
    }

    /// The source of memory that the C functions at two addresses make.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` for 0.
    pub(crate) fn segment_functions(allocate: Self, free: Self) -> Result<SegmentFunctions> {
        let (allocate, free) = (allocate.function("allocator")?, free.function("allocator")?);
        // SAFETY: the user vouches that functions of these prototypes lie there, which are not null, and do what they say.
        Ok(unsafe {
            SegmentFunctions::new(
                transmute::<*const c_void, AllocateFunction>(allocate),
                transmute::<*const c_void, FreeFunction>(free),
            )
        })
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

// Sources of pools' memory in Python: the program promises that what they return is memory without another owner.

/// A [`SegmentSource`] of Python code, which has no `unsafe`.
pub(crate) trait PythonSource: Send + Sync + std::fmt::Debug {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64>;
    fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()>;
}

/// A source whose promise is trusted.
#[derive(Debug)]
pub(crate) struct Trusted<S>(pub(crate) S);

// SAFETY: the Python program that names the source promises what it returns.
unsafe impl<S: PythonSource> SegmentSource for Trusted<S> {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        self.0.allocate(bytes, stream)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        self.0.free(address, bytes, stream)
    }
}

/// A source that keeps a Python object alive.
#[derive(Debug)]
pub(crate) struct Keeping<S> {
    source: S,
    _object: Arc<Kept>,
}

impl<S> Keeping<S> {
    pub(crate) const fn new(source: S, object: Arc<Kept>) -> Self {
        Self { source, _object: object }
    }
}

// SAFETY: the source inside promises the same.
unsafe impl<S: SegmentSource> SegmentSource for Keeping<S> {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        self.source.allocate(bytes, stream)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.source.free(address, bytes, stream) }
    }
}

// PyTorch's objects, whose addresses and functions Python looks up.

/// Makes a supplier of memory of an allocator of PyTorch's, whose address and those of its functions Python looked up. The
/// caller keeps the object as long as this.
///
/// # Errors
/// `ErrorKind::InvalidValue` if one is null.
pub(crate) fn torch_allocator(addresses: [usize; 3]) -> crate::error::Result<memory::TorchAllocator> {
    // SAFETY: `gpupool._frameworks.torch_allocator` got the object's address from PyTorch, for this very class, and looked
    // the functions up by their names in PyTorch's library, which stays loaded.
    unsafe { memory::TorchAllocator::new(addresses) }
}
