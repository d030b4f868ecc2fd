//! `DeviceBuffer` and `empty`, fences for buffers that are used on streams that no call names, and buffers that other
//! processes use.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::{self, Allocation, CopyDirection, DeviceBuffer, Order, PoolId, ShareToken};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::python::arguments::{Byte, Nbytes, Whole};
use crate::python::context::Ignored;
use crate::python::ffi::address::consumer;
use crate::python::ffi::buffers::{self, DLMemory, DLPlace, DLRequest, lends_by_dlpack};
use crate::python::kept::Keepers;
use crate::python::{device, stream};
use crate::runtime::{Kind, RelaxedCapture, Stream, get};
use crate::sync::lock;

/// Returns NumPy's or CUDA's array interface of bytes, version 3.
pub(crate) fn array_interface(py: Python<'_>, address: u64, nbytes: u64) -> PyResult<Bound<'_, PyDict>> {
    Ok(with_items!(PyDict::new(py), {
        "shape": (nbytes,),
        "typestr": "|u1",
        "data": (address, false),
        "strides": py.None(),
        "version": 3,
    }))
}

/// Returns CUDA's array interface of bytes.
///
/// # Errors
/// `AttributeError` on the simulated device.
pub(crate) fn cuda_array_interface(py: Python<'_>, address: u64, nbytes: u64) -> PyResult<Bound<'_, PyDict>> {
    if get()?.kind() == Kind::Host {
        return Err(PyAttributeError::new_err("simulated memory has no CUDA array interface; it has __dlpack__"));
    }
    array_interface(py, address, nbytes)
}

/// A buffer: most are never shared, and need no count of their owners.
enum BufferState<B> {
    Alone(B),
    /// With a call under way, or with consumers of its memory.
    Shared(Arc<B>),
    Freed,
}

/// A buffer as a Python object holds it.
pub(crate) struct HeldBuffer<B>(Mutex<(BufferState<B>, Keepers)>);

impl<B> HeldBuffer<B> {
    /// Holds a buffer, or none until it is [put](Self::put) there. The keepers are dropped after the buffer, whose end asks the
    /// streams.
    #[inline]
    pub(crate) fn new(buffer: Option<B>, keepers: Keepers) -> Self {
        Self(Mutex::new((buffer.map_or(BufferState::Freed, BufferState::Alone), keepers)))
    }

    pub(crate) fn put(&self, buffer: B) {
        lock(&self.0).0 = BufferState::Alone(buffer);
    }

    /// Returns the buffer, for as long as the caller keeps it. Refuses in a forked child, whose parent's memory it is, before it
    /// takes the lock.
    pub(crate) fn shared(&self) -> Result<Arc<B>> {
        process::refuse_forked()?;
        let state = &mut lock(&self.0).0;
        let shared = match mem::replace(state, BufferState::Freed) {
            BufferState::Alone(buffer) => Arc::new(buffer),
            BufferState::Shared(buffer) => buffer,
            BufferState::Freed => return Err(freed()),
        };
        *state = BufferState::Shared(Arc::clone(&shared));
        Ok(shared)
    }

    /// Returns what `read` takes out of the buffer, under the lock. Refuses as [`Self::shared`].
    #[inline]
    pub(crate) fn read<R>(&self, read: impl FnOnce(&B) -> R) -> Result<R> {
        process::refuse_forked()?;
        lock(&self.0).0.buffer().map(read).ok_or_else(freed)
    }

    /// Returns the `repr` of a buffer, of which this is told.
    pub(crate) fn repr(&self, class: &str, tell: impl FnOnce(&B) -> String) -> String {
        let gone = |_| if process::is_forked() { "of the parent process" } else { "freed" }.to_owned();
        format!("gpupool.{class}({})", self.read(tell).unwrap_or_else(gone))
    }

    /// Records the stream of an object, which is kept as long as the buffer.
    pub(crate) fn record_stream(
        &self,
        stream: &Bound<'_, PyAny>,
        record: impl FnOnce(&B, &Stream) -> Result<()>,
    ) -> PyResult<()> {
        let recorded: Stream = stream.extract()?;
        let buffer = self.shared()?;
        lock(&self.0).1.keep(stream);
        Ok(record(&buffer, &recorded)?)
    }

    /// Takes the buffer, which may be freed on the stream, if one is given, and what is to be dropped after it; none while it has
    /// other owners. A refusal leaves it as it is.
    pub(crate) fn take(
        &self,
        stream: Option<&Stream>,
        check: impl FnOnce(&B, &Stream) -> Result<()>,
    ) -> Result<Option<(B, Keepers)>> {
        process::refuse_forked()?;
        if let Some(stream) = stream
            && let Ok(buffer) = self.shared()
        {
            // Without the lock, since the driver is asked.
            check(&buffer, stream)?;
        }
        let mut held = lock(&self.0);
        let taken = held.0.take()?;
        Ok(taken.map(|buffer| (buffer, mem::take(&mut held.1))))
    }

    /// Takes the buffer as its object ends; none once freed, or while it has other owners.
    pub(crate) fn take_last(&mut self) -> Option<B> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).0.take().ok().flatten()
    }

    /// Does this, as its object ends, to a buffer that consumers of DLPack free after this object's streams.
    #[inline]
    pub(crate) fn let_streams_end(&mut self, let_streams_end: impl FnOnce(&B)) {
        let (state, keepers) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !keepers.is_empty()
            && let BufferState::Shared(buffer) = state
            && Arc::strong_count(buffer) > 1
        {
            let_streams_end(buffer);
        }
    }
}

impl<B> BufferState<B> {
    /// Returns the buffer; none once freed.
    #[inline]
    fn buffer(&self) -> Option<&B> {
        match self {
            Self::Alone(buffer) => Some(buffer),
            Self::Shared(buffer) => Some(buffer),
            Self::Freed => None,
        }
    }

    /// Takes the buffer; none while it has other owners.
    ///
    /// # Errors
    /// `InvalidValue` once it was freed.
    fn take(&mut self) -> Result<Option<B>> {
        match mem::replace(self, Self::Freed) {
            Self::Alone(buffer) => Ok(Some(buffer)),
            Self::Shared(buffer) => {
                let restore = |shared| *self = Self::Shared(shared);
                Ok(Arc::try_unwrap(buffer).map_err(restore).ok())
            }
            Self::Freed => Err(Error::invalid_value("this buffer was freed before; free each buffer once")),
        }
    }
}

#[cold]
fn freed() -> Error {
    Error::invalid_value("this buffer was freed; keep it as long as its memory is used")
}

#[doc = docstring!("DeviceBuffer")]
#[pyclass(name = "DeviceBuffer", module = "gpupool", frozen, weakref)]
pub(crate) struct PyDeviceBuffer {
    pub(crate) held: HeldBuffer<DeviceBuffer>,
    /// The object that keeps its stream alive, if there is one. The garbage collector does not know of it, nor of those that are
    /// held with the buffer: it might end a stream before the buffer, whose end asks its streams.
    keeper: Option<Py<PyAny>>,
}

/// Allocates a block; other threads run Python meanwhile, unless it is there at once.
#[inline]
pub(crate) fn allocate_detached(py: Python<'_>, nbytes: u64, order: &(impl Order + Sync)) -> Result<Allocation> {
    memory::allocate_in_parts(nbytes, order, |rest| {
        let _stack = hold_stack(Purpose::Allocation);
        py.detach(rest)
    })
}

/// Allocates memory; other threads run Python meanwhile, unless it is there at once.
#[inline]
pub(crate) fn allocate(py: Python<'_>, nbytes: u64, stream: &Stream) -> Result<DeviceBuffer> {
    memory::empty_by(nbytes, stream, |nbytes, stream| allocate_detached(py, nbytes, stream))
}

impl PyDeviceBuffer {
    #[inline]
    pub(crate) fn new(py: Python<'_>, nbytes: u64, stream: &Stream) -> PyResult<Self> {
        Ok(Self::keeping(allocate(py, nbytes, stream)?, None))
    }

    /// Makes one that has no buffer until it is [put](HeldBuffer::put) there.
    pub(crate) fn without() -> Self {
        Self { held: HeldBuffer::new(None, Keepers::default()), keeper: None }
    }

    /// Makes one that keeps an object, and so its stream, alive; without one its stream may be gone at any time.
    #[inline]
    pub(crate) fn keeping(buffer: DeviceBuffer, keeper: Option<Py<PyAny>>) -> Self {
        Self { held: HeldBuffer::new(Some(buffer), Keepers::default()), keeper }
    }

    /// Returns the buffer and the stream that a call names, by default the buffer's own as this thread can use it.
    fn on(&self, py: Python<'_>, stream: Option<Stream>) -> Result<(Arc<DeviceBuffer>, Stream)> {
        let buffer = self.held.shared()?;
        let stream = stream.map_or_else(|| py.detach(|| buffer.own_stream_here()), Ok)?;
        Ok((buffer, stream))
    }

    /// Submits work with the buffer to the stream that a call names, by default in the order of the buffer's own: if that
    /// is another thread's, this waits for the work, so that what that thread submits later comes after it.
    fn submit(
        &self,
        py: Python<'_>,
        stream: Option<Stream>,
        work: impl FnOnce(&DeviceBuffer, &Stream) -> PyResult<()>,
    ) -> PyResult<()> {
        let is_own = stream.is_none();
        let (buffer, on) = self.on(py, stream)?;
        work(&buffer, &on)?;
        if is_own && buffer.is_of_another_threads_stream() {
            py.detach(|| {
                let _relaxed = RelaxedCapture::new(get()?)?;
                on.synchronize()
            })?;
        }
        Ok(())
    }

    /// Shares the buffer, and keeps it until it was attached if it `is_sent`.
    fn share_on(&self, py: Python<'_>, given: Option<Stream>, is_sent: bool) -> Result<PyShareToken> {
        let (buffer, stream) = self.on(py, given)?;
        let token = py.detach(|| if is_sent { buffer.send(&stream) } else { buffer.share(&stream) })?;
        Ok(PyShareToken(token))
    }
}

impl Drop for PyDeviceBuffer {
    #[inline]
    fn drop(&mut self) {
        self.held.let_streams_end(DeviceBuffer::let_streams_end);
        if self.keeper.is_some()
            && let Some(buffer) = self.held.take_last()
        {
            let stream = buffer.own_stream().view();
            // What the driver refuses to take back is tried again whenever memory is given back.
            let _ = buffer.free_on(&stream);
        }
    }
}

#[pymethods]
impl PyDeviceBuffer {
    // What a pickler of `multiprocessing` writes; any other is refused.
    fn __reduce_ex__<'py>(&self, py: Python<'py>, _protocol: Ignored) -> PyResult<Bound<'py, PyTuple>> {
        process::refuse_forked()?;
        let sender = py.import("gpupool._frameworks.sent_buffers")?;
        if !sender.call_method0("is_sent")?.extract::<bool>()? {
            return Err(Error::invalid_value(
                "a DeviceBuffer can be sent by multiprocessing (its queues, pipes and arguments of processes), but not pickled \
                 in any other way, because its content is not part of the pickle: pickle the token that share() returns, for \
                 attach() in another process, or the content, bytes(buffer)",
            )
            .into());
        }
        let native = py.import("gpupool._native")?;
        let nbytes = self.held.shared()?.nbytes();
        if nbytes == 0 {
            return (native.getattr("empty")?, (0,)).into_pyobject(py);
        }
        let token = self.share_on(py, None, true)?;
        (native.getattr("attach")?, (token,)).into_pyobject(py)
    }

    #[doc = docstring!("DeviceBuffer.fill")]
    #[pyo3(signature = (byte, stream = None))]
    fn fill(&self, py: Python<'_>, byte: Whole<Byte>, stream: Option<Stream>) -> PyResult<()> {
        let byte = byte.narrow()?;
        self.submit(py, stream, |buffer, stream| Ok(py.detach(|| buffer.fill(byte, stream))?))
    }

    #[doc = docstring!("DeviceBuffer.__bytes__")]
    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let (buffer, stream) = self.on(py, None)?;
        let bytes = usize::try_from(buffer.nbytes())?;
        PyBytes::new_with(py, bytes, |bytes| Ok(py.detach(|| buffer.copy_to(bytes, &stream))?))
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.held.read(DeviceBuffer::nbytes)?)?)
    }

    #[doc = docstring!("DeviceBuffer.__array__")]
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__(&self, dtype: Option<&Bound<'_, PyAny>>, copy: Option<bool>) -> PyResult<()> {
        process::refuse_forked()?;
        let _ = (dtype, copy);
        Err(PyTypeError::new_err(
            "a DeviceBuffer is memory of a device, which NumPy cannot read: copy it to the host by \
             numpy.frombuffer(bytes(buffer), dtype) or buffer.copy_to(array); on the device it is an array by \
             cupy.asarray(buffer) or torch.from_dlpack(buffer)",
        ))
    }

    #[doc = docstring!("DeviceBuffer.free")]
    #[pyo3(signature = (stream = None))]
    fn free(&self, py: Python<'_>, stream: Option<Stream>) -> PyResult<()> {
        let shared = || {
            Error::invalid_value(
                "this buffer is shared by DLPack, or another thread is copying it; it is freed when the last array that \
                 uses it dies",
            )
        };
        let (buffer, _keepers) = self.held.take(stream.as_ref(), DeviceBuffer::check_stream)?.ok_or_else(shared)?;
        // Its own, if that is known to be alive.
        let stream = stream.or_else(|| self.keeper.as_ref().map(|_| buffer.own_stream().view()));
        device::detached_for(py, Purpose::Free, || match stream {
            Some(stream) => buffer.free_on(&stream),
            None => buffer.free(),
        })
    }

    #[doc = docstring!("DeviceBuffer.__cuda_array_interface__")]
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let buffer = self.held.shared()?;
        let interface = cuda_array_interface(py, buffer.ptr(), buffer.nbytes())?;
        let stream = py.detach(|| buffer.own_stream_here())?;
        // 0 would be ambiguous: 1 is the legacy default stream, 2 the per-thread one.
        interface.set_item("stream", stream.raw().address().max(1))?;
        Ok(interface)
    }

    fn __repr__(&self) -> String {
        self.held.repr("DeviceBuffer", |buffer| {
            let device = device::shown(buffer.device().ordinal());
            format!("ptr={:#x}, nbytes={}, device={device}", buffer.ptr(), buffer.nbytes())
        })
    }
}

members! { PyDeviceBuffer = "DeviceBuffer" of this, py;
    get ptr: Result<u64> = this.held.read(DeviceBuffer::ptr);
    get nbytes: Result<u64> = this.held.read(DeviceBuffer::nbytes);
    get device: Result<Device> = this.held.read(DeviceBuffer::device);
    get stream: Result<usize> = this.held.read(|buffer| buffer.own_stream().raw().address());
    get pool_id: Result<PoolId> = this.held.read(DeviceBuffer::pool_id);
    get is_attached: Result<bool> = this.held.read(DeviceBuffer::is_attached);

    fn share(stream: Option<Stream> = None) -> Result<PyShareToken> = this.share_on(py, stream, false);
    fn recall() -> Result<()> = this.held.shared()?.recall();
    fn copy_from(host: &Bound<'_, PyAny>, stream: Option<Stream> = None) -> PyResult<()> =
        this.submit(py, stream, |buffer, stream| buffers::copy(buffer, CopyDirection::ToDevice, host, stream));
    fn copy_to(host: &Bound<'_, PyAny>, stream: Option<Stream> = None) -> PyResult<()> =
        this.submit(py, stream, |buffer, stream| buffers::copy(buffer, CopyDirection::ToHost, host, stream));
    fn record_stream(stream: &Bound<'_, PyAny>) -> PyResult<()> =
        this.held.record_stream(stream, DeviceBuffer::record_stream);
    fn __dlpack_device__() -> Result<DLPlace> = this.held.read(|buffer| buffers::place(Some(buffer.device())));
}

impl PyDeviceBuffer {
    fn lend<'py>(&self, py: Python<'py>, asked: &DLRequest<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.held.shared()?;
        let place = buffers::place(Some(buffer.device()));
        let memory = DLMemory { address: buffer.ptr(), nbytes: buffer.nbytes(), place };
        asked.check("DeviceBuffer", place)?;
        if get()?.kind() != Kind::Host
            && let Some(consumer) = consumer(asked.stream, Some(buffer.device()))?
        {
            py.detach(|| buffer.hold_back(&consumer))?;
            // A consumer ends its share when its array dies, even if its stream still has work on it.
            buffer.record_consumer(&consumer)?;
        }
        asked.export(py, buffer, memory)
    }
}

lends_by_dlpack! { PyDeviceBuffer = "DeviceBuffer" by lend }

#[doc = docstring!("ShareToken")]
#[pyclass(name = "ShareToken", module = "gpupool.typing", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyShareToken(pub(crate) ShareToken);

#[pymethods]
impl PyShareToken {
    #[new]
    #[pyo3(signature = (data, /))]
    fn new(data: &[u8]) -> PyResult<Self> {
        Ok(Self(ShareToken::from_bytes(data)?))
    }

    #[doc = docstring!("ShareToken.__bytes__")]
    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.as_bytes())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (py.get_type::<Self>(), (self.__bytes__(py),))
    }

    fn __repr__(&self) -> String {
        format!("gpupool.typing.ShareToken(of {} bytes of process {})", self.0.nbytes(), self.0.process())
    }
}

members! { PyShareToken = "ShareToken" of this, py;
    get nbytes: u64 = this.0.nbytes();
    get process: u32 = this.0.process();
}

/// Returns the token that an argument is, or whose bytes it is.
fn token_of(token: &Bound<'_, PyAny>) -> PyResult<ShareToken> {
    if let Ok(token) = token.cast::<PyShareToken>() {
        return Ok(token.get().0.clone());
    }
    match token.extract::<&[u8]>() {
        Ok(bytes) => Ok(ShareToken::from_bytes(bytes)?),
        Err(_) => Err(PyTypeError::new_err(format!(
            "attach takes a ShareToken, as share() returns it, or its bytes, not {}",
            token.get_type().name()?
        ))),
    }
}

#[doc = docstring!("attach")]
#[pyfunction(signature = (token, stream = None, device = None))]
pub(crate) fn attach(
    py: Python<'_>,
    token: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
    device: Option<Device>,
) -> PyResult<PyDeviceBuffer> {
    process::refuse_forked()?;
    let token = token_of(token)?;
    let stream = stream.map(|given| stream::resolve(py, Some(given), device)).transpose()?;
    let attach = || memory::attach(&token, device, stream.as_ref());
    Ok(PyDeviceBuffer::keeping(device::detached_for(py, Purpose::Allocation, attach)?, None))
}

functions! { py;
    fn empty(nbytes: Whole<Nbytes>, stream: Option<&Bound<'_, PyAny>> = None) -> PyResult<PyDeviceBuffer> =
        PyDeviceBuffer::new(py, nbytes.0, &stream::resolve(py, stream, None)?);
    fn fence(stream: Stream, delay: bool = true) -> Result<bool> = py.detach(|| memory::fence(&stream, delay));
    fn follow_blocking(stream: Stream) -> Result<bool> = py.detach(|| memory::follow_blocking(&stream));
    fn share_at(ptr: u64, stream: Stream) -> Result<(PyShareToken, u64)> =
        py.detach(|| memory::share_at(ptr, Some(&stream), false)).map(|(token, offset)| (PyShareToken(token), offset));
}
