//! `SegmentEvent`: a segment that comes or goes.

use pyo3::prelude::*;

use super::super::{Id, pair};
use crate::error::Error;
use crate::memory::{SegmentEvent, SegmentEventKind};
use crate::python::device;
use crate::python::facts::{Reduced, reduce};

#[doc = docstring!("SegmentEvent")]
#[pyclass(name = "SegmentEvent", module = "gpupool", frozen, get_all, eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::python) struct PySegmentEvent {
    #[doc = docstring!("SegmentEvent.kind")]
    kind: &'static str,
    #[doc = docstring!("SegmentEvent.address")]
    address: u64,
    #[doc = docstring!("SegmentEvent.nbytes")]
    nbytes: u64,
    #[doc = docstring!("SegmentEvent.device")]
    device: usize,
    #[doc = docstring!("SegmentEvent.pool_id")]
    pool_id: Id,
}

impl From<&SegmentEvent> for PySegmentEvent {
    fn from(event: &SegmentEvent) -> Self {
        let kind = match event.kind {
            SegmentEventKind::Added => "added",
            SegmentEventKind::Removed => "removed",
        };
        let (device, pool_id) = (event.device.ordinal(), pair(event.pool));
        Self { kind, address: event.address, nbytes: event.nbytes, device, pool_id }
    }
}

#[pymethods]
impl PySegmentEvent {
    #[new]
    fn new(kind: &str, address: u64, nbytes: u64, device: usize, pool_id: Id) -> PyResult<Self> {
        let kinds = ["added", "removed"];
        let Some(kind) = kinds.into_iter().find(|known| *known == kind) else {
            return Err(Error::invalid_value(format!("kind is {kind:?}: give 'added' or 'removed'")).into());
        };
        Ok(Self { kind, address, nbytes, device, pool_id })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        reduce(slf, &["kind", "address", "nbytes", "device", "pool_id"])
    }

    fn __repr__(&self) -> String {
        let Self { kind, address, nbytes, pool_id, .. } = self;
        let device = device::shown(self.device);
        format!(
            "gpupool.SegmentEvent(kind='{kind}', address={address:#x}, nbytes={nbytes}, device={device}, \
             pool_id={pool_id:?})"
        )
    }
}
