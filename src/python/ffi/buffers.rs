//! Memory that Python's objects lend each other: by DLPack to other array libraries (see the specification of dmlc/dlpack,
//! versions 0.8 and 1), and by Python's buffer protocol, to and from `PinnedBuffer`.
//!
//! A capsule owns a share of the buffer until a consumer takes it over by renaming it; then the consumer's call of the
//! deleter ends that share, from any thread and without the GIL.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::buffer::{Element, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{ffi, intern};

use crate::c_api::C_API;
use crate::error::{Error, Result};
use crate::ids::{Device, NumaNode};
use crate::memory::{self, CopyDirection, DeviceBuffer, HostBytes, PinnedBuffer};
use crate::observe::recording::Purpose;
use crate::process;
use crate::python::arguments::{Nbytes, Whole, accepted, is_refusal};
use crate::python::buffer::{HeldBuffer, allocate_detached, array_interface};
use crate::python::device;
use crate::python::ffi::address::consumer;
use crate::python::kept::Keepers;
use crate::runtime::{Kind, Stream, get};

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

/// `DLTensor`, with its `DLDevice` and its `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Tensor {
    data: *mut c_void,
    device_kind: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
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
    _buffer: Arc<dyn Send + Sync>,
}

/// Where memory is for DLPack: type and ordinal.
pub(crate) type DLPlace = (i32, i32);

/// Memory that is lent by DLPack.
#[derive(Clone, Copy)]
pub(crate) struct DLMemory {
    pub(crate) address: u64,
    pub(crate) nbytes: u64,
    pub(crate) place: DLPlace,
}

/// What a consumer asks of an object's memory.
pub(crate) struct DLRequest<'a, 'py> {
    /// Where the memory will be used.
    pub(crate) stream: Option<&'a Bound<'py, PyAny>>,
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) dl_device: Option<DLPlace>,
    pub(crate) copy: Option<bool>,
}

/// Gives a class `__dlpack__`, by a method that gets the [`DLRequest`].
macro_rules! lends_by_dlpack {
    ($class:ident = $documented:literal by $lend:ident) => {
        #[pymethods]
        impl $class {
            #[doc = docstring!($documented, ".__dlpack__")]
            #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
            fn __dlpack__<'py>(
                &self,
                py: Python<'py>,
                stream: Option<&Bound<'py, PyAny>>,
                max_version: Option<(u32, u32)>,
                dl_device: Option<(i32, i32)>,
                copy: Option<bool>,
            ) -> PyResult<Bound<'py, PyAny>> {
                self.$lend(py, &DLRequest { stream, max_version, dl_device, copy })
            }
        }
    };
}

pub(crate) use lends_by_dlpack;

/// Returns where memory of a device, or else pinned memory, is for DLPack. The simulated devices' memory is the CPU's.
pub(crate) fn place(device: Option<Device>) -> DLPlace {
    match (get().map(|runtime| runtime.kind()), device) {
        (Ok(Kind::Cuda), Some(device)) => (CUDA, device.number()),
        (Ok(Kind::Cuda), None) => (CUDA_HOST, 0),
        (Ok(Kind::Hip), Some(device)) => (ROCM, device.number()),
        (Ok(Kind::Hip), None) => (ROCM_HOST, 0),
        _ => (CPU, 0),
    }
}

/// Makes the tensors of a buffer on the heap, where their pointers stay good until a deleter frees them.
fn own(buffer: Arc<dyn Send + Sync>, memory: DLMemory) -> *mut TensorOwner {
    let tensor = Tensor {
        data: ptr::with_exposed_provenance_mut(memory.address as usize),
        device_kind: memory.place.0,
        device_id: memory.place.1,
        ndim: 1,
        code: UNSIGNED,
        bits: 8,
        lanes: 1,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let (shape, context) = ([memory.nbytes.cast_signed()], ptr::null_mut());
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

impl DLRequest<'_, '_> {
    /// Refuses what no buffer does: to be copied, or moved to another device.
    ///
    /// # Errors
    /// A `BufferError`, which names the class of the buffer.
    pub(crate) fn check(&self, class: &str, own: DLPlace) -> PyResult<()> {
        if self.copy == Some(true) {
            return Err(PyBufferError::new_err(format!("a {class} is not copied; ask with copy=None or False")));
        }
        if self.dl_device.is_some_and(|wanted| wanted != own) {
            let wrong = format!("the buffer is on device {own:?}, in DLPack's terms; it is not moved to another");
            return Err(PyBufferError::new_err(wrong));
        }
        Ok(())
    }

    /// The memory of a buffer as a capsule, of version 1 if the consumer knows it, or of before.
    pub(crate) fn export<'py>(
        &self,
        py: Python<'py>,
        buffer: Arc<dyn Send + Sync>,
        memory: DLMemory,
    ) -> PyResult<Bound<'py, PyAny>> {
        let owner = own(buffer, memory);
        // SAFETY: the owner is not null, the names live as long as the process, and the result is checked for null.
        unsafe {
            let (pointer, name) = match self.max_version {
                Some((1.., _)) => ((&raw mut (*owner).versioned).cast(), VERSIONED_NAME),
                _ => ((&raw mut (*owner).managed).cast(), NAME),
            };
            Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end_capsule)))
        }
    }
}

/// A capsule named `gpupool.c_api` that points to the table of C functions.
pub(crate) fn c_api_capsule(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let pointer = (&raw const C_API).cast_mut().cast();
    // SAFETY: the table and the name live as long as the process, and the result is checked for null.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, c"gpupool.c_api".as_ptr(), None)) }
}

// `PinnedBuffer` and `empty_pinned`. They are in `ffi` since the buffer exports its memory by Python's buffer protocol.
//
// The buffer cannot be freed while its memory is exported: each view has a share of it.

#[doc = docstring!("PinnedBuffer")]
#[pyclass(name = "PinnedBuffer", module = "gpupool", frozen, weakref)]
pub(crate) struct PyPinnedBuffer(pub(super) HeldBuffer<PinnedBuffer>);

#[doc = docstring!("empty_pinned")]
#[pyfunction(signature = (nbytes, stream = None, numa = None))]
pub(crate) fn empty_pinned(
    py: Python<'_>,
    nbytes: Whole<Nbytes>,
    stream: Option<&Bound<'_, PyAny>>,
    numa: Option<NumaNode>,
) -> PyResult<PyPinnedBuffer> {
    let mut keepers = Keepers::default();
    stream.into_iter().for_each(|stream| keepers.keep(stream));
    let stream: Option<Stream> = stream.map(|stream| stream.extract()).transpose()?;
    if stream.is_none() {
        device::get(py)?;
    }
    let buffer = allocate_pinned(py, nbytes.0, numa, stream.as_ref())?;
    Ok(PyPinnedBuffer(HeldBuffer::new(Some(buffer), keepers)))
}

/// Allocates pinned memory; other threads run Python meanwhile, unless it is there at once.
pub(crate) fn allocate_pinned(
    py: Python<'_>,
    nbytes: u64,
    numa: Option<NumaNode>,
    stream: Option<&Stream>,
) -> Result<PinnedBuffer> {
    let node = memory::node_of(numa.map(|node| node.number().into()), stream)?;
    memory::empty_pinned_by(nbytes, node, stream, |nbytes, node| allocate_detached(py, nbytes, node))
}

impl Drop for PyPinnedBuffer {
    fn drop(&mut self) {
        self.0.let_streams_end(PinnedBuffer::let_streams_end);
    }
}

#[pymethods]
impl PyPinnedBuffer {
    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.0.read(PinnedBuffer::nbytes)?)?)
    }

    #[doc = docstring!("PinnedBuffer.free")]
    #[pyo3(signature = (stream = None))]
    fn free(&self, py: Python<'_>, stream: Option<Stream>) -> PyResult<()> {
        let lent = || {
            PyBufferError::new_err(
                "this buffer's memory is in use by a memoryview, an array or a DLPack consumer: delete those first",
            )
        };
        let (buffer, _keepers) = self.0.take(stream.as_ref(), PinnedBuffer::check_stream)?.ok_or_else(lent)?;
        device::detached_for(py, Purpose::Free, || buffer.free(stream.as_ref()))
    }

    /// # Safety
    /// Python passes a place for a view.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        process::refuse_forked()?;
        let buffer = slf.get().0.shared().map_err(|freed| PyBufferError::new_err(freed.to_string()))?;
        // A view of no bytes has an address, too.
        let start = NonNull::new(buffer.as_ptr()).unwrap_or(NonNull::dangling()).as_ptr();
        let bytes = buffer.nbytes().cast_signed() as ffi::Py_ssize_t;
        // SAFETY: Python passes a place for a view, and the memory stays until the view is released, which has a share of it.
        unsafe {
            if ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), bytes, 0, flags) != 0 {
                return Err(PyErr::fetch(slf.py()));
            }
            (*view).internal = Arc::into_raw(buffer).cast_mut().cast();
        }
        Ok(())
    }

    /// # Safety
    /// Python passes a view that `__getbuffer__` filled, once.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `__getbuffer__` gave this view the share, which is taken back once.
        drop(unsafe { Arc::from_raw((*view).internal.cast::<PinnedBuffer>()) });
    }

    #[doc = docstring!("PinnedBuffer.__array_interface__")]
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (address, nbytes) = self.0.read(|buffer| (buffer.ptr(), buffer.nbytes()))?;
        array_interface(py, address, nbytes)
    }

    fn __repr__(&self) -> String {
        self.0.repr("PinnedBuffer", |buffer| {
            let numa = device::shown(buffer.numa());
            format!("ptr={:#x}, nbytes={}, numa={numa}", buffer.ptr(), buffer.nbytes())
        })
    }
}

members! { PyPinnedBuffer = "PinnedBuffer" of this, py;
    get ptr: Result<u64> = this.0.read(PinnedBuffer::ptr);
    get nbytes: Result<u64> = this.0.read(PinnedBuffer::nbytes);
    get numa: Result<u32> = this.0.read(PinnedBuffer::numa);

    fn record_stream(stream: &Bound<'_, PyAny>) -> PyResult<()> =
        this.0.record_stream(stream, PinnedBuffer::record_stream);
    fn __dlpack_device__() -> Result<DLPlace> = this.0.read(|_| place(None));
}

impl PyPinnedBuffer {
    fn lend<'py>(&self, py: Python<'py>, asked: &DLRequest<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.0.shared()?;
        let memory = DLMemory { address: buffer.ptr(), nbytes: buffer.nbytes(), place: place(None) };
        asked.check("PinnedBuffer", memory.place)?;
        // The host's memory has no stream; a consumer that names one will use it there.
        if asked.stream.is_some()
            && get()?.kind() != Kind::Host
            && let Some(consumer) = consumer(asked.stream, None)?
        {
            buffer.record_consumer(&consumer)?;
        }
        asked.export(py, buffer, memory)
    }
}

lends_by_dlpack! { PyPinnedBuffer = "PinnedBuffer" by lend }

// Bytes of the host that Python objects lend by the buffer protocol, and copies between them and device memory.

/// How many objects lie between a view and the pinned memory that it is of, at most: an array of a memoryview of a buffer.
const MOST_BETWEEN: usize = 8;

/// Memory that an object lends as long as this lives. PyO3's own buffers refuse arrays of ctypes and numbers of NumPy, which
/// leave out their strides.
struct Lent<'py> {
    view: Box<ffi::Py_buffer>,
    /// The pinned memory of gpupool's that it lies in.
    pinned: Option<Arc<PinnedBuffer>>,
    /// A view is released by a thread that is attached to the interpreter.
    _py: Python<'py>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // SAFETY: the view was filled, or has no object, and is released once; the thread is attached, as `_py` says.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
    }
}

impl<'py> Lent<'py> {
    fn new(host: &Bound<'py, PyAny>, method: &str) -> PyResult<Self> {
        let (py, name) = (host.py(), host.get_type().name()?);
        let mut lent = Self { view: Box::new(ffi::Py_buffer::new()), pinned: None, _py: py };
        // SAFETY: the object is alive, and the view is a place for one that does not move.
        let status = unsafe { ffi::PyObject_GetBuffer(host.as_ptr(), &raw mut *lent.view, ffi::PyBUF_FULL_RO) };
        if status != 0 {
            let error = PyErr::fetch(py);
            if !is_refusal(py, &error) {
                return Err(error);
            }
            return Err(PyTypeError::new_err(format!(
                "{method}() takes host memory with Python's buffer protocol (bytes, bytearray, memoryview, a NumPy array, \
                 PinnedBuffer), not {name}: {error}. For a CPU tensor of PyTorch give tensor.numpy()"
            )));
        }
        // SAFETY: the view is filled, and a format that is not null is a string that lives as long.
        let (holds_objects, is_contiguous) = unsafe {
            let format = lent.view.format;
            (
                !format.is_null() && CStr::from_ptr(format).to_bytes().contains(&b'O'),
                ffi::PyBuffer_IsContiguous(&raw const *lent.view, b'C' as c_char) == 1,
            )
        };
        if holds_objects {
            return Err(PyTypeError::new_err(format!("{method}() copies bytes, and this {name} holds Python objects")));
        }
        if !is_contiguous {
            return Err(Error::invalid_value(format!(
                "{method}() needs contiguous memory in C order, which this {name} is not: give numpy.ascontiguousarray(...) of \
                 it, or copy it there"
            ))
            .into());
        }
        lent.pinned = lent.pinned_memory(host)?;
        Ok(lent)
    }

    /// Returns the pinned memory that this is a view of: `obj` of a memoryview, or `base` of an array, leads there.
    fn pinned_memory(&self, host: &Bound<'_, PyAny>) -> PyResult<Option<Arc<PinnedBuffer>>> {
        let py = host.py();
        let mut object = host.clone();
        for _ in 0..MOST_BETWEEN {
            if let Ok(pinned) = object.cast::<PyPinnedBuffer>() {
                let buffer = pinned.get().0.shared()?;
                let end = buffer.ptr() + buffer.nbytes();
                let is_inside = buffer.ptr() <= self.address() && self.address() + self.bytes() <= end;
                return Ok(is_inside.then_some(buffer));
            }
            let next = match object.getattr_opt(intern!(py, "obj"))? {
                None => object.getattr_opt(intern!(py, "base"))?,
                found => found,
            };
            let Some(next) = next else { break };
            object = next;
        }
        Ok(None)
    }

    fn address(&self) -> u64 {
        self.view.buf.expose_provenance() as u64
    }

    fn bytes(&self) -> u64 {
        self.view.len.unsigned_abs() as u64
    }
}

/// Copies between the buffer and what an object lends. Pinned memory is copied in the background; for any other this waits.
///
/// # Errors
/// `TypeError` for an object without bytes; `InvalidValue` for memory that is read-only and would be written; else as
/// [`DeviceBuffer::copy_from`].
pub(crate) fn copy(
    buffer: &DeviceBuffer,
    direction: CopyDirection,
    host: &Bound<'_, PyAny>,
    stream: &Stream,
) -> PyResult<()> {
    let is_written = matches!(direction, CopyDirection::ToHost);
    let lent = Lent::new(host, if is_written { "copy_to" } else { "copy_from" })?;
    if is_written && lent.view.readonly != 0 {
        return Err(Error::invalid_value(format!(
            "copy_to() writes, and this {} is read-only: give a bytearray, a writable array or a PinnedBuffer; bytes(buffer) \
             makes new bytes",
            host.get_type().name()?
        ))
        .into());
    }
    let bytes = HostBytes { address: lent.address(), bytes: lent.bytes(), pinned: lent.pinned.as_deref() };
    // SAFETY: the object lends the bytes, to be written if they are, as long as `lent` lives, and pinned ones lie in their
    // buffer.
    Ok(host.py().detach(|| unsafe { buffer.copy(direction, bytes, stream) })?)
}

/// The numbers that an object lends, or the first that is not one from 0 to 2**32 - 1.
type LentIntegers = Result<Vec<u32>, i128>;

/// Returns the numbers that an object lends, as arrays of NumPy and `array.array` do; none if it lends no integers in one
/// dimension.
pub(crate) fn lent_integers(object: &Bound<'_, PyAny>) -> PyResult<Option<LentIntegers>> {
    let Some(lent) = accepted(object.py(), PyUntypedBuffer::get(object))? else { return Ok(None) };
    // PyO3 takes numbers of the other byte order, and characters, for such as these.
    let format = lent.format().to_bytes();
    let is_foreign = cfg!(target_endian = "little") && format.starts_with(b">");
    if is_foreign || format.ends_with(b"c") || lent.dimensions() != 1 {
        return Ok(None);
    }
    let py = object.py();
    let readers =
        [read::<i64>, read::<i32>, read::<u32>, read::<u64>, read::<u16>, read::<i16>, read::<u8>, read::<i8>];
    Ok(readers.into_iter().find_map(|read| read(py, &lent)))
}

/// Returns numbers of one type; none if they are of another.
fn read<N: Element + Copy + TryInto<u32> + Into<i128>>(py: Python<'_>, lent: &PyUntypedBuffer) -> Option<LentIntegers> {
    let lent = lent.as_typed::<N>().ok()?.to_vec(py).ok()?;
    let mut is_wrong = false;
    // Several are converted at once, since none ends this early.
    let numbers = lent.iter().map(|&number| {
        let number: Result<u32, _> = number.try_into();
        is_wrong |= number.is_err();
        number.unwrap_or_default()
    });
    let numbers = numbers.collect();
    let wrong = if is_wrong { lent.into_iter().find(|&number| number.try_into().is_err()) } else { None };
    Some(wrong.map_or(Ok(numbers), |number| Err(number.into())))
}
