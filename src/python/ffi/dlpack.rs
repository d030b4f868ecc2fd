//! DLPack: device memory, and pinned memory of the host, as other array libraries take it. See the specification of dmlc/dlpack, versions 0.8 and 1.
//!
//! A capsule owns a share of the buffer until a consumer takes it over by renaming it; then the consumer's call of the
//! deleter ends that share, from any thread and without the GIL.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::c_api::C_API;
use crate::ids::Device;
use crate::memory::{DeviceBuffer, MemoryRange, PinnedBuffer};
use crate::runtime::{self, Kind};

/// `kDLCPU`, `kDLCUDA`, `kDLCUDAHost`, `kDLROCM`, `kDLROCMHost`.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const ROCM: i32 = 10;
const ROCM_HOST: i32 = 11;
/// `kDLUInt`.
const UNSIGNED: u8 = 1;

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy)]
struct DLDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Tensor {
    data: *mut c_void,
    device: DLDevice,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

/// What a managed tensor of either version points to, freed by its deleter.
struct TensorOwner {
    managed: Managed,
    versioned: ManagedVersioned,
    shape: [i64; 1],
    _buffer: Arc<dyn Exported>,
}

/// Memory that is lent by DLPack.
pub(crate) trait Exported: Send + Sync {
    /// The address of its first byte.
    fn address(&self) -> u64;
    /// Its bytes.
    fn nbytes(&self) -> u64;
    /// Where it is: type and ordinal. The simulated devices' memory is the CPU's.
    fn place(&self) -> (i32, i32);
}

impl Exported for DeviceBuffer {
    fn address(&self) -> u64 {
        self.address()
    }

    fn nbytes(&self) -> u64 {
        self.nbytes()
    }

    fn place(&self) -> (i32, i32) {
        on_device(self.device().ordinal())
    }
}

fn on_device(ordinal: usize) -> (i32, i32) {
    match runtime::get().map(|runtime| runtime.kind()) {
        Ok(Kind::Cuda) => (CUDA, ordinal as i32),
        Ok(Kind::Hip) => (ROCM, ordinal as i32),
        _ => (CPU, 0),
    }
}

impl Exported for MemoryRange {
    fn address(&self) -> u64 {
        self.address()
    }

    fn nbytes(&self) -> u64 {
        self.nbytes()
    }

    fn place(&self) -> (i32, i32) {
        on_device(self.device().map_or(0, Device::ordinal))
    }
}

impl Exported for PinnedBuffer {
    fn address(&self) -> u64 {
        self.address()
    }

    fn nbytes(&self) -> u64 {
        self.nbytes()
    }

    fn place(&self) -> (i32, i32) {
        match runtime::get().map(|runtime| runtime.kind()) {
            Ok(Kind::Cuda) => (CUDA_HOST, 0),
            Ok(Kind::Hip) => (ROCM_HOST, 0),
            _ => (CPU, 0),
        }
    }
}

/// Makes the tensors of a buffer on the heap, where their pointers stay good until a deleter frees them.
fn own(buffer: Arc<dyn Exported>) -> *mut TensorOwner {
    let (kind, id) = buffer.place();
    let tensor = Tensor {
        data: ptr::with_exposed_provenance_mut(buffer.address() as usize),
        device: DLDevice { kind, id },
        ndim: 1,
        dtype: DataType { code: UNSIGNED, bits: 8, lanes: 1 },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let (shape, context) = ([buffer.nbytes().cast_signed()], ptr::null_mut());
    let managed = Managed { tensor, context, deleter: Some(delete) };
    let versioned = ManagedVersioned { major: 1, minor: 0, context, deleter: Some(delete_versioned), flags: 0, tensor };
    let owner = Box::into_raw(Box::new(TensorOwner { managed, versioned, shape, _buffer: buffer }));
    // SAFETY: `owner` was just made from a box and is known only here yet.
    unsafe {
        let shape = (&raw mut (*owner).shape).cast();
        (*owner).managed.tensor.shape = shape;
        (*owner).managed.context = owner.cast();
        (*owner).versioned.tensor.shape = shape;
        (*owner).versioned.context = owner.cast();
    }
    owner
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the context is the box that `own` made, and a deleter is called once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<TensorOwner>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: the context is the box that `own` made, and of its two deleters one is called, once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<TensorOwner>()) });
}

/// Ends a capsule that no consumer took over.
unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter passes a live capsule, and its name says what it points to.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        }
    }
}

/// Refuses what a consumer asks of `__dlpack__` that no buffer does: to be copied, or moved to another device.
///
/// # Errors
/// A `BufferError`, which names the class of the buffer.
pub(crate) fn check_request(
    buffer: &impl Exported,
    class: &str,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<()> {
    if copy == Some(true) {
        return Err(PyBufferError::new_err(format!("a {class} is not copied; ask with copy=None or False")));
    }
    let own = buffer.place();
    if dl_device.is_some_and(|wanted| wanted != own) {
        let wrong = format!("the buffer is on device {own:?}, in DLPack's terms; it is not moved to another");
        return Err(PyBufferError::new_err(wrong));
    }
    Ok(())
}

/// The buffer as a capsule, of version 1 if the consumer knows it, or of before.
pub(crate) fn export(
    py: Python<'_>,
    buffer: Arc<dyn Exported>,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'_, PyAny>> {
    let owner = own(buffer);
    // SAFETY: the owner is not null, the names live as long as the process, and the result is checked for null.
    unsafe {
        let (pointer, name) = match max_version {
            Some((1.., _)) => ((&raw mut (*owner).versioned).cast(), VERSIONED_NAME),
            _ => ((&raw mut (*owner).managed).cast(), NAME),
        };
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end_capsule)))
    }
}

/// A capsule named `gpupool.c_api` that points to the table of C functions.
pub(crate) fn c_api_capsule(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let pointer = (&raw const C_API).cast_mut().cast();
    // SAFETY: the table and the name live as long as the process, and the result is checked for null.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, c"gpupool.c_api".as_ptr(), None)) }
}
