//! What others' code in the process holds, where it is watched.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::MemoryHolder;
use crate::ids::Device;
use crate::memory;

functions! { py;
    fn is_watched() -> bool = memory::is_watched();
    fn holders() -> PyResult<Vec<Bound<'_, PyDict>>> = holders_by_device(py, memory::all_holders());
}

pub(crate) fn of_holder<'py>(py: Python<'py>, holder: &MemoryHolder) -> PyResult<Bound<'py, PyDict>> {
    Ok(with_items!(PyDict::new(py), {
        "name": holder.name.as_str(),
        "path": holder.path.as_str(),
        "nbytes": holder.bytes,
        "peak_bytes": holder.peak_bytes,
        "allocations": holder.count,
    }))
}

/// What others' code in the process holds, each with its device.
pub(crate) fn holders_by_device<'py>(
    py: Python<'py>,
    held: impl IntoIterator<Item = (Device, MemoryHolder)>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let of_device = |(device, holder)| Ok(with_items!(of_holder(py, &holder)?, { "device": device, }));
    held.into_iter().map(of_device).collect()
}
