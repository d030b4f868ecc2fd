//! Controls of the simulated devices, for gpupool's own tests: only with the feature `fault-injection`, and not in the wheel.

use pyo3::prelude::*;

use crate::error::{Error, StatusKind};
use crate::ids::{CaptureMode, Device};
use crate::library::simulated as library;
use crate::memory;
use crate::python::stream::named;
use crate::runtime::host::{self, Call, Fault};

#[pyfunction(signature = (call, kind = "other", after = 0, times = 1))]
pub(crate) fn host_inject(call: &str, kind: &str, after: u32, times: u32) -> PyResult<()> {
    let unknown = |what: &str| Error::invalid_value(format!("{what} is neither a call nor a kind of failure"));
    let call = Call::ALL.into_iter().find(|known| format!("{known:?}") == call).ok_or_else(|| unknown(call))?;
    let kind = match kind {
        "out_of_memory" => StatusKind::OutOfMemory,
        "not_initialized" => StatusKind::NotInitialized,
        "not_supported" => StatusKind::NotSupported,
        "other" => StatusKind::Other,
        _ => return Err(unknown(kind).into()),
    };
    host::inject(Fault { call, kind, after, times });
    Ok(())
}

#[pyfunction]
pub(crate) fn host_clear_faults() {
    host::clear_faults();
}

#[pyfunction]
pub(crate) fn host_reuse_extent_numbers() {
    host::reuse_extent_numbers();
}

#[pyfunction]
pub(crate) fn host_set_clock(nanoseconds: u64) {
    memory::set_clock(nanoseconds);
}

#[pyfunction]
pub(crate) fn host_stream_of(handle: usize) -> PyResult<usize> {
    let none = || Error::invalid_value(format!("{handle:#x} is not a live handle of the simulated library"));
    Ok(library::stream_at(handle).ok_or_else(none)?)
}

#[pyfunction(signature = (device, blocking = false))]
pub(crate) fn host_create_stream(device: Device, blocking: bool) -> PyResult<usize> {
    let created = if blocking { host::create_blocking_stream(device) } else { host::create_stream(device) };
    Ok(created?.address())
}

#[pyfunction]
pub(crate) fn host_destroy_stream(stream: &Bound<'_, PyAny>) -> PyResult<()> {
    let stream = named(stream)?;
    Ok(host::destroy_stream(stream.raw(), stream.device())?)
}

#[pyfunction]
pub(crate) fn host_submit(stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(host::submit(&named(stream)?)?)
}

#[pyfunction]
pub(crate) fn host_complete(stream: &Bound<'_, PyAny>, number: u64) -> PyResult<()> {
    Ok(host::complete(&named(stream)?, number)?)
}

#[pyfunction]
pub(crate) fn host_begin_capture(stream: &Bound<'_, PyAny>) -> PyResult<()> {
    Ok(host::begin_capture(&named(stream)?, CaptureMode::Global)?)
}

#[pyfunction]
pub(crate) fn host_end_capture(stream: &Bound<'_, PyAny>) -> PyResult<()> {
    Ok(host::end_capture(&named(stream)?).map(drop)?)
}
