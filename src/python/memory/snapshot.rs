//! Snapshots in the form of `torch.cuda.memory_snapshot`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::pair;
use crate::memory::{self, SegmentView};

fn segment<'py>(py: Python<'py>, view: &SegmentView) -> PyResult<Bound<'py, PyDict>> {
    let blocks = PyList::empty(py);
    let (mut allocated, mut active, mut requested) = (0, 0, 0);
    for block in &view.blocks {
        let entry = PyDict::new(py);
        entry.set_item("address", block.address)?;
        entry.set_item("size", block.bytes)?;
        entry.set_item("requested_size", block.requested)?;
        let state = match block {
            block if block.is_waiting => "active_pending_free",
            block if block.is_live => "active_allocated",
            _ => "inactive",
        };
        entry.set_item("state", state)?;
        entry.set_item("frames", PyList::empty(py))?;
        blocks.append(entry)?;
        if block.is_live {
            active += block.bytes;
            requested += block.requested;
        }
        if block.is_live && !block.is_waiting {
            allocated += block.bytes;
        }
    }
    let entry = PyDict::new(py);
    entry.set_item("device", view.device.ordinal())?;
    entry.set_item("address", view.address)?;
    entry.set_item("total_size", view.bytes)?;
    entry.set_item("allocated_size", allocated)?;
    entry.set_item("active_size", active)?;
    entry.set_item("requested_size", requested)?;
    entry.set_item("stream", view.stream)?;
    entry.set_item("segment_type", "large")?;
    entry.set_item("segment_pool_id", pair(view.pool))?;
    entry.set_item("is_expandable", view.is_movable)?;
    entry.set_item("frames", PyList::empty(py))?;
    entry.set_item("blocks", blocks)?;
    Ok(entry)
}

pub(super) fn segments<'py>(py: Python<'py>, views: &[SegmentView]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for view in views {
        list.append(segment(py, view)?)?;
    }
    Ok(list)
}

#[pyfunction]
pub(in crate::python) fn memory_snapshot(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let views = py.detach(memory::memory_snapshot)?;
    let snapshot = PyDict::new(py);
    snapshot.set_item("segments", segments(py, &views)?)?;
    snapshot.set_item("device_traces", PyList::empty(py))?;
    Ok(snapshot)
}
