//! `NeighbourPool`: what a pool of another process holds.

use pyo3::prelude::*;

use crate::memory::{NeighbourPool, PoolId};
use crate::python::facts::{Reduced, reduce};
use crate::python::memory::pair;

#[doc = docstring!("NeighbourPool")]
#[pyclass(name = "NeighbourPool", module = "gpupool", frozen, from_py_object)]
#[derive(Clone, Debug)]
pub(in crate::python) struct PyNeighbourPool(pub(super) NeighbourPool);

#[pymethods]
impl PyNeighbourPool {
    #[new]
    fn new(
        id: (u64, u64),
        given_name: Option<String>,
        reserved_bytes: u64,
        live_bytes: u64,
        free_bytes: u64,
        asleep_bytes: u64,
    ) -> Self {
        let id = PoolId(id.0, id.1);
        Self(NeighbourPool { id, name: given_name, reserved_bytes, live_bytes, free_bytes, asleep_bytes })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        reduce(slf, &["id", "given_name", "reserved_bytes", "live_bytes", "free_bytes", "asleep_bytes"])
    }

    #[doc = docstring!("NeighbourPool.id")]
    #[getter]
    fn id(&self) -> (u64, u64) {
        pair(self.0.id)
    }

    #[doc = docstring!("NeighbourPool.given_name")]
    #[getter]
    fn given_name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    #[doc = docstring!("NeighbourPool.reserved_bytes")]
    #[getter]
    fn reserved_bytes(&self) -> u64 {
        self.0.reserved_bytes
    }

    #[doc = docstring!("NeighbourPool.live_bytes")]
    #[getter]
    fn live_bytes(&self) -> u64 {
        self.0.live_bytes
    }

    #[doc = docstring!("NeighbourPool.free_bytes")]
    #[getter]
    fn free_bytes(&self) -> u64 {
        self.0.free_bytes
    }

    #[doc = docstring!("NeighbourPool.asleep_bytes")]
    #[getter]
    fn asleep_bytes(&self) -> u64 {
        self.0.asleep_bytes
    }

    fn __repr__(&self) -> String {
        let NeighbourPool { id, name, reserved_bytes, live_bytes, .. } = &self.0;
        let name = name.as_ref().map_or_else(String::new, |name| format!(" {name:?}"));
        format!("<gpupool.NeighbourPool {id}{name}, reserved_bytes={reserved_bytes}, live_bytes={live_bytes}>")
    }
}
