//! Where a thread's current stream comes from when no `gpupool.stream` says so: from the framework that was enabled last.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::ids::Device;
use crate::process;
use crate::python::ffi::PythonAddress;
use crate::python::whole::wrong_objects;
use crate::runtime::{Stream, scoped_view};
use crate::sync::lock;

/// `source(device) -> address`.
static SOURCE: Mutex<Option<Py<PyAny>>> = Mutex::new(None);
/// Whether there is one, for the calls that have none to ask.
static HAS_SOURCE: AtomicBool = AtomicBool::new(false);

#[doc = docstring!("set_stream_source")]
#[pyfunction]
#[pyo3(signature = (source))]
pub(in crate::python) fn set_stream_source(source: Option<Py<PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    process::refuse_forked()?;
    let mut place = lock(&SOURCE);
    HAS_SOURCE.store(source.is_some(), Ordering::Relaxed);
    Ok(std::mem::replace(&mut *place, source))
}

/// The calling thread's current stream on the device.
#[inline]
pub(super) fn current(py: Python<'_>, device: Device) -> PyResult<Stream> {
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
