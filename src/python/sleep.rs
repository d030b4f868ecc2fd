//! Sleeping and waking, of one pool and of all memory of a device.

use pyo3::prelude::*;

use super::device;
use super::whole::wrong_objects;
use crate::memory::{self, Backup};
use crate::observe::recording::{Purpose, hold_stack};

/// What Python calls a backup: `"host"`, or `None`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PyBackup(pub(super) Backup);

impl<'py> FromPyObject<'_, 'py> for PyBackup {
    type Error = PyErr;

    fn extract(backup: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if backup.is_none() {
            return Ok(Self(Backup::None));
        }
        if backup.extract::<&str>().is_ok_and(|name| name == "host") {
            return Ok(Self(Backup::Host));
        }
        let text = |[given]: [String; 1]| {
            format!("backup is \"host\" for pinned memory, or None to discard the content, not {given}")
        };
        Err(wrong_objects([&backup], text).into())
    }
}

#[doc = docstring!("sleep")]
#[pyfunction]
#[pyo3(signature = (device = None, backup = PyBackup(Backup::Host)), text_signature = "(device=None, backup='host')")]
pub(super) fn sleep(py: Python<'_>, device: Option<&Bound<'_, PyAny>>, backup: PyBackup) -> PyResult<u64> {
    let device = device::extract_or_current(py, device)?;
    let _stack = hold_stack(Purpose::Allocation);
    Ok(py.detach(|| crate::sleep(device, backup.0))?)
}

#[doc = docstring!("wake")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(super) fn wake(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let device = device::extract_or_current(py, device)?;
    let _stack = hold_stack(Purpose::Allocation);
    Ok(py.detach(|| memory::wake(device))?)
}
