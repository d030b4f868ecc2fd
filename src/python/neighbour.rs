//! Neighbours: other processes that use gpupool on the same device.

use std::sync::Mutex;
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::Error;
use crate::ids::Device;
use crate::memory::{self, MemoryClaim, Neighbour, NeighbourPool, NeighbourSettings, PoolId};
use crate::process;
use crate::python::arguments::{Guarantee, Most, Nbytes, Timeout, Whole};
use crate::python::device;
use crate::python::error::interruptible;
use crate::python::mem_pool::pair;
use crate::python::values::{Reduced, reduce};
use crate::sync::lock;

#[doc = docstring!("Neighbour")]
#[pyclass(name = "Neighbour", module = "gpupool", frozen)]
#[derive(Debug)]
pub(crate) struct PyNeighbour(Neighbour);

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
pub(crate) fn set_neighbour(
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
pub(crate) fn neighbours(py: Python<'_>, device: Option<&Bound<'_, PyAny>>, pools: bool) -> PyResult<Vec<PyNeighbour>> {
    let device = device::extract_or_current(py, device)?;
    let list = if pools { memory::neighbours_with_pools } else { memory::neighbours };
    let found = py.detach(|| list(device))?;
    Ok(found.into_iter().map(PyNeighbour).collect())
}

#[doc = docstring!("available_memory")]
#[pyfunction]
#[pyo3(signature = (device = None))]
pub(crate) fn available_memory(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let device = device::extract_or_current(py, device)?;
    Ok(py.detach(|| memory::available_memory(device))?)
}

// `NeighbourPool`: what a pool of another process holds.

#[doc = docstring!("NeighbourPool")]
#[pyclass(name = "NeighbourPool", module = "gpupool", frozen, from_py_object)]
#[derive(Clone, Debug)]
pub(crate) struct PyNeighbourPool(pub(crate) NeighbourPool);

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

// `Claim`: a right to memory before it is taken, for a `with` block or until it is released.

#[doc = docstring!("Claim")]
#[pyclass(name = "Claim", module = "gpupool", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct PyClaim {
    device: usize,
    nbytes: u64,
    /// None once it is over.
    claim: Mutex<Option<MemoryClaim>>,
}

#[pymethods]
impl PyClaim {
    #[doc = docstring!("Claim.device")]
    #[getter]
    const fn device(&self) -> usize {
        self.device
    }

    #[doc = docstring!("Claim.nbytes")]
    #[getter]
    const fn nbytes(&self) -> u64 {
        self.nbytes
    }

    #[doc = docstring!("Claim.left")]
    #[getter]
    fn left(&self) -> PyResult<u64> {
        process::refuse_forked()?;
        Ok(lock(&self.claim).as_ref().map_or(0, MemoryClaim::left))
    }

    #[doc = docstring!("Claim.release")]
    fn release(&self) -> PyResult<()> {
        process::refuse_forked()?;
        let ended = lock(&self.claim).take();
        drop(ended);
        Ok(())
    }

    #[doc = docstring!("Claim.__enter__")]
    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        process::refuse_forked()?;
        Ok(slf)
    }

    #[doc = docstring!("Claim.__exit__")]
    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) -> bool {
        // In a forked child the refusal would hide what was raised in the block.
        let _ = self.release();
        false
    }

    fn __repr__(&self) -> String {
        let (device, nbytes) = (device::shown(self.device), self.nbytes);
        let is_over = process::is_forked() || lock(&self.claim).is_none();
        let state = if is_over { ", over" } else { "" };
        format!("<gpupool.Claim nbytes={nbytes}, device={device}{state}>")
    }
}

#[doc = docstring!("claim")]
#[pyfunction]
#[pyo3(
    signature = (nbytes, device = None, timeout = Timeout(Duration::ZERO)),
    text_signature = "(nbytes, device=None, timeout=0)"
)]
pub(crate) fn claim(
    py: Python<'_>,
    nbytes: Whole<Nbytes>,
    device: Option<&Bound<'_, PyAny>>,
    timeout: Timeout,
) -> PyResult<PyClaim> {
    let device = device::extract_or_current(py, device)?;
    let claim =
        interruptible(py, |interruption| memory::claim_unless_interrupted(nbytes.0, device, timeout.0, interruption))?;
    Ok(PyClaim { device: device.ordinal(), nbytes: nbytes.0, claim: Mutex::new(Some(claim)) })
}
