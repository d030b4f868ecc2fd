//! Streams, wherever they come from: an int, a stream of CuPy, PyTorch, Numba or cuda.core, or any object with `__cuda_stream__`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::error::{Error, Result};
use crate::ids::{Device, RawStream};
use crate::process;
use crate::python::arguments::{accepted, wrong_objects};
use crate::python::context::{Ignored, WithBlocks};
use crate::python::device;
use crate::python::ffi::address::PythonAddress;
use crate::runtime::{self, Stream, scoped_view};
use crate::sync::lock;

#[doc = docstring!("Stream")]
#[pyclass(name = "Stream", module = "gpupool", frozen, weakref)]
pub(crate) struct PyStream {
    stream: Stream,
    blocks: WithBlocks<runtime::EnteredStream>,
}

#[pymethods]
impl PyStream {
    #[new]
    #[pyo3(signature = (device = None))]
    fn new(py: Python<'_>, device: Option<Device>) -> PyResult<Self> {
        Ok(Self { stream: device::detached(py, device, Stream::new)?, blocks: WithBlocks::new() })
    }

    #[doc = docstring!("Stream.__enter__")]
    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        slf.blocks.enter(slf.py(), None, runtime::enter(&slf.stream)?);
        Ok(slf)
    }

    #[doc = docstring!("Stream.__exit__")]
    fn __exit__(&self, py: Python<'_>, _kind: Ignored, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
        leave(py, &self.blocks, "a Stream's block")
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    fn __hash__(&self) -> usize {
        let (device, address) = self.identity();
        address.wrapping_add(device)
    }

    fn __repr__(&self) -> String {
        let name = match self.stream.raw() {
            RawStream::PER_THREAD => ", the per-thread default stream",
            raw if raw.is_default() => ", the legacy default stream",
            _ => "",
        };
        let (address, device) = (self.stream.raw().address(), device::shown(self.stream.device().ordinal()));
        format!("gpupool.Stream(ptr={address:#x}, device={device}{name})")
    }
}

members! { PyStream = "Stream" of this, py;
    get ptr: Result<usize> = process::refuse_forked().map(|()| this.stream.raw().address());
    get device: Device = this.stream.device();

    fn query() -> Result<bool> = this.stream.query();
    fn synchronize() -> Result<()> = py.detach(|| this.stream.synchronize());
    fn __cuda_stream__() -> Result<(u32, usize)> = this.ptr(py).map(|address| (0, address));
}

impl PyStream {
    /// Returns the stream's device and its address, of which the legacy stream has two.
    fn identity(&self) -> (usize, usize) {
        (self.stream.device().ordinal(), self.stream.raw().address().max(1))
    }
}

functions! { py;
    fn current_stream(device: Option<Device> = None) -> PyResult<PyStream> =
        Ok(PyStream { stream: resolve(py, None, device)?.kept(), blocks: WithBlocks::new() });
    fn is_captured(stream: Stream) -> Result<bool> = stream.is_captured();
    fn synchronize(device: Option<Device> = None) -> PyResult<()> = device::detached(py, device, runtime::synchronize);
}

/// Ends the block of a stream that the calling thread entered last. In a forked child it does nothing.
fn leave(py: Python<'_>, blocks: &WithBlocks<runtime::EnteredStream>, name: &str) -> PyResult<bool> {
    if !process::is_forked() {
        runtime::leave(&blocks.leave(py, None, name)?);
    }
    Ok(false)
}

/// The stream that an argument names.
impl<'py> FromPyObject<'_, 'py> for Stream {
    type Error = PyErr;

    fn extract(stream: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        process::refuse_forked()?;
        resolve(stream.py(), Some(&stream), None)
    }
}

/// The stream that a call's arguments name: `stream`, else the thread's current one on `device`, else the thread's
/// current one.
#[inline]
pub(crate) fn resolve(py: Python<'_>, stream: Option<&Bound<'_, PyAny>>, device: Option<Device>) -> PyResult<Stream> {
    let runtime = device::get(py)?;
    let Some(stream) = stream else {
        let device = device.map_or_else(|| runtime.current_device(), Ok)?;
        return current(py, device);
    };
    if stream.is_exact_instance_of::<PyInt>() {
        let wrong = |_| Error::invalid_value(format!("stream is {stream}, which is not the address of a stream"));
        return Ok(stream.extract::<PythonAddress>().map_err(wrong)?.stream(device)?);
    }
    if let Ok(stream) = stream.cast_exact::<PyStream>() {
        // The caller's reference keeps the stream alive.
        return Ok(stream.get().stream.view().on(device)?);
    }
    resolve_object(stream, device)
}

/// A framework's stream object. A default stream's address does not say whose it is, so the object is asked.
fn resolve_object(stream: &Bound<'_, PyAny>, device: Option<Device>) -> PyResult<Stream> {
    let address = address_of(stream)?;
    if !address.is_default_stream() {
        return Ok(address.stream(device)?);
    }
    let own = device_of(stream)?;
    if let (Some(wanted), Some(own)) = (device, own)
        && wanted != own
    {
        let text = |[stream]: [String; 1]| format!("{stream} is a default stream of {own}, not of {wanted}");
        return Err(wrong_objects([stream], text).into());
    }
    Ok(address.stream(device.or(own))?)
}

fn address_of(stream: &Bound<'_, PyAny>) -> PyResult<PythonAddress> {
    let py = stream.py();
    // Attributes in the order of how much their presence says: the common protocol, PyTorch, CuPy, Numba.
    if let Some(protocol) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? {
        let answer = if protocol.is_callable() { protocol.call0()? } else { protocol };
        let wrong = || {
            wrong_objects([stream, &answer], |[stream, answer]| {
                format!(
                    "__cuda_stream__ of {stream} returned {answer}; version 0 of the protocol, (0, address), is supported"
                )
            })
        };
        let (version, address): (Bound<'_, PyAny>, Bound<'_, PyAny>) = answer.extract().map_err(|_| wrong())?;
        return match (accepted(py, version.extract())?, PythonAddress::given(&address)?) {
            (Some(0), Some(address)) => Ok(address),
            _ => Err(wrong().into()),
        };
    }
    for name in [intern!(py, "cuda_stream"), intern!(py, "ptr"), intern!(py, "handle")] {
        let Some(address) = stream.getattr_opt(name)? else { continue };
        // Numba's handle is a ctypes pointer, whose value is None for the default stream.
        let address = address.getattr_opt(intern!(py, "value"))?.unwrap_or(address);
        if address.is_none() {
            return Ok(PythonAddress::NULL);
        }
        if let Some(address) = PythonAddress::given(&address)? {
            return Ok(address);
        }
    }
    Err(no_stream(stream)?.into())
}

fn no_stream(argument: &Bound<'_, PyAny>) -> PyResult<Error> {
    let kind = argument.get_type().name()?;
    Ok(wrong_objects([argument], |[argument]| {
        format!(
            "stream is {argument}, and {kind} is not a stream: give an int, a stream of CuPy, PyTorch, Numba or cuda.core, or any \
             object with __cuda_stream__"
        )
    }))
}

/// Whether an object has anything that [`address_of`] asks for.
fn has_address(stream: &Bound<'_, PyAny>) -> PyResult<bool> {
    let mut names = ["__cuda_stream__", "cuda_stream", "ptr", "handle"].into_iter();
    names.try_fold(false, |has, name| Ok(has || stream.hasattr(name)?))
}

/// The device that a default stream object says it belongs to.
fn device_of(stream: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    let py = stream.py();
    // CuPy has device_id (-1 for its null stream), PyTorch device_index, cuda.core device.device_id.
    for name in [intern!(py, "device_id"), intern!(py, "device_index")] {
        if let Some(ordinal) = stream.getattr_opt(name)? {
            return valid_ordinal(&ordinal);
        }
    }
    let Some(device) = stream.getattr_opt(intern!(py, "device"))? else { return Ok(None) };
    device.getattr_opt(intern!(py, "device_id"))?.map_or(Ok(None), |ordinal| valid_ordinal(&ordinal))
}

fn valid_ordinal(ordinal: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    match accepted(ordinal.py(), ordinal.extract::<i64>())? {
        Some(ordinal) if ordinal >= 0 => Ok(Some(runtime::device(ordinal)?)),
        _ => Ok(None),
    }
}

#[doc = docstring!("StreamScope")]
#[pyclass(name = "StreamScope", module = "gpupool.typing", frozen, weakref)]
pub(crate) struct PyStreamScope {
    stream: Py<PyAny>,
    blocks: WithBlocks<runtime::EnteredStream>,
}

#[doc = docstring!("stream")]
#[pyfunction]
pub(crate) fn stream(stream: &Bound<'_, PyAny>) -> PyResult<PyStreamScope> {
    process::refuse_forked()?;
    // What is no stream is refused here, before the block.
    if !stream.is_exact_instance_of::<PyInt>() && !has_address(stream)? {
        return Err(no_stream(stream)?.into());
    }
    Ok(PyStreamScope { stream: stream.clone().unbind(), blocks: WithBlocks::new() })
}

#[pymethods]
impl PyStreamScope {
    #[doc = docstring!("StreamScope.__enter__")]
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stream: Stream = self.stream.extract(py)?;
        self.blocks.enter(py, None, runtime::enter(&stream)?);
        Ok(self.stream.clone_ref(py))
    }

    #[doc = docstring!("StreamScope.__exit__")]
    fn __exit__(&self, py: Python<'_>, _kind: Ignored, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
        leave(py, &self.blocks, "gpupool.stream")
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.stream)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("gpupool.stream({})", self.stream.bind(py).repr()?))
    }
}

// Where a thread's current stream comes from when no `gpupool.stream` says so: from the framework that was enabled last.

/// `source(device) -> address`.
static SOURCE: Mutex<Option<Py<PyAny>>> = Mutex::new(None);
/// Whether there is one, for the calls that have none to ask.
static HAS_SOURCE: AtomicBool = AtomicBool::new(false);

#[doc = docstring!("set_stream_source")]
#[pyfunction]
pub(crate) fn set_stream_source(source: Option<Py<PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    process::refuse_forked()?;
    let mut place = lock(&SOURCE);
    HAS_SOURCE.store(source.is_some(), Ordering::Relaxed);
    Ok(std::mem::replace(&mut *place, source))
}

/// The calling thread's current stream on the device.
#[inline]
pub(crate) fn current(py: Python<'_>, device: Device) -> PyResult<Stream> {
    if let Some(stream) = scoped_view(device) {
        return Ok(stream);
    }
    if HAS_SOURCE.load(Ordering::Relaxed) { from_source(py, device) } else { Ok(Stream::default_of(device)) }
}

fn from_source(py: Python<'_>, device: Device) -> PyResult<Stream> {
    let source = {
        let place = lock(&SOURCE);
        place.as_ref().map(|source| source.clone_ref(py))
    };
    let Some(source) = source else { return Ok(Stream::current_view(device)) };
    let answer = source.call1(py, (device.ordinal(),))?;
    let Some(address) = PythonAddress::given(answer.bind(py))? else {
        let text = |[source, answer]: [String; 2]| format!("{source} returned {answer}, not the address of a stream");
        return Err(wrong_objects([source.bind(py), answer.bind(py)], text).into());
    };
    Ok(address.stream(Some(device))?)
}
