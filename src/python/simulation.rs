//! Controls of the simulated devices, for gpupool's own tests: only with the feature `fault-injection`, and not in the wheel.

use pyo3::prelude::*;

use crate::error::{Error, Result, StatusKind};
use crate::ids::{CaptureMode, Device};
use crate::library::simulated as library;
use crate::memory;
use crate::runtime::Stream;
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

#[pyfunction(signature = (device, blocking = false))]
pub(crate) fn host_create_stream(device: Device, blocking: bool) -> Result<usize> {
    let created = if blocking { host::create_blocking_stream(device) } else { host::create_stream(device) };
    Ok(created?.address())
}

functions! { py;
    fn host_clear_faults() = {
        host::clear_faults();
    };
    fn host_reuse_extent_numbers() = host::reuse_extent_numbers();
    fn host_set_clock(nanoseconds: u64) = memory::set_clock(nanoseconds);
    fn host_stream_of(handle: usize) -> Result<usize> = library::stream_at(handle).ok_or_else(|| {
        Error::invalid_value(format!("{handle:#x} is not a live handle of the simulated library"))
    });
    fn host_destroy_stream(stream: Stream) -> Result<()> = host::destroy_stream(stream.raw(), stream.device());
    fn host_submit(stream: Stream) -> Result<u64> = host::submit(&stream);
    fn host_complete(stream: Stream, number: u64) -> Result<()> = host::complete(&stream, number);
    fn host_begin_capture(stream: Stream) -> Result<()> = host::begin_capture(&stream, CaptureMode::Global);
    fn host_end_capture(stream: Stream) -> Result<()> = host::end_capture(&stream).map(drop);
}
