//! Neighbours: other processes that use gpupool on the same device.

mod claims;
mod pools;

use pyo3::prelude::*;

pub(super) use claims::{PyClaim, claim};
pub(super) use pools::PyNeighbourPool;

use super::device;
use super::facts::{Reduced, reduce};
use super::whole::{Guarantee, Most, Whole};
use crate::error::Error;
use crate::ids::Device;
use crate::memory::{self, Neighbour, NeighbourSettings};

#[doc = docstring!("Neighbour")]
#[pyclass(name = "Neighbour", module = "gpupool", frozen)]
#[derive(Debug)]
pub(super) struct PyNeighbour(Neighbour);

#[pymethods]
impl PyNeighbour {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "each is one of its properties")]
    fn new(
        pid: u32,
        name: String,
        device: u32,
        reserved_bytes: u64,
        live_bytes: u64,
        free_bytes: u64,
        asleep_bytes: u64,
        discardable_bytes: u64,
        offered_bytes: u64,
        claimed_bytes: u64,
        guarantee: u64,
        most: Option<u64>,
        priority: i32,
        system_limit: Option<u64>,
        is_self: bool,
        pools: Option<Vec<PyNeighbourPool>>,
    ) -> Self {
        Self(Neighbour {
            process: pid,
            name,
            device: Device::from_ordinal(device),
            reserved_bytes,
            live_bytes,
            free_bytes,
            asleep_bytes,
            discardable_bytes,
            offered_bytes,
            claimed_bytes,
            guarantee,
            most,
            priority,
            system_limit,
            is_self,
            pools: pools.map(|pools| pools.into_iter().map(|pool| pool.0).collect()),
        })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        const PROPERTIES: [&str; 16] = [
            "pid",
            "name",
            "device",
            "reserved_bytes",
            "live_bytes",
            "free_bytes",
            "asleep_bytes",
            "discardable_bytes",
            "offered_bytes",
            "claimed_bytes",
            "guarantee",
            "most",
            "priority",
            "system_limit",
            "is_self",
            "pools",
        ];
        reduce(slf, &PROPERTIES)
    }

    #[doc = docstring!("Neighbour.pid")]
    #[getter]
    fn pid(&self) -> u32 {
        self.0.process
    }

    #[doc = docstring!("Neighbour.name")]
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[doc = docstring!("Neighbour.device")]
    #[getter]
    fn device(&self) -> usize {
        self.0.device.ordinal()
    }

    #[doc = docstring!("Neighbour.reserved_bytes")]
    #[getter]
    fn reserved_bytes(&self) -> u64 {
        self.0.reserved_bytes
    }

    #[doc = docstring!("Neighbour.live_bytes")]
    #[getter]
    fn live_bytes(&self) -> u64 {
        self.0.live_bytes
    }

    #[doc = docstring!("Neighbour.free_bytes")]
    #[getter]
    fn free_bytes(&self) -> u64 {
        self.0.free_bytes
    }

    #[doc = docstring!("Neighbour.asleep_bytes")]
    #[getter]
    fn asleep_bytes(&self) -> u64 {
        self.0.asleep_bytes
    }

    #[doc = docstring!("Neighbour.discardable_bytes")]
    #[getter]
    fn discardable_bytes(&self) -> u64 {
        self.0.discardable_bytes
    }

    #[doc = docstring!("Neighbour.offered_bytes")]
    #[getter]
    fn offered_bytes(&self) -> u64 {
        self.0.offered_bytes
    }

    #[doc = docstring!("Neighbour.claimed_bytes")]
    #[getter]
    fn claimed_bytes(&self) -> u64 {
        self.0.claimed_bytes
    }

    #[doc = docstring!("Neighbour.guarantee")]
    #[getter]
    fn guarantee(&self) -> u64 {
        self.0.guarantee
    }

    #[doc = docstring!("Neighbour.most")]
    #[getter]
    fn most(&self) -> Option<u64> {
        self.0.most
    }

    #[doc = docstring!("Neighbour.priority")]
    #[getter]
    fn priority(&self) -> i32 {
        self.0.priority
    }

    #[doc = docstring!("Neighbour.system_limit")]
    #[getter]
    fn system_limit(&self) -> Option<u64> {
        self.0.system_limit
    }

    #[doc = docstring!("Neighbour.is_self")]
    #[getter]
    fn is_self(&self) -> bool {
        self.0.is_self
    }

    #[doc = docstring!("Neighbour.pools")]
    #[getter]
    fn pools(&self) -> Option<Vec<PyNeighbourPool>> {
        let pools = self.0.pools.as_ref()?;
        Some(pools.iter().cloned().map(PyNeighbourPool).collect())
    }

    fn __repr__(&self) -> String {
        let Neighbour { process, name, device, reserved_bytes, live_bytes, priority, is_self, .. } = &self.0;
        let device = device::shown(device.ordinal());
        let this = if *is_self { ", this process" } else { "" };
        format!(
            "<gpupool.Neighbour {process} {name:?}, device={device}, reserved_bytes={reserved_bytes}, live_bytes={live_bytes}, \
             priority={priority}{this}>"
        )
    }
}

#[doc = docstring!("set_neighbour")]
#[pyfunction]
#[pyo3(
    signature = (name = None, guarantee = Whole::new(0), most = None, priority = 0, device = None),
    text_signature = "(name=None, guarantee=0, most=None, priority=0, device=None)"
)]
pub(super) fn set_neighbour(
    py: Python<'_>,
    name: Option<String>,
    guarantee: Whole<Guarantee>,
    most: Option<Whole<Most>>,
    priority: i64,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let device = device::extract_or_current(py, device)?;
    let priority = i32::try_from(priority).map_err(|_| {
        let (least, most) = (i32::MIN, i32::MAX);
        Error::invalid_value(format!("priority is {priority}: give a whole number from {least} to {most}"))
    })?;
    let (guarantee, most) = (guarantee.0, most.map(|most| most.0));
    let settings = NeighbourSettings { name, guarantee, most, priority };
    Ok(py.detach(|| memory::set_neighbour(settings, device))?)
}

#[doc = docstring!("neighbours")]
#[pyfunction]
#[pyo3(signature = (device = None, *, pools = false))]
pub(super) fn neighbours(py: Python<'_>, device: Option<&Bound<'_, PyAny>>, pools: bool) -> PyResult<Vec<PyNeighbour>> {
    let device = device::extract_or_current(py, device)?;
    let list = if pools { memory::neighbours_with_pools } else { memory::neighbours };
    let found = py.detach(|| list(device))?;
    Ok(found.into_iter().map(PyNeighbour).collect())
}

#[doc = docstring!("available_memory")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(super) fn available_memory(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::available_memory(device))?)
}
